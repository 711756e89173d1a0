"""Reports are versioned, strict and round-trip through JSON; their terminal text says all of it in 80 columns."""

import io
import json
import math
import runpy
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from siltwin.emulator.span import BOUNDS
from siltwin.emulator.spec import load_card
from siltwin.runtime.catalogue import card_detail, cards_report, models_report
from siltwin.runtime.progress import DelayedProgress
from siltwin.runtime.render import generated_text, print_report
from siltwin.runtime.render_align import print_align
from siltwin.runtime.render_limits import print_limits
from siltwin.runtime.render_lists import print_card, print_cards, print_models
from siltwin.runtime.report import CardReport, Report
from siltwin.runtime.report_align import AlignReport, LayerDrift
from siltwin.runtime.report_base import Bounds
from siltwin.runtime.report_limits import LimitsReport
from siltwin.runtime.schemas import DOCUMENTS, schema_of
from siltwin.runtime.terminal import console_for, digits, duration, exact_size, plain, ranges, seconds, size

examples: Any = runpy.run_path(str(Path(__file__).with_name("report_examples.py")))
GIB, MIB = 2**30, 2**20


def text_of(print_it: Any, *args: Any) -> str:
    """What a report prints on a pipe."""
    file = io.StringIO()
    print_it(*args, console_for(file))
    return file.getvalue()


def shown(report: Report) -> str:
    return text_of(print_report, report)


def row_of(text: str, *starts: str) -> str:
    """The one line that starts with these words, with single spaces."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    found = [line for line in lines if line.startswith(" ".join(starts))]
    assert len(found) == 1, (starts, found)
    return found[0]


def test_a_report_comes_back_equal_from_its_json() -> None:
    report = examples["report"](oom=examples["oom"]())
    assert Report.model_validate_json(report.to_json()) == report
    limits, align = examples["limits"](), examples["aligned"]()
    assert LimitsReport.model_validate_json(limits.to_json()) == limits
    assert AlignReport.model_validate_json(align.to_json()) == align


def test_json_has_the_keys_that_other_tools_read() -> None:
    found = json.loads(examples["report"](oom=examples["oom"]()).to_json())
    assert found["schema_version"] == 1
    assert {"model", "card", "layout", "evidence", "warnings", "oom", "cluster", "engine", "payload"} <= found.keys()
    assert {"prompt_tokens", "tokens", "text", "ttft_s", "tpot_s"} <= found["requests"][0].keys()
    assert {"kind", "start_ps", "end_ps"} <= found["steps"][0].keys()
    card = found["cards"][0]
    assert {"peak_bytes", "peak_ps", "by_tag", "units"} <= card.keys()
    assert {"busy_ps", "utilisation"} <= card["units"]["tensor"].keys()
    assert found["host"]["wall_s"] == 12.5
    assert {"largest_batch", "largest_context", "smallest_hbm_bytes", "smallest_tp"} == found["oom"]["fits"].keys()
    assert json.loads(examples["report"]().to_json())["oom"] is None


def test_only_the_host_part_tells_equal_runs_apart() -> None:
    one, other = examples["report"](), examples["report"](host=examples["HostReport"](wall_s=99.0))
    assert one.model_dump_json(exclude={"host"}) == other.model_dump_json(exclude={"host"})


def test_a_report_is_frozen_and_takes_no_key_but_its_own() -> None:
    report = examples["report"]()
    with pytest.raises(ValidationError, match="frozen"):
        report.payload = False
    with pytest.raises(ValidationError, match="Extra inputs"):
        examples["report"](colour="red")
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Bounds(compute=-1)
    with pytest.raises(ValidationError, match="finite"):
        examples["request"](ttft_s=math.nan)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_says_that_every_key_is_there(name: str) -> None:
    schema = schema_of(name)
    assert schema["required"] == list(schema["properties"])
    assert schema["additionalProperties"] is False


def test_the_largest_bound_is_the_first_among_equals_and_none_of_nothing() -> None:
    assert BOUNDS == ("compute", "hbm", "sram", "link", "dispatch", "dependency", "host")
    assert Bounds(hbm=5, link=5).largest == "hbm"
    assert Bounds(host=1).largest == "host"
    assert Bounds().largest is None
    assert Bounds(hbm=5, link=6).total_ps == 11


def test_a_figure_takes_its_evidence_by_name_before_that_of_its_group() -> None:
    report = examples["report"]()
    assert report.evidence_for("ttft_s").weakest == "assumed"
    assert report.evidence_for("peak_bytes").weakest == "datasheet"
    assert report.evidence_for("phase of the moon") is None
    own = examples["EvidenceReport"](figure="ttft_s", weakest="measured")
    assert examples["report"](evidence=(*report.evidence, own)).evidence_for("ttft_s").weakest == "measured"


def test_an_error_that_is_not_a_number_is_null() -> None:
    drift = LayerDrift(name="x", max_abs=math.nan, max_rel=math.inf, cosine=0.5)
    assert (drift.max_abs, drift.max_rel, drift.cosine) == (None, None, 0.5)
    assert "not finite" in text_of(print_align, examples["aligned"](layers=(drift,)))


def test_the_text_opens_with_what_the_model_said_and_what_is_not_modelled() -> None:
    lines = shown(examples["report"]()).splitlines()
    assert lines[0] == "The capital of France is Paris."
    assert lines[2].startswith("SmolLM2-135M-Instruct (bf16) on 2 x ascend-910b2 (pp=2)")
    assert [line.split() for line in lines[4:7]] == [
        ["Not", "modelled"],
        ["-", "vision", "towers"],
        ["-", "training", "steps"],
    ]


def test_figures_stand_with_their_evidence() -> None:
    text = shown(examples["report"]())
    assert row_of(text, "time to first token") == "time to first token 4 ms assumed"
    assert row_of(text, "time per output token") == "time per output token 1.714 ms assumed"
    assert row_of(text, "output tokens/s") == "output tokens/s 500 assumed"
    assert row_of(text, "prompt tokens/s") == "prompt tokens/s 9,250 assumed"
    assert row_of(text, "cycles") == "cycles 28,800,000 assumed"
    assert row_of(text, "memory peak of a card") == "memory peak of a card 130 MiB datasheet"
    assert row_of(text, "- time:") == "- time: assumed (dispatch.tensor_ps, hbm.latency_ps)"
    assert row_of(text, "- 2 cards of the node") == "- 2 cards of the node stay unused"


def test_an_extrapolated_figure_carries_its_mark() -> None:
    evidence = (examples["EvidenceReport"](figure="time", weakest="calibrated", extrapolated=True),)
    assert "calibrated, outside what was calibrated (!)" in shown(examples["report"](evidence=evidence))


def test_phases_and_units_say_what_held_them() -> None:
    text = shown(examples["report"]())
    assert row_of(text, "prefill") == "prefill 1 4 ms dispatch dispatch 75 %, compute 25 %"
    assert row_of(text, "decode") == "decode 7 12 ms hbm hbm 75 %, link 25 %"
    assert row_of(text, "tensor") == "tensor 25.0 % 25.0 % 25.0 % 4 ms 7,200,000"
    assert row_of(text, "link") == "link 18.8 % 12.5 % 25.0 % 1 ms -"
    assert row_of(text, "pp send") == "pp send 2 41.62 KiB 500 us"


def test_memory_shows_every_tag_of_every_card_and_cards_alike_share_a_row() -> None:
    text = shown(examples["report"]())
    assert "Memory at the peak, MiB (capacity 64 GiB, of it reserved 2 GiB)" in text
    assert row_of(text, "0-1 130") == "0-1 130 0.2 % 100 20 10"
    heavy = examples["card"](1, peak_bytes=31 * GIB, by_tag={"weight": 30 * GIB, "kv": 1 * GIB})
    text = shown(examples["report"](cards=(examples["card"](0), heavy)))
    assert "Memory at the peak, GiB" in text
    assert row_of(text, "0 0.1270") == "0 0.1270 0.2 % 0.0977 0.0195 0.0098"
    assert row_of(text, "1 31") == "1 31 50.0 % 30 1 0"


def test_many_tags_fold_into_others_and_still_sum_to_the_peak() -> None:
    by_tag = {f"tag{index}": (10 - index) * MIB for index in range(10)}
    card: CardReport = examples["card"](0, peak_bytes=55 * MIB, by_tag=by_tag)
    text = shown(examples["report"](cards=(card,)))
    assert row_of(text, "0 55") == "0 55 0.1 % 10 9 8 7 6 5 4 6"


def test_many_requests_are_numbered_and_alike_ones_share_a_row() -> None:
    request = examples["request"]
    many = (*(request(text=f"answer {i}") for i in range(3)), request(text=None, tpot_s=None, finish_reason=None))
    text = shown(examples["report"](requests=many))
    assert text.startswith("[0]\nanswer 0\n[1]\nanswer 1\n[2]\nanswer 2\n\n")
    assert row_of(text, "0-2 0") == "0-2 0 37 8 4 ms 1.714 ms stop"
    assert row_of(text, "3 0") == "3 0 37 8 4 ms - -"
    crowd = tuple(request(text=None, prompt_tokens=index) for index in range(40))
    assert row_of(shown(examples["report"](requests=crowd)), "24 more") == "24 more"


def test_a_run_without_text_opens_with_its_headline() -> None:
    for text in (None, ""):
        assert shown(examples["report"](requests=(examples["request"](text=text),))).startswith("SmolLM2-135M")


def test_an_oom_tells_where_what_and_what_would_fit() -> None:
    text = shown(examples["report"](oom=examples["oom"]()))
    assert "OUT OF MEMORY: card 1, step 1 (decode), request 3, at 4 ms" in text
    assert "KV pages of request 3 asked for 4,294,967,296 B (4 GiB) of kv; 3,221,225,472 B" in text
    assert "Instruction: ATTENTION q, kv.0 -> out" in text
    assert row_of(text, "weight 53") == "weight 53,687,091,200 B (50 GiB) 78.1 %"
    assert sum(line.startswith(" layer ") for line in text.splitlines()) == 10
    assert row_of(text, "largest batch") == "largest batch 3 sequences"
    assert row_of(text, "largest context") == "largest context none fits"
    assert row_of(text, "smallest HBM") == "smallest HBM a card 71,940,702,208 B (67 GiB)"
    assert row_of(text, "smallest tp") == "smallest tp 2"
    loading = examples["oom"](step=None, step_kind="load", request=None, instruction=None)
    assert "Simulated" in text and "Utilisation of each unit" in text and " - time: assumed" in text
    text = shown(examples["report"](oom=loading, steps=()))
    assert "OUT OF MEMORY: card 1 (load), at 4 ms" in text and "Memory at the peak" in text and " - memory: " in text
    assert not any(words in text for words in ("Simulated", "Utilisation of each unit", "What held", " - time:"))


def test_limits_are_exact_to_the_byte() -> None:
    text = text_of(print_limits, examples["limits"]())
    assert "4 sequences of 1,024 prompt and 128 output tokens: fits." in text
    assert row_of(text, "0-1") == "0-1 3,221,225,472 B (3 GiB) 4.7 % 64 GiB 2 GiB"
    assert row_of(text, "largest context") == "largest context 8,192 tokens a sequence"
    assert "does NOT fit" in text_of(print_limits, examples["limits"](fits_as_asked=False))


def test_an_alignment_ends_in_its_verdict() -> None:
    text = text_of(print_align, examples["aligned"]())
    assert row_of(text, "layers.1") == "layers.1 3.00e-06 4.00e-06 0.99999999"
    assert row_of(text, "First layer") == "First layer that drifts: none"
    assert "ALIGNED: tolerance 0.0001" in text
    drifted = examples["aligned"](verdict="drifted", first_drift="layers.1")
    assert "First layer that drifts: layers.1\nDRIFTED" in text_of(print_align, drifted)


def everything() -> list[str]:
    crowd = tuple(examples["request"](text="word " * 40, prompt_tokens=10**6 + index) for index in range(3))
    long = examples["report"](oom=examples["oom"](owner="o" * 200), requests=crowd)
    return [
        shown(examples["report"]()),
        shown(long),
        text_of(print_limits, examples["limits"]()),
        text_of(print_align, examples["aligned"]()),
        text_of(print_cards, cards_report()),
        text_of(print_card, card_detail("ascend-910b2")),
        text_of(print_models, models_report()),
    ]


def test_nothing_is_wider_than_80_columns_or_coloured_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for text in everything():
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "\x1b" not in text and "…" not in text


def test_generated_text_cannot_command_the_terminal() -> None:
    hostile = "red \x1b[31m \x07 \u202e end\nnext\ttab [bold]not markup[/bold] :smile: 👩‍💻"
    found = "".join(
        part.plain for part in generated_text(examples["report"](requests=(examples["request"](text=hostile),)))
    )
    assert found == "red \\x1b[31m \\x07 \\u202e end\nnext\ttab [bold]not markup[/bold] :smile: 👩‍💻"
    assert "[bold]not markup[/bold] :smile:" in shown(examples["report"](requests=(examples["request"](text=hostile),)))


def test_values_are_written_with_a_unit_that_suits_them() -> None:
    assert [duration(ps) for ps in (0, 999, 1000, 1_234_567, 2 * 10**12)] == [
        "0 ps",
        "999 ps",
        "1 ns",
        "1.235 us",
        "2 s",
    ]
    assert [seconds(s) for s in (None, 0.0, 0.25, 61.5)] == ["-", "0 ps", "250 ms", "61.50 s"]
    assert [size(b) for b in (0, 1023, 1024, 3 * GIB // 2)] == ["0 B", "1,023 B", "1 KiB", "1.500 GiB"]
    assert exact_size(1536) == "1,536 B (1.500 KiB)"
    assert [digits(v) for v in (0, 1234567, 1234.6, 123.45, 12.345, 1.2345, 0.01234, 0.000123)] == [
        *("0", "1.23e+06", "1,235", "123.5", "12.35", "1.234", "0.0123", "0.000123")
    ]
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert plain("\x00\ud800") == "\\x00\\ud800"


def test_every_number_of_a_card_is_listed_with_its_source() -> None:
    card = load_card("ascend-910b2")
    listed = {path: evidence for path, _, evidence in card_detail("ascend-910b2").rows()}
    assert set(card.evidence) <= set(listed)
    assert listed["hbm.capacity_bytes"] == card.evidence["hbm.capacity_bytes"]


def test_the_shelf_says_why_a_model_is_refused() -> None:
    models = {entry.name: entry for entry in models_report().models}
    refused = models["LongCat-Flash"]
    assert not refused.supported and refused.facts is None
    assert refused.why_not is not None and "multi-head latent attention" in refused.why_not
    llama = models["Llama-3.1-405B"].facts
    assert llama is not None and (llama.total_params, llama.kv_bytes_per_token) == (405_853_388_800, 516_096)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def watch(file: io.StringIO, work_s: float, quiet_s: float) -> str:
    with DelayedProgress(file, "loading", quiet_s) as progress:
        progress(1, 4, "step 1, decode")
        time.sleep(work_s)
    return file.getvalue()


def test_progress_shows_only_on_a_terminal_and_only_when_work_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "step 1, decode" in watch(Terminal(), work_s=0.4, quiet_s=0.05)
    assert watch(Terminal(), work_s=0.0, quiet_s=5.0) == ""
    assert watch(io.StringIO(), work_s=0.1, quiet_s=0.01) == ""
