"""The command line parses, calls runtime and prints: streams, files and exit codes as other tools rely on them."""

import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from siltwin.cli import cli
from siltwin.isa.errors import ConfigError, SiltwinError
from siltwin.runtime.report import (
    CardPart,
    ClusterPart,
    Fits,
    HostReport,
    LayoutPart,
    ModelPart,
    OomReport,
    Phases,
    Report,
    RequestReport,
    Totals,
)
from siltwin.runtime.report_align import AlignReport, LogitsDrift
from siltwin.runtime.report_limits import JobSizes, LimitsReport

COMMON: dict[str, Any] = {
    "model": ModelPart(
        name="tiny", family="llama", total_params=1000, dtype="bf16", kv_dtype="bf16", source="x", num_layers=2
    ),
    "card": CardPart(name="reference-npu", description="a card", weakest_evidence="assumed"),
    "cluster": ClusterPart(name="single", kind="single", cards_used=1),
    "layout": LayoutPart(tp=1, pp=1, cards=1),
    "host": HostReport(wall_s=1.0),
}
FITS = Fits(largest_batch=1, largest_context=64, smallest_hbm_bytes=4096, smallest_tp=1)


def report(**changes: Any) -> Report:
    request = RequestReport(
        prompt_tokens=3,
        tokens=(5, 6),
        output_tokens=2,
        text="Paris.",
        ttft_s=0.25,
        tpot_s=0.125,
        finish_reason="length",
    )
    totals = Totals(
        elapsed_ps=375 * 10**9,
        ttft_max_s=0.25,
        ttft_mean_s=0.25,
        tpot_mean_s=0.125,
        output_tokens_per_s=5.333,
        prompt_tokens_per_s=12.0,
        cycles=1,
    )
    values: dict[str, Any] = COMMON | {
        "engine": "simpy",
        "payload": True,
        "requests": (request,),
        "steps": (),
        "cards": (),
        "totals": totals,
        "phases": Phases(),
        "evidence": (),
        "warnings": (),
        "not_modelled": ("training steps",),
    }
    return Report(**(values | changes))


OOM = OomReport(
    card=2,
    time_ps=7,
    step=0,
    step_kind="prefill",
    instruction=None,
    request=None,
    tag="kv",
    owner="KV pages of request 0",
    requested_bytes=1024,
    missing_bytes=512,
    capacity_bytes=4096,
    reserved_bytes=0,
    free_bytes=512,
    largest_hole_bytes=512,
    largest_live=(),
    by_tag={"weight": 3584},
    fits=FITS,
)


class FakeSpan(NamedTuple):
    card: int = 0
    queue: str = "tensor"
    call: int = 0
    position: int = 0
    mnemonic: str = "MATMUL"
    issue_ps: int = 0
    start_ps: int = 1
    end_ps: int = 9
    bound: str = "hbm"
    late: int = -1


class FakeResult:
    """What run_job gives back."""

    def __init__(self, made: Report) -> None:
        self.report = made
        self.records = [types.SimpleNamespace(spans=(FakeSpan(),))]
        self.memory = {0: [(0, 512, "weight")]}
        self.logits = {"logits_0": np.ones((3, 4), np.float32), "tokens_0": np.array([5, 6])}

    def instruction_of(self, record: object, span: FakeSpan) -> tuple[str, str]:
        return "layer", "MATMUL y, x, w"


def aligned(verdict: str = "aligned") -> AlignReport:
    return AlignReport(
        **COMMON,
        reference="transformers",
        positions=3,
        layers=(),
        logits=LogitsDrift(max_abs=0.0, max_rel=0.0, cosine=1.0, kl=0.0, argmax_agreement=1.0),
        first_drift=None if verdict == "aligned" else "layers.0",
        tolerance=1e-4,
        tolerance_of="max abs over the standard deviation",
        verdict=verdict,
    )


def limits() -> LimitsReport:
    return LimitsReport(
        **COMMON,
        job=JobSizes(batch=1, prompt_tokens=3, output_tokens=2),
        fits_as_asked=True,
        granule_bytes=512,
        cards=(),
        fits=FITS,
    )


class Fakes:
    """Stands in for the runtime: keeps the job it was given, and answers or raises what it is told to."""

    def __init__(self) -> None:
        self.job: Any = None
        self.answer: Callable[[], Any] = lambda: FakeResult(report())

    def __call__(self, job: Any, progress: Callable[[int, int | None, str], None] | None = None) -> Any:
        self.job = job
        if progress:
            progress(0, None, "reading the model")
        return self.answer()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fake = Fakes()
    for module, function in (("run", "run_job"), ("align", "align"), ("limits", "find_limits")):
        stand_in = types.ModuleType(f"siltwin.runtime.{module}")
        setattr(stand_in, function, fake)
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return fake


def siltwin(*args: str, **env: str) -> Result:
    return CliRunner().invoke(cli, args, env={"SILTWIN_DEBUG": None, **env}, standalone_mode=True)


def test_run_prints_the_text_first_and_exits_0(fakes: Fakes) -> None:
    result = siltwin("run", "tiny", "--prompt", "Where?")
    assert result.exit_code == 0
    assert result.stdout.startswith("Paris.\n")
    assert "Not modelled: training steps." in result.stdout
    assert result.stderr == ""


def test_every_option_reaches_the_job(fakes: Fakes) -> None:
    result = siltwin(
        *("run", "m", "--card", "h100", "--cluster", "ring-8", "--layout", "tp=3,pp=2", "--dtype", "float32"),
        *("--kv-dtype", "fp16", "--prompt", "a", "--prompt", "b", "--max-new-tokens", "9", "--ignore-eos"),
        *("--temperature", "0.5", "--top-k", "4", "--top-p", "0.9", "--seed", "7", "--chunk-tokens", "16"),
        *("--engine", "simpy", "--set", "hbm.bandwidth_bytes_per_s=3.2e12", "--set", "clock_hz=2GHz"),
        *("--strict", "--raw-prompt", "--no-payload"),
    )
    assert result.exit_code == 0, result.output
    job = fakes.job
    assert (job.model, job.card, job.cluster, job.layout) == ("m", "h100", "ring-8", "tp=3,pp=2")
    assert (job.dtype, job.kv_dtype, job.prompts, job.max_new_tokens) == ("float32", "fp16", ("a", "b"), 9)
    assert (job.ignore_eos, job.temperature, job.top_k, job.top_p, job.seed) == (True, 0.5, 4, 0.9, 7)
    assert (job.chunk_tokens, job.engine, job.strict, job.raw_prompt) == (16, "simpy", True, True)
    assert job.overrides == (("hbm.bandwidth_bytes_per_s", "3.2e12"), ("clock_hz", "2GHz"))
    assert (job.payload, job.logits) == (False, False)


def test_what_is_not_given_keeps_the_jobs_defaults(fakes: Fakes) -> None:
    assert siltwin("run", "m", "--batch", "8", "--cached-len", "64", "--output-len", "2").exit_code == 0
    job = fakes.job
    assert (job.card, job.temperature, job.top_p, job.engine, job.payload) == ("ascend-910b2", 0.0, 1.0, "simpy", True)
    assert (job.batch, job.input_len, job.cached_len, job.output_len, job.prompts) == (8, None, 64, 2, ())


def test_json_to_a_file_stands_beside_the_text(fakes: Fakes, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = siltwin("run", "tiny", "--prompt", "x", "--json", str(file))
    assert result.stdout.startswith("Paris.")
    assert Report.model_validate_json(file.read_text()) == report()


def test_json_to_stdout_is_nothing_but_json(fakes: Fakes) -> None:
    result = siltwin("run", "tiny", "--prompt", "x", "--json", "-")
    assert json.loads(result.stdout)["requests"][0]["text"] == "Paris."
    assert result.stderr == ""


def test_trace_and_logits_are_written_under_the_names_given(fakes: Fakes, tmp_path: Path) -> None:
    trace, logits = tmp_path / "trace.json", tmp_path / "logits.npz.partial"
    result = siltwin("run", "tiny", "--prompt", "x", "--trace", str(trace), "--logits", str(logits))
    assert result.exit_code == 0, result.output
    assert fakes.job.logits
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["args"]["instruction"] for e in events if e["ph"] == "X"] == ["MATMUL y, x, w"]
    with np.load(logits) as arrays:
        assert arrays["logits_0"].shape == (3, 4)
        assert arrays["tokens_0"].tolist() == [5, 6]


def test_out_of_memory_is_reported_with_exit_code_3(fakes: Fakes, tmp_path: Path) -> None:
    fakes.answer = lambda: FakeResult(report(oom=OOM, requests=()))
    file = tmp_path / "report.json"
    result = siltwin("run", "tiny", "--prompt", "x", "--json", str(file))
    assert result.exit_code == 3
    assert "OUT OF MEMORY: card 2, step 0 (prefill)" in result.stdout
    assert result.stderr == (
        "error: out of memory on card 2: KV pages of request 0 asked for 1024 bytes of kv, 512 more would hold it\n"
    )
    assert json.loads(file.read_text())["oom"]["missing_bytes"] == 512


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_an_error_is_one_line_on_stderr_and_its_own_exit_code(fakes: Fakes, code: int) -> None:
    class Failed(SiltwinError):
        exit_code = code

    def fail() -> None:
        raise Failed("tp=2 does not divide 9 heads")

    fakes.answer = fail
    result = siltwin("run", "tiny", "--prompt", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "error: tp=2 does not divide 9 heads\n")


def test_a_bug_of_ours_exits_1_and_says_how_to_see_the_traceback(fakes: Fakes) -> None:
    fakes.answer = lambda: {}["gone"]
    result = siltwin("run", "tiny", "--prompt", "x")
    assert result.exit_code == 1
    assert result.stderr.startswith("internal error: KeyError: 'gone'\n")
    assert "SILTWIN_DEBUG=1" in result.stderr and "Traceback" not in result.stderr
    assert "Traceback" in siltwin("run", "tiny", "--prompt", "x", SILTWIN_DEBUG="1").stderr


def test_an_interrupt_exits_130_without_a_traceback(fakes: Fakes) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    fakes.answer = interrupt
    result = siltwin("run", "tiny", "--prompt", "x")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_an_error_cannot_command_the_terminal(fakes: Fakes) -> None:
    def fail() -> None:
        raise ConfigError("no model \x1b[31mred")

    fakes.answer = fail
    assert siltwin("run", "tiny", "--prompt", "x").stderr == "error: no model \\x1b[31mred\n"


def test_align_exits_0_when_aligned_and_4_when_not(fakes: Fakes) -> None:
    fakes.answer = aligned
    result = siltwin("align", "tiny", "--prompt", "x")
    assert result.exit_code == 0 and "ALIGNED" in result.stdout
    fakes.answer = lambda: aligned("drifted")
    result = siltwin("align", "tiny", "--json", "-")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["first_drift"] == "layers.0"


def test_limits_leaves_the_payload_out(fakes: Fakes) -> None:
    fakes.answer = limits
    result = siltwin("limits", "tiny", "--batch", "4", "--input-len", "128")
    assert result.exit_code == 0 and "What would fit" in result.stdout
    assert (fakes.job.payload, fakes.job.batch) == (False, 4)


WRONG = {
    "nothing after a set": (("--set", "clock_hz"), "--set 'clock_hz' is not key=value"),
    "no key before a set": (("--set", "=3"), "--set '=3' is not key=value"),
    "prompt and batch": (("--batch", "2"), "--prompt and --batch are given"),
    "output length alone": (("--output-len", "2"), "--output-len sizes the sequences of --batch N"),
    "negative new tokens": (("--max-new-tokens", "-1"), "--max-new-tokens=-1 must be from 1"),
    "no chunk": (("--chunk-tokens", "0"), "--chunk-tokens=0 must be from 1"),
    "cold": (("--temperature", "-0.5"), "--temperature=-0.5 must be 0 (greedy) or a positive number"),
    "not a temperature": (("--temperature", "nan"), "--temperature=nan must be"),
    "top-p of nothing": (("--top-p", "0"), "--top-p=0.0 must be above 0 and at most 1"),
    "top-p of more than all": (("--top-p", "1.5"), "--top-p=1.5 must be above 0 and at most 1"),
    "negative top-k": (("--top-k", "-1"), "--top-k=-1 must be from 0"),
    "negative seed": (("--seed", "-1"), "--seed=-1 must be from 0"),
    "compiled": (("--engine", "compiled"), "comes with a later version"),
    "logits of no payload": (("--no-payload", "--logits", "x.npz"), "logits need the payload"),
    "trace to stdout": (("--trace", "-"), "stdout is for the report"),
    "json into a directory": (("--json", "."), "cannot write '.': it is a directory"),
    "json into nowhere": (("--json", "no/where.json"), "there is no directory 'no'"),
}


@pytest.mark.parametrize("options, message", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_option_is_refused_before_anything_runs(fakes: Fakes, options: tuple[str, ...], message: str) -> None:
    result = siltwin("run", "tiny", "--prompt", "x", *options)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert fakes.job is None


@pytest.mark.parametrize("options", [("--batch", "many"), ("--engine", "magic"), ("--no-such-option",), ("stray",)])
def test_what_click_refuses_exits_2_with_the_usage(fakes: Fakes, options: tuple[str, ...]) -> None:
    result = siltwin("run", "tiny", *options)
    assert result.exit_code == 2 and result.stderr.startswith("Usage: ")


def test_prompt_ids_come_from_a_list_of_lists(fakes: Fakes, tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text("[[1, 2, 3], [4]]")
    assert siltwin("run", "tiny", "--prompt-ids", str(file)).exit_code == 0
    assert fakes.job.prompt_ids == ((1, 2, 3), (4,))


BAD_IDS = {
    "not json": ("[[1,", "not valid JSON"),
    "flat": ("[1, 2]", "a list of lists of token ids"),
    "an object": ('{"a": 1}', "a list of lists of token ids"),
    "nothing": ("[]", "a list of lists of token ids"),
    "an empty prompt": ("[[1], []]", "prompt 1 is empty"),
    "a float": ("[[1, 2.0]]", "prompt 0 holds 2.0"),
    "a bool": ("[[true]]", "prompt 0 holds True"),
    "text": ('[["a"]]', "prompt 0 holds 'a'"),
    "deep": ("[" * 100_000, "not valid JSON"),
}


@pytest.mark.parametrize("text, message", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_prompt_ids_of_another_form_are_refused(fakes: Fakes, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "ids.json"
    file.write_text(text)
    result = siltwin("run", "tiny", "--prompt-ids", str(file))
    assert result.exit_code == 2 and message in result.stderr and str(file) in result.stderr


def test_a_file_that_is_not_there_or_not_text_is_an_error_with_its_name(fakes: Fakes, tmp_path: Path) -> None:
    result = siltwin("run", "tiny", "--prompt-ids", "gone.json")
    assert (result.exit_code, result.stderr) == (2, "error: cannot read 'gone.json': No such file or directory\n")
    file = tmp_path / "latin.json"
    file.write_bytes(b"[[\xff]]")
    assert "not UTF-8 text (byte 2)" in siltwin("run", "tiny", "--prompt-ids", str(file)).stderr


@pytest.mark.parametrize("kind", ["report", "oom", "limits", "align", "cards", "card", "models"])
def test_schema_prints_a_json_schema(kind: str) -> None:
    result = siltwin("schema", "--of", kind)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["type"] == "object" and not found["additionalProperties"]


def test_cards_and_models_are_listed_as_text_and_as_json() -> None:
    assert "ascend-910b2" in siltwin("cards").stdout
    cards = json.loads(siltwin("cards", "--json", "-").stdout)["cards"]
    assert {card["name"] for card in cards} >= {"ascend-910b2", "ascend-910c", "h100-sxm", "a100-sxm", "reference-npu"}
    assert "Llama-3.1-405B" in siltwin("models").stdout
    models = json.loads(siltwin("models", "--json", "-").stdout)["models"]
    llama = next(model for model in models if model["name"] == "Llama-3.1-405B")
    assert llama["facts"]["total_params"] == 405_853_388_800


def test_one_card_or_model_is_shown_in_full() -> None:
    card = json.loads(siltwin("cards", "h100", "--json", "-").stdout)
    assert card["card"]["hbm"]["capacity_bytes"] == 80 * 2**30
    assert card["card"]["evidence"]["hbm.capacity_bytes"]["evidence"] == "datasheet"
    assert "hbm.attainable_fraction" in siltwin("cards", "h100").stdout
    model = json.loads(siltwin("models", "Llama-3.1-405B", "--json", "-").stdout)["models"][0]
    assert model["facts"]["kv_bytes_per_token"] == 516_096


def test_an_unknown_card_or_model_is_an_error_with_the_names_there_are() -> None:
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


def test_asm_and_disasm_are_inverse(tmp_path: Path) -> None:
    text, binary, back = tmp_path / "p.txt", tmp_path / "p.bin", tmp_path / "back.txt"
    text.write_text(PROGRAM)
    result = siltwin("asm", str(text), "-o", str(binary))
    assert result.exit_code == 0, result.output
    assert binary.read_bytes()[:4] == b"SLTW"
    assert siltwin("disasm", str(binary), "-o", str(back)).exit_code == 0
    assert back.read_text() == siltwin("disasm", str(binary)).stdout
    assert siltwin("asm", str(back)).stdout_bytes == binary.read_bytes()


def test_garbage_is_no_program(tmp_path: Path) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(bytes(range(256)))
    for command in ("asm", "disasm"):
        result = siltwin(command, str(file))
        assert result.exit_code == 2 and result.stderr.startswith("error: ")
    file.write_text("program p\nnonsense here")
    assert "line 2" in siltwin("asm", str(file)).stderr


def test_every_command_has_help_and_every_option_says_what_it_does() -> None:
    assert set(cli.commands) == {"run", "align", "limits", "cards", "models", "asm", "disasm", "schema"}
    for name, command in cli.commands.items():
        assert siltwin(name, "--help").exit_code == 0
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert all(option.help for option in options), name


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_is_fast_and_loads_nothing_slow() -> None:
    code = (
        "import sys\nfrom siltwin.cli import cli\ncli(['--help'], standalone_mode=False)\n"
        "slow = {'torch', 'numba', 'transformers', 'numpy', 'pydantic', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {slow}' if slow else 0)"
    )
    took_s = []
    for _ in range(3):
        started = time.perf_counter()
        done = python(code)
        took_s.append(time.perf_counter() - started)
        assert done.returncode == 0, done.stderr
    assert min(took_s) < 0.4


def test_a_reader_that_goes_away_is_not_told_anything() -> None:
    command = f"{sys.executable} -m siltwin schema | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 when all of it fitted into the pipe before head left


def test_an_output_without_room_is_the_users_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    result = siltwin("cards", "--json", "/dev/full")
    assert (result.exit_code, result.stderr) == (2, "error: cannot write '/dev/full': No space left on device\n")
