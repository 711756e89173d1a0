"""align's other questions: quantised weights and a baseline beside, perplexity, extremes, drift by position."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from checkpoints import save  # noqa: E402
from latent_checkpoints import save_latent  # noqa: E402
from planted import Weights, plant  # noqa: E402

from siltwin.cli import cli  # noqa: E402
from siltwin.isa.errors import ConfigError  # noqa: E402
from siltwin.models.checkpoint import open_checkpoint  # noqa: E402
from siltwin.runtime import align as align_room  # noqa: E402
from siltwin.runtime.align import align  # noqa: E402
from siltwin.runtime.align_ask import AlignAsk  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.reference import open_reference  # noqa: E402
from siltwin.runtime.report_align import AlignReport  # noqa: E402
from siltwin.runtime.texts import _cut  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 8}
MOE = SIZES | {"moe_intermediate_size": 128, "num_experts": 6}
DTYPES = ["float32", "bfloat16", "float16"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("beside"), "llama", 0, **SIZES)


def job(path: Path, dtype: str, **changes: Any) -> Job:
    return Job(str(path), dtype=dtype, **{"kv_dtype": dtype, "layout": "tp=2", **changes})


SCHEMES = [("int4", 32), ("int8", None), ("fp8", None), ("mxfp4", None), ("mxfp8", None)]


@pytest.mark.parametrize(("weights", "group"), SCHEMES)
def test_quantised_weights_align_with_what_their_codes_mean_and_their_cost_stands_beside(
    llama: Path, weights: str, group: int | None
) -> None:
    report = align(job(llama, "float32", weights=weights, group=group), AlignAsk(baseline="bf16"))
    assert report.verdict == "aligned" and (report.logits.max_rel or 1) < 1e-4
    assert report.reference.endswith("on the weights as held")
    cost, baseline = report.cost, report.baseline
    assert cost is not None and baseline is not None
    assert cost.against == baseline.against and cost.against.endswith("own weights")
    assert len(cost.layers) == len(baseline.layers) == len(report.layers) == 4
    assert (cost.logits.rms_rel or 0) > 1e-3  # what rounding to a few bits costs
    assert 1e-3 < (baseline.logits.rms_rel or 0) < 0.1
    if weights in ("int4", "mxfp4"):
        assert (cost.logits.kl or 0) > 10 * (baseline.logits.kl or 1)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_quantised_experts_align_whether_apart_or_fused_and_turned(tmp_path: Path, family: str) -> None:
    path = save(tmp_path, family, 0, **(MOE if family == "qwen3_moe" else SIZES | {"num_local_experts": 6}))
    report = align(job(path, "float32", weights="mxfp4", layout="tp=4,ep=2"), AlignAsk(forced_routing=True))
    assert report.verdict == "aligned" and (report.logits.max_rel or 1) < 1e-4
    assert report.cost is not None and (report.cost.logits.rms_rel or 0) > 1e-2


def test_a_fault_in_one_quantised_layer_is_named(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(config: Weights, weights: Weights) -> None:
        row = weights["model.layers.1.mlp.up_proj.weight"][9]
        row[:] = -row

    damaged = plant(llama, tmp_path / "damaged", fault, monkeypatch)
    sound = job(llama, "bfloat16", weights="int8")
    held = align_room.held_checkpoint  # the reference reads the sound weights, as the cards would hold them
    monkeypatch.setattr(align_room, "held_checkpoint", lambda plan, _: held(plan, open_checkpoint(llama)))
    monkeypatch.setattr(align_room, "open_reference", open_reference)
    assert align(sound).verdict == "aligned"
    report = align(job(damaged, "bfloat16", weights="int8"))
    assert (report.verdict, report.first_drift) == ("drifted", "layer 1")


def test_the_baseline_follows_the_tokens_of_the_run(llama: Path) -> None:
    """Seeded ids of one length and the tokens that the quantised run generated: as many positions on both sides."""
    asked = job(llama, "bfloat16", weights="int4", group=32, batch=2, input_len=5, output_len=20)
    report = align(asked, AlignAsk(baseline="fp16"))
    assert report.positions == 50 and report.baseline is not None
    assert report.baseline.of == "fp16 on the same cards"
    assert (report.baseline.logits.max_rel or 1) < 0.05  # other tokens would be a whole unit away
    plain = align(job(llama, "float32", kv_dtype="float32"), AlignAsk(baseline="bf16"))
    assert plain.cost is None and plain.baseline is not None and plain.verdict == "aligned"


def test_a_baseline_that_is_the_run_itself_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match="--baseline bf16 is the run itself; give --weights"):
        align(job(llama, "bfloat16"), AlignAsk(baseline="bf16"))
    with pytest.raises(ConfigError, match="--baseline 'int8' must be bf16 or fp16"):
        AlignAsk(baseline="int8")


def test_windows_predict_every_token_once_but_the_first() -> None:
    plain = _cut(list(range(10)), 4, 4)
    assert plain.ids == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9)) and plain.first == (1, 1, 1)
    assert plain.scored == 7  # nothing precedes 0, 4 and 8
    sliding = _cut(list(range(10)), 4, 2)
    assert sliding.ids == ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9)) and sliding.first == (1, 2, 2, 2)
    assert sliding.scored == 9  # all but the very first
    assert _cut([1, 2, 3, 4, 5], 4, 4).ids == ((1, 2, 3, 4),)  # a last token alone has nothing before it


def text_file(directory: Path, tokens: int) -> Path:
    file = directory / "text.json"
    file.write_text(json.dumps([int(token) for token in np.random.default_rng(3).integers(0, 131, tokens)]))
    return file


@pytest.mark.parametrize(("window", "stride"), [(40, 40), (64, 24)])
def test_perplexity_is_that_of_transformers_own_loss_over_the_windows(
    llama: Path, tmp_path: Path, window: int, stride: int
) -> None:
    from transformers import AutoModelForCausalLM

    file = text_file(tmp_path, 150)
    report = align(job(llama, "float32"), AlignAsk(text=str(file), window=window, stride=stride))
    ids, model = json.loads(file.read_text()), AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    losses, known = [], 0
    for start in range(0, len(ids), stride):
        part = torch.tensor([ids[start : start + window]])
        labels = part.clone()
        labels[:, : max(1, known - start)] = -100  # the first token, and what an earlier window predicted
        with torch.no_grad():
            loss = model(part, labels=labels).loss
        losses += [float(loss)] * int((labels[:, 1:] != -100).sum())
        known = start + part.shape[1]
        if known >= len(ids):
            break
    text = report.text
    assert text is not None and report.verdict == "aligned"
    assert (text.tokens, text.window, text.stride) == (len(losses), window, stride)
    expected = math.exp(sum(losses) / len(losses))
    assert text.perplexity == pytest.approx(expected, rel=1e-4)
    assert text.reference_perplexity == pytest.approx(expected, rel=1e-5)


def test_a_text_that_cannot_be_read_is_refused_by_what_is_wrong_with_it(llama: Path, tmp_path: Path) -> None:
    for content, match in (
        ("{}", "wants a list of token ids"),
        ("[1, true]", "wants a list of token ids"),
        ("[1, 131]", "token id 131 is outside the vocabulary, 0 to 130"),
        ("[1", "not valid JSON"),
        ("[1]", "--text has 1 tokens; a next token can be predicted from 2 on"),
    ):
        file = tmp_path / "bad.json"
        file.write_text(content)
        with pytest.raises(ConfigError, match=match):
            align(job(llama, "float32"), AlignAsk(text=str(file)))
    with pytest.raises(ConfigError, match="'missing.txt' is no file that is there, and looks like one"):
        align(job(llama, "float32"), AlignAsk(text="missing.txt"))
    with pytest.raises(ConfigError, match="is a directory; give a file or some text"):
        align(job(llama, "float32"), AlignAsk(text=str(tmp_path)))
    with pytest.raises(ConfigError, match="has no tokenizer"):
        align(job(llama, "float32"), AlignAsk(text="Plain words, and no tokenizer"))
    with pytest.raises(ConfigError, match="--window 400 passes the model's 128 positions"):
        align(job(llama, "float32"), AlignAsk(text=str(text_file(tmp_path, 9)), window=400))
    with pytest.raises(ConfigError, match="--text brings its own sequences; leave out --prompt"):
        align(job(llama, "float32", batch=1, input_len=3), AlignAsk(text=str(text_file(tmp_path, 9))))
    with pytest.raises(ConfigError, match="--stride 9 leaves tokens between windows of 8"):
        AlignAsk(text="x y", window=8, stride=9)
    with pytest.raises(ConfigError, match="--window cuts the text of --text; give --text too"):
        AlignAsk(window=8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt_oss", marks=pytest.mark.long)])
def test_honest_models_stand_extreme_inputs_in_every_dtype(tmp_path: Path, family: str, dtype: str) -> None:
    report = align(job(save(tmp_path, family, 2), dtype), AlignAsk(extreme=True, forced_routing=family == "gpt_oss"))
    names = [case.name for case in report.extremes]
    assert names[:4] == [
        "longest prompt (121 tokens)",
        "one token",
        "one token again and again",
        "both ends of the vocabulary",
    ]
    assert names[-1].startswith("large activations (embedding x ")
    assert [case.verdict for case in report.extremes] == ["aligned"] * len(names)
    assert [case.positions for case in report.extremes[:2]] == [128, 8]
    assert report.verdict == "aligned" and report.not_finite is None


def last_id_damaged(config: Weights, weights: Weights) -> None:
    weights["model.embed_tokens.weight"][130] *= 1.5


def test_a_fault_at_the_end_of_the_vocabulary_is_found_by_extremes_alone(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = plant(llama, tmp_path / "damaged", last_id_damaged, monkeypatch)
    usual = align(job(damaged, "bfloat16", prompt_ids=((3, 4, 5), (6, 7))))
    assert usual.verdict == "aligned"  # the token does not come
    report = align(job(damaged, "bfloat16"), AlignAsk(extreme=True))
    verdicts = {case.name: case.first_drift for case in report.extremes}
    assert verdicts["both ends of the vocabulary"] == "embedding"
    assert report.verdict == "drifted"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["tp=2", "pp=2"])
def test_the_curve_covers_every_position_and_honest_models_stay_within_bounds(
    llama: Path, dtype: str, layout: str
) -> None:
    report = align(job(llama, dtype, layout=layout), AlignAsk(drift=100))
    assert [(bucket.start, bucket.stop) for bucket in report.curve] == [
        (start, min(start + 7, 100)) for start in range(0, 100, 7)
    ]
    assert sum(bucket.positions for bucket in report.curve) == report.positions == 100
    assert report.verdict == "aligned"
    assert max(bucket.max_rel or 9 for bucket in report.curve) == pytest.approx(report.logits.max_rel)
    rms = math.sqrt(sum(bucket.positions * (bucket.rms_rel or 9) ** 2 for bucket in report.curve) / 100)
    assert rms == pytest.approx(report.logits.rms_rel)


def test_a_fault_that_grows_with_the_position_shows_where_it_begins(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slightly other rope: near positions are as before, far ones are not."""

    def fault(config: Weights, weights: Weights) -> None:
        config["rope_parameters"]["rope_theta"] *= 1.02

    damaged = plant(llama, tmp_path / "damaged", fault, monkeypatch)
    report = align(job(damaged, "float32"), AlignAsk(drift=128))
    errors = [bucket.rms_rel or 0 for bucket in report.curve]
    assert report.verdict == "drifted" and len(errors) == 16
    assert min(errors[8:]) > 2 * errors[0]


def test_a_fault_in_a_few_positions_of_many_is_named_by_its_bucket(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that the worst noise of all positions would cover, in positions whose own noise is small."""
    real = align_room._align

    def disturbed(prepared: Any, ask: AlignAsk) -> Any:
        found = real(prepared, ask)
        sides = found.sides
        noise = sides.rounded.logits - sides.theirs.logits
        noise[:50] *= 1e-3  # the reference hardly rounds the first half
        sides.rounded.logits[:] = sides.theirs.logits + noise
        sides.mine.logits[:7] = sides.theirs.logits[:7] * 1.12
        return found

    monkeypatch.setattr(align_room, "_align", disturbed)
    report = align(job(llama, "bfloat16"), AlignAsk(drift=100))
    assert (report.verdict, report.first_drift) == ("drifted", "logits of positions 0 to 6")


def test_a_curve_must_be_within_reach(llama: Path) -> None:
    with pytest.raises(ConfigError, match="--drift 129 passes the model's 128 positions"):
        align(job(llama, "float32"), AlignAsk(drift=129))
    with pytest.raises(ConfigError, match="--drift 40 passes the sequences of 33 tokens; give at most that"):
        align(job(llama, "float32", batch=1, input_len=30, output_len=3), AlignAsk(drift=40))
    with pytest.raises(ConfigError, match="--drift=1 must be from 2"):
        AlignAsk(drift=1)


def test_all_of_it_is_shown_within_80_columns_and_written_as_json(llama: Path, tmp_path: Path) -> None:
    file, text = tmp_path / "report.json", str(text_file(tmp_path, 100))
    asked = ["--dtype", "bf16", "--weights", "int4", "--group", "32", "--baseline", "bf16", "--layout", "tp=2"]
    asked += ["--text", text, "--window", "50", "--drift", "48", "--json", str(file)]
    result = CliRunner().invoke(cli, ["align", str(llama), *asked])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    for shown in ("Beside, not judged", "Drift by position (logits)", "Perplexity ", "on the weights as held"):
        assert shown in result.output
    report = AlignReport.model_validate_json(file.read_text())
    assert report.schema_version == 2 and report.text is not None and report.cost is not None
    assert report.cost.perplexity == pytest.approx(report.text.perplexity)
    extreme = CliRunner().invoke(cli, ["align", str(llama), "--extreme", "--dtype", "bf16"])
    assert extreme.exit_code == 0 and "Extreme inputs, each by itself" in extreme.output
    assert max(map(len, extreme.output.splitlines())) <= 80


@pytest.mark.parametrize("calibrate", [None, "64"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss"])
def test_products_of_codes_by_codes_align_with_inputs_rounded_as_the_cards_round_them(
    tmp_path: Path, family: str, dtype: str, calibrate: str | None
) -> None:
    sizes = {"llama": SIZES, "qwen3_moe": MOE, "gpt_oss": SIZES | {"num_local_experts": 6}}[family]
    path = save(tmp_path, family, 0, **sizes)
    asked = job(path, dtype, weights="int8", activations="int8", calibrate=calibrate, layout="tp=2,dp=2")
    report = align(asked, AlignAsk(forced_routing=family != "llama"))
    assert report.verdict == "aligned"
    if dtype == "float32":  # most positions agree to the last bits: one code more or less is what the others have
        assert (report.layers[1].rms_rel or 1) < 2e-3
        assert report.cost is not None and (report.cost.logits.rms_rel or 0) > 3 * (report.logits.rms_rel or 1)


def test_a_fault_beside_quantised_inputs_is_named(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(config: Weights, weights: Weights) -> None:
        weights["model.layers.1.self_attn.v_proj.weight"][:4] *= -1

    damaged = plant(llama, tmp_path / "damaged", fault, monkeypatch)
    held = align_room.held_checkpoint
    monkeypatch.setattr(align_room, "held_checkpoint", lambda plan, _: held(plan, open_checkpoint(llama)))
    monkeypatch.setattr(align_room, "open_reference", open_reference)
    report = align(job(damaged, "bfloat16", weights="int8", activations="int8"))
    assert (report.verdict, report.first_drift) == ("drifted", "layer 1")


CODED_CACHES = [("fp8", None), ("fp8", "head"), ("int8", "head")]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize(("codes", "scales"), CODED_CACHES)
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
def test_caches_in_codes_align_with_a_reference_that_reads_the_same_codes(
    tmp_path: Path, family: str, codes: str, scales: str | None, dtype: str
) -> None:
    path = (save_latent if family == "deepseek_v3" else save)(tmp_path, family, 0)
    asked = job(path, dtype, kv_dtype=codes, kv_scales=scales, batch=2, input_len=40, output_len=4)
    report = align(asked, AlignAsk(forced_routing=family != "llama"))
    assert report.verdict == "aligned"
    if dtype == "float32":
        assert (report.layers[1].max_rel or 1) < 1e-5  # the codes are the same, to the last


def test_a_fault_beside_a_cache_in_codes_is_named(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(config: Weights, weights: Weights) -> None:
        weights["model.layers.2.self_attn.k_proj.weight"][:8] *= -1

    damaged = plant(llama, tmp_path / "damaged", fault, monkeypatch)
    report = align(job(damaged, "bfloat16", kv_dtype="fp8", kv_scales="head", batch=2, input_len=60, output_len=6))
    assert (report.verdict, report.first_drift) == ("drifted", "layer 2")
