"""siltwin coverage: exit codes, JSON and text, also at the width of a small terminal; --fuse on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from siltwin.cli import cli
from siltwin.runtime.coverage import cover
from siltwin.runtime.job import Job
from siltwin.runtime.render_coverage import print_coverage
from siltwin.runtime.report_coverage import CoverageReport

SIZES = ("--batch", "2", "--input-len", "12", "--output-len", "2")


def siltwin(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words])


def test_a_covered_model_exits_0_and_writes_its_report(tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    result = siltwin("coverage", "SmolLM2-135M", *SIZES, "--set", "native=all,-attention", "--json", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "COVERED: the card runs every operator of the model" in result.stdout
    assert "attention: paged_scores, masked_softmax, paged_values" in result.stdout
    report = CoverageReport.model_validate_json(path.read_text())
    assert report.complete and report.schema_version == 1 and report.native == ("all", "-attention")


def test_a_missing_operator_exits_5_with_its_reason() -> None:
    result = siltwin("coverage", "SmolLM2-135M", *SIZES, "--set", "native=all,-matmul", "--json", "-")
    assert result.exit_code == 5
    missing = [item for item in json.loads(result.stdout)["operators"] if item["status"] == "missing"]
    assert [(item["mnemonic"], item["reason"]) for item in missing] == [("matmul", "nothing composes it")]


def test_the_schema_is_printed() -> None:
    result = siltwin("schema", "--of", "coverage")
    assert result.exit_code == 0 and "operators" in json.loads(result.stdout)["properties"]


@pytest.mark.parametrize("width", [80, 160])
def test_text_keeps_to_the_width_and_names_everything(width: int) -> None:
    asked = Job("SmolLM2-135M", batch=2, input_len=12, output_len=2, overrides=(("native", "all,-attention,-argmax"),))
    report = cover(asked)
    stream = io.StringIO()
    print_coverage(report, Console(file=stream, width=width, markup=False, highlight=False))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for word in ("MISSING", "argmax (fp32): nothing composes it", "norm-matmul", "were it native", "prefill", "decode"):
        assert word in " ".join(text.split())


def test_fusions_are_named_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = siltwin("run", "SmolLM2-135M", *SIZES, "--no-payload", "--fuse", "swiglu", "--json", str(path))
    assert result.exit_code == 0 and "fuse swiglu: 30 places, into fused_matmul; 30 fewer launches" in result.stdout
    assert [item["name"] for item in json.loads(path.read_text())["passes"]] == ["fuse swiglu"]
    wrong = siltwin("run", "SmolLM2-135M", *SIZES, "--no-payload", "--fuse", "swigglu")
    none = siltwin("run", "SmolLM2-135M", *SIZES, "--no-payload", "--fuse", ",")
    assert none.exit_code == 2 and "--fuse ',' names no fusion; choose of dequantise-matmul" in none.stderr
    assert (
        wrong.exit_code == 2
        and "--fuse 'swigglu' is no fusion; choose of dequantise-matmul, norm-matmul" in wrong.stderr
    )
