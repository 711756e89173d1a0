"""A pytest plugin that keeps every N-th of the collected tests, the same ones on every machine."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --sample-every N."""
    parser.addoption("--sample-every", type=int, default=1, metavar="N", help="run every N-th test, from the first")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the others, after `-m` and `-k` have had their say."""
    every = config.getoption("--sample-every")
    kept = items[::every]
    left = [item for index, item in enumerate(items) if index % every]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A suite without long tests is not a failure."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
