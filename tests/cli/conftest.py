"""A runtime that answers what a test tells it to, so that the tests of the command line are about the command line."""

import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from siltwin.cli import cli
from siltwin.emulator.site import Site
from siltwin.emulator.span_columns import CardColumns
from siltwin.isa.text import assemble

EXAMPLES: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "runtime" / "report_examples.py"))


def fake_columns() -> CardColumns:
    """One card with one product."""
    program = assemble(
        "program p\nqueue tensor\nblock layer\nparam y : bf16[2, 2]\nparam x : bf16[2, 2]\nparam w : bf16[2, 2]\n"
        "tensor | matmul dst=%y a=%x w=%w bias=-\nend"
    )
    block = program.blocks[0]
    site = Site(block, 0, "tensor", block.body[0].instruction)
    timeline = types.SimpleNamespace(sites=(site,))
    columns = np.array([[0], [0], [0], [0], [0], [1], [9], [1], [-1]])
    return CardColumns((0,), timeline, (), ("tensor",), *columns)  # type: ignore[arg-type]


class FakeResult:
    """What run_job gives back."""

    def __init__(self, report: Any) -> None:
        self.report = report
        self.records = [types.SimpleNamespace(columns=(fake_columns(),))]
        self.memory = {0: [(0, 512, "weight")]}
        self.power_curve = None
        self.logits = {"logits_0": np.ones((3, 4), np.float32), "tokens_0": np.array([5, 6])}


class Fakes:
    """Keeps the job it was given, and what else was asked; answers with a report or raises an error."""

    def __init__(self) -> None:
        self.job: Any = None
        self.ask: Any = None
        self.answer: Any = None
        self.answers("report")

    def answers(self, kind: str, **changes: Any) -> Any:
        """Answer with an example of this kind (report, limits, aligned) from now on, and return it."""
        example = EXAMPLES[kind](**changes)
        self.answer = FakeResult(example) if kind == "report" else example
        return example

    def raises(self, error: BaseException) -> None:
        """Raise this from now on."""
        self.answer = error

    def __call__(
        self, job: Any, ask: Any = None, progress: Callable[[int, int | None, str], None] | None = None
    ) -> Any:
        self.job, self.ask = job, ask
        if progress:
            progress(0, None, "reading the model")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Stands in for run_job, align and find_limits."""
    fake = Fakes()
    for module, function in (("run", "run_job"), ("align", "align"), ("limits", "find_limits")):
        stand_in = types.ModuleType(f"siltwin.runtime.{module}")
        setattr(stand_in, function, fake)
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return fake


@pytest.fixture
def oom() -> Any:
    """An out-of-memory to put into a report."""
    return EXAMPLES["oom"]()


@pytest.fixture
def siltwin() -> Callable[..., Result]:
    """Runs `siltwin ARGS...`, environment variables as keywords."""

    def invoke(*args: str, **env: str) -> Result:
        return CliRunner().invoke(cli, args, env={"SILTWIN_DEBUG": None, **env})

    return invoke
