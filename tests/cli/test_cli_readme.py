"""The checker of README examples finds commands, follows exit codes, and compares output line by line."""

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / ".ci" / "readme_examples.py"

MARKDOWN = """
```console
$ make run
The capital of France is Paris.
$ siltwin cards \\
    --json cards.json
Cards
...
`siltwin cards NAME` shows every number and its source.
$ siltwin cards nope  # exit code 2
```
```python
$ siltwin not an example
```
"""


@pytest.fixture
def checker() -> dict[str, Any]:
    return runpy.run_path(str(CHECKER), run_name="readme_examples")


def test_examples_are_the_siltwin_commands_of_console_blocks(checker: dict[str, Any]) -> None:
    first, second = checker["examples_of"](MARKDOWN)
    assert first.command.split() == ["siltwin", "cards", "--json", "cards.json"]
    assert first.output == ("Cards", "`siltwin cards NAME` shows every number and its source.")
    assert (second.command, second.exit_code, second.output) == ("siltwin cards nope", 2, ())


def test_output_must_appear_in_order_but_for_spacing(checker: dict[str, Any]) -> None:
    example = checker["Example"]("siltwin x", 0, ("a  b", "c"))
    assert checker["missing_line"](example, "start\n  a b\nbetween\nc\n") is None
    assert checker["missing_line"](example, "c\na b\n") == "c"
    assert checker["missing_line"](example, "a bc\n") == "a  b"


def test_examples_run_in_a_scratch_directory(
    checker: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(MARKDOWN)
    assert checker["main"]([str(page)]) == 0, capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [page]
    page.write_text(MARKDOWN.replace("exit code 2", "exit code 3"))
    assert checker["main"]([str(page)]) == 1
    assert "FAILED: exit code 2, not 3" in capsys.readouterr().out
