"""`siltwin card check`: shipped cards pass, a contradictory file ends with exit code 2, and so does a hostile one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Cli = Callable[..., Result]
MINE = """
extends: h100-sxm
name: mine
description: an H100 whose L2 was written in gigabytes
l2:
  bandwidth_bytes_per_s: {value: 6.5GB/s, evidence: assumed, source: a typing error}
"""


def test_a_sound_card_passes_as_text_and_as_json(siltwin: Cli) -> None:
    result = siltwin("card", "check", "910b3")
    assert (result.exit_code, result.stdout) == (0, "ascend-910b3 is sound: 0 errors, 0 warnings\n")
    report = json.loads(siltwin("card", "check", "910b3", "--json", "-").stdout)
    assert report["card"] == "ascend-910b3" and report["sound"] and report["findings"] == []


def test_a_contradiction_is_named_and_fails(siltwin: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    result = siltwin("card", "check", str(tmp_path / "mine.yaml"))
    assert result.exit_code == 2
    assert "l2.bandwidth_bytes_per_s: 6.5 GB/s; should be 3,082.0 GB/s or more" in " ".join(result.stdout.split())
    assert "mine is not sound: 1 errors, 0 warnings" in result.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a mapping"),
        (MINE + "l3: {}\n", "l3: there is no such field"),
        (MINE.replace("6.5GB/s", ".nan"), "nan is not a finite number"),
        (MINE.replace("6.5GB/s", "1e300"), "less than or equal"),
        (MINE.replace("extends: h100-sxm", "extends: mine"), "'mine' is no shipped card"),
        ("\x00", "is not plain YAML"),
    ],
)
def test_what_is_no_card_is_one_line_on_stderr(siltwin: Cli, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    result = siltwin("card", "check", str(tmp_path / "mine.yaml"))
    assert result.exit_code == 2 and result.stdout == ""
    assert says in result.stderr and result.stderr.startswith("error: ") and "Traceback" not in result.stderr
