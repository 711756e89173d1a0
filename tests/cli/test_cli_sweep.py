"""`siltwin run --sweep` prints a curve or its JSON, and leaves with an exit code where nothing of it ran."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

Cli = Callable[..., Result]
MODEL = ("run", "Llama-3.1-405B", "--scale", "--no-payload", "--output-len", "1")


def test_a_sweep_is_a_table_or_json(siltwin: Cli) -> None:
    result = siltwin(*MODEL, "--cached-len", "8", "--sweep", "batch=1,2")
    assert result.exit_code == 0, result.output
    assert "Times and memory" in result.stdout and "Why it bends" in result.stdout
    found = json.loads(siltwin(*MODEL, "--batch", "2", "--input-len", "8", "--sweep", "tp=1,2", "--json", "-").stdout)
    assert (found["axis"], [point["status"] for point in found["points"]]) == ("tp", ["ran", "ran"])
    assert found["points"][1]["layout"] == "tp=2" and found["schema_version"] == 1


def test_a_sweep_of_which_nothing_runs_is_an_error(siltwin: Cli) -> None:
    result = siltwin(*MODEL, "--batch", "2", "--input-len", "8", "--sweep", "tp=3,5")
    assert result.exit_code == 2 and "refused" in result.stdout


@pytest.mark.parametrize(
    "one", [("--trace", "t.json"), ("--trace-cards", "0"), ("--alert", "memory=0.9"), ("--compare-kv",)], ids=str
)
def test_what_tells_of_one_run_does_not_go_with_a_sweep(siltwin: Cli, one: tuple[str, ...]) -> None:
    result = siltwin(*MODEL, "--batch", "2", "--input-len", "8", "--sweep", "tp=1,2", *one)
    assert result.exit_code == 2 and "--sweep makes many runs" in result.stderr


def test_cards_are_chosen_of_a_trace_alone(siltwin: Cli) -> None:
    result = siltwin(*MODEL, "--batch", "2", "--input-len", "8", "--trace-cards", "0")
    assert result.exit_code == 2 and "give --trace FILE too" in result.stderr
