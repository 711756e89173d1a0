"""The command line parses, calls runtime and prints: names, streams and files as other tools rely on them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import Result

from siltwin.cli import cli
from siltwin.runtime.report import Report

Cli = Callable[..., Result]


def test_run_prints_the_text_first_and_exits_0(siltwin: Cli, fakes: Any) -> None:
    result = siltwin("run", "tiny", "--prompt", "Where?")
    assert result.exit_code == 0
    assert result.stdout.startswith("The capital of France is Paris.\n")
    assert "Not modelled\n - vision towers" in result.stdout
    assert result.stderr == ""


def test_every_option_reaches_the_job(siltwin: Cli, fakes: Any) -> None:
    result = siltwin(
        *("run", "m", "--card", "h100", "--cluster", "ring-8", "--layout", "tp=3,pp=2", "--dtype", "float32"),
        *("--kv-dtype", "fp16", "--prompt", "a", "--prompt", "b", "--max-new-tokens", "9", "--ignore-eos"),
        *("--temperature", "0.5", "--top-k", "4", "--top-p", "0.9", "--seed", "7", "--chunk-tokens", "16"),
        *("--engine", "simpy", "--set", "hbm.bandwidth_bytes_per_s=3.2e12", "--set", "clock_hz=2GHz"),
        *("--strict", "--raw-prompt", "--no-payload", "--scale", "--routing", "zipf:1", "--expert-room", "full"),
    )
    assert result.exit_code == 0, result.output
    job = fakes.job
    assert job.scale
    assert (job.model, job.card, job.cluster, job.layout) == ("m", "h100", "ring-8", "tp=3,pp=2")
    assert (job.dtype, job.kv_dtype, job.prompts, job.max_new_tokens) == ("float32", "fp16", ("a", "b"), 9)
    assert (job.ignore_eos, job.temperature, job.top_k, job.top_p, job.seed) == (True, 0.5, 4, 0.9, 7)
    assert (job.chunk_tokens, job.engine, job.strict, job.raw_prompt) == (16, "simpy", True, True)
    assert job.overrides == (("hbm.bandwidth_bytes_per_s", "3.2e12"), ("clock_hz", "2GHz"))
    assert (job.payload, job.logits, job.routing, job.expert_room) == (False, False, "zipf:1", "full")


def test_what_is_not_given_keeps_the_jobs_defaults(siltwin: Cli, fakes: Any) -> None:
    assert siltwin("run", "m", "--batch", "8", "--cached-len", "64", "--output-len", "2").exit_code == 0
    job = fakes.job
    assert (job.card, job.temperature, job.top_p, job.calendar, job.payload) == (
        "ascend-910b2",
        0.0,
        1.0,
        "simpy",
        True,
    )
    assert (job.batch, job.input_len, job.cached_len, job.output_len, job.prompts) == (8, None, 64, 2, ())


def test_json_to_a_file_stands_beside_the_text(siltwin: Cli, fakes: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = siltwin("run", "tiny", "--prompt", "x", "--json", str(file))
    assert result.stdout.startswith("The capital of France")
    assert Report.model_validate_json(file.read_text()) == fakes.answers("report")


def test_json_to_stdout_is_nothing_but_json(siltwin: Cli, fakes: Any) -> None:
    result = siltwin("run", "tiny", "--prompt", "x", "--json", "-")
    assert json.loads(result.stdout)["requests"][0]["text"] == "The capital of France is Paris."
    assert result.stderr == ""


def test_trace_and_logits_are_written_under_the_names_given(siltwin: Cli, fakes: Any, tmp_path: Path) -> None:
    trace, logits = tmp_path / "trace.json", tmp_path / "logits.npz.partial"
    result = siltwin("run", "tiny", "--prompt", "x", "--trace", str(trace), "--logits", str(logits))
    assert result.exit_code == 0, result.output
    assert fakes.job.logits
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["args"]["instruction"] for e in events if e["name"] == "matmul"] == ["matmul dst=%y a=%x w=%w bias=-"]
    with np.load(logits) as arrays:
        assert arrays["logits_0"].shape == (3, 4)
        assert arrays["tokens_0"].tolist() == [5, 6]


def test_out_of_memory_is_reported_with_exit_code_3(siltwin: Cli, fakes: Any, oom: Any, tmp_path: Path) -> None:
    fakes.answers("report", oom=oom, requests=())
    file = tmp_path / "report.json"
    result = siltwin("run", "tiny", "--prompt", "x", "--json", str(file))
    assert result.exit_code == 3
    assert "OUT OF MEMORY: card 1, step 1 (decode), request 3" in result.stdout
    assert result.stderr == (
        "error: out of memory on card 1: KV pages of request 3 asked for 4294967296 bytes of kv, "
        "3221225472 more would hold it\n"
    )
    assert json.loads(file.read_text())["oom"]["missing_bytes"] == 3 * 2**30


def test_align_exits_0_when_aligned_and_4_when_not(siltwin: Cli, fakes: Any) -> None:
    fakes.answers("aligned")
    result = siltwin("align", "tiny", "--prompt", "x")
    assert result.exit_code == 0 and "ALIGNED" in result.stdout
    fakes.answers("aligned", verdict="drifted", first_drift="layers.0")
    result = siltwin("align", "tiny", "--json", "-")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["first_drift"] == "layers.0"


def test_limits_leaves_the_payload_out(siltwin: Cli, fakes: Any) -> None:
    fakes.answers("limits")
    result = siltwin("limits", "tiny", "--batch", "4", "--input-len", "128")
    assert result.exit_code == 0 and "What would fit" in result.stdout
    assert (fakes.job.payload, fakes.job.batch) == (False, 4)


def test_prompt_ids_come_from_a_list_of_lists(siltwin: Cli, fakes: Any, tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text("[[1, 2, 3], [4]]")
    assert siltwin("run", "tiny", "--prompt-ids", str(file)).exit_code == 0
    assert fakes.job.prompt_ids == ((1, 2, 3), (4,))


@pytest.mark.parametrize("kind", ["report", "oom", "limits", "align", "coverage", "cards", "card", "models"])
def test_schema_prints_a_json_schema(siltwin: Cli, kind: str) -> None:
    result = siltwin("schema", "--of", kind)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["type"] == "object" and not found["additionalProperties"]


def test_cards_and_models_are_listed_as_text_and_as_json(siltwin: Cli) -> None:
    # All of the H20 is general knowledge (~), and of the H200 only what its driver reports as capacity.
    lines = [" ".join(line.split()) for line in siltwin("cards").stdout.splitlines()]
    assert "h20 78~ 1.85~ 148~ 296~ 296~ - 400~" in lines
    assert any(line.startswith("h200-sxm 50 140~ 4.80 18 450 8 ") for line in lines)
    cards = json.loads(siltwin("cards", "--json", "-").stdout)["cards"]
    h20 = {card["name"]: card for card in cards}["h20"]
    assert h20["tdp_w"] == 400 and set(h20["rests_on"].values()) == {"assumed"} and len(cards) == 17
    assert "Llama-3.1-405B" in siltwin("models").stdout
    models = json.loads(siltwin("models", "--json", "-").stdout)["models"]
    llama = next(model for model in models if model["name"] == "Llama-3.1-405B")
    assert llama["facts"]["total_params"] == 405_853_388_800


def test_one_card_or_model_is_shown_in_full(siltwin: Cli) -> None:
    card = json.loads(siltwin("cards", "h100", "--json", "-").stdout)
    assert card["card"]["hbm"]["capacity_bytes"] == 80 * 2**30
    assert card["card"]["evidence"]["hbm.capacity_bytes"]["evidence"] == "datasheet"
    assert "hbm.attainable_fraction" in siltwin("cards", "h100").stdout
    model = json.loads(siltwin("models", "Llama-3.1-405B", "--json", "-").stdout)["models"][0]
    assert model["facts"]["kv_bytes_per_token"] == 516_096


def test_an_unknown_card_or_model_is_an_error_with_the_names_there_are(siltwin: Cli) -> None:
    for command, name in (("cards", "h1000"), ("models", "smolm2")):
        result = siltwin(command, name)
        assert result.exit_code == 2 and result.stderr.startswith("error: ") and name in result.stderr


PROGRAM = """program doubling
queue vector
extent tokens
buffer x : bf16[tokens, 64] activation
buffer y : bf16[tokens, 64] activation

block double
  param a : bf16[tokens, 64]
  param b : bf16[tokens, 64]
  vector | add dst=%b a=%a b=%a
end

call double x y
"""


def test_asm_and_disasm_are_inverse(siltwin: Cli, tmp_path: Path) -> None:
    text, binary, back = tmp_path / "p.txt", tmp_path / "p.bin", tmp_path / "back.txt"
    text.write_text(PROGRAM)
    result = siltwin("asm", str(text), "-o", str(binary))
    assert result.exit_code == 0, result.output
    assert binary.read_bytes()[:4] == b"SLTW"
    assert siltwin("disasm", str(binary), "-o", str(back)).exit_code == 0
    assert back.read_text() == siltwin("disasm", str(binary)).stdout
    assert siltwin("asm", str(back)).stdout_bytes == binary.read_bytes()


def test_every_command_has_help_and_every_option_says_what_it_does(siltwin: Cli) -> None:
    assert set(cli.commands) == {
        "run",
        "align",
        "plan",
        "limits",
        "coverage",
        "cards",
        "card",
        "models",
        "cluster",
        "fabric",
        "fidelity",
        "calibrate",
        "asm",
        "disasm",
        "schema",
    }
    fabric = cli.commands["fabric"]
    assert isinstance(fabric, click.Group)
    named = [((name,), command) for name, command in cli.commands.items()]
    card = cli.commands["card"]
    assert isinstance(card, click.Group)
    for group, of in (("fabric", fabric), ("card", card)):
        named += [((group, name), command) for name, command in of.commands.items()]
    for name, command in named:
        assert siltwin(*name, "--help").exit_code == 0
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert all(option.help for option in options), name


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_loads_nothing_slow() -> None:
    code = (
        "import sys\nfrom siltwin.cli import cli\ncli(['--help'], standalone_mode=False)\n"
        "slow = {'torch', 'numba', 'transformers', 'numpy', 'pydantic', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {slow}' if slow else 0)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_not_told_anything() -> None:
    command = f"{sys.executable} -m siltwin schema | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 when all of it fitted into the pipe before head left
