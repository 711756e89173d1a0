"""Times of whole runs on the shipped cards, held against bytes over bandwidth, operations over peak, and dispatch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from ideal_kernels import IDEAL_KERNELS

from siltwin.emulator.spec import CardSpec, load_card
from siltwin.isa.dtype import BF16
from siltwin.runtime.job import Job
from siltwin.runtime.report import Report
from siltwin.runtime.run import RunResult, run_job

CARDS = ("a100-sxm", "ascend-910b2", "h100-sxm", "reference-npu")  # one of a kind; the library holds many more
HIDDEN, WIDTH, LAYERS, VOCAB, HEAD_DIM = 4096, 11008, 4, 32000, 128
LLAMA = {  # four layers as wide as those of a 7B model
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MISTRAL = LLAMA | {"model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 4096}
TINY = LLAMA | {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
}
# Parameters that a token is multiplied with: q, k, v, out; gate, up, down; the head.
LAYER_PARAMETERS = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH
PARAMETERS = LAYERS * LAYER_PARAMETERS + VOCAB * HIDDEN
KV_BYTES = 2 * HIDDEN * 2  # of a token in a layer: keys and values, bf16
# norm, qkv, rope, scatter, attention, out, add and norm, gate and up, gated, down, add
TENSOR, VECTOR, DMA = 5, 5, 1
IDEAL = tuple(IDEAL_KERNELS.items())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, config in (("llama", LLAMA), ("mistral", MISTRAL), ("tiny", TINY)):
        found[name] = tmp_path_factory.mktemp(name) / "config.json"
        found[name].write_text(json.dumps(config))
    return found


@cache
def result(path: Path | str, card: str, layout: str | None = None, changes: tuple = (), **sizes: int) -> RunResult:
    sizes = {"batch": 1, **sizes}
    return run_job(Job(str(path), card, layout=layout, overrides=changes, payload=False, **sizes))


def run(*given, **sizes) -> Report:
    return result(*given, **sizes).report


def step_ps(report: Report, kind: str) -> float:
    phase = getattr(report.phases, kind)
    return phase.elapsed_ps / phase.steps


def fixed_ps(card: CardSpec, tensor: int = TENSOR, vector: int = VECTOR, dma: int = DMA) -> int:
    """What instructions (those of one layer) cost before they do anything."""
    fixed, latency_ps = card.dispatch, (tensor + vector + dma) * card.hbm.latency_ps
    return tensor * fixed.tensor_ps + vector * fixed.vector_ps + dma * (fixed.dma_ps + card.dma.latency_ps) + latency_ps


def edges_ps(card: CardSpec) -> int:
    """What stands around the layers: seven inputs from the host and a token back to it, one after the other; the
    embedding and the gather of the last row, the last norm, the head and the pick."""
    host_ps = card.dispatch.host_ps + card.host.latency_ps + card.hbm.latency_ps
    return 8 * host_ps + fixed_ps(card, tensor=1, vector=2, dma=2)


@pytest.mark.parametrize("name", CARDS)
def test_a_decode_step_is_its_bytes_over_the_attainable_bandwidth_and_its_dispatches(name: str, models) -> None:
    card = load_card(name)
    context = 1024
    report = run(models["llama"], name, None, IDEAL, cached_len=context, input_len=0, output_len=1)
    moved = 2 * PARAMETERS + LAYERS * context * KV_BYTES
    least = moved * 10**12 / card.hbm.attainable_bytes_per_s + LAYERS * fixed_ps(card) + edges_ps(card)
    # What is left: activations, and the first loads and last stores of tiles, which nothing hides.
    assert least < step_ps(report, "decode") < 1.01 * least
    assert report.phases.decode.bound == "hbm"


@pytest.mark.parametrize("name", CARDS)
def test_a_405b_decode_step_is_its_shards_bytes_its_dispatches_and_its_all_reduces(name: str) -> None:
    card = load_card(name)
    report = run("Llama-3.1-405B", name, "tp=8,pp=2", IDEAL, input_len=1, output_len=2)
    hidden, vocab, layers, kv_heads = 16384, 128256, 126, 8
    per_layer = 2 * hidden * hidden + 2 * hidden * kv_heads * HEAD_DIM + 3 * hidden * 53248
    read_ps = 2 * (layers * per_layer + vocab * hidden) / 8 * 10**12 / card.hbm.attainable_bytes_per_s
    # Ring: 14 steps of 1/8 of a row of 32,768 bytes; two a layer and one after the embedding.
    port = card.link.bandwidth_bytes_per_s * card.node.ports_to_peer
    library, cycle_ps = card.tuning.collective, 10**12 / card.clock_hz
    step_ps_of_ring = card.link.latency_ps + library.step_cycles * cycle_ps + 4096 * 10**12 / port / library.share
    ramp_ps = (16 * 4096 * 10**12 / port * library.ramp_cycles * cycle_ps) ** 0.5  # of 8 parts, there and back
    reduce_ps = max(card.dispatch.link_ps, library.start_cycles * cycle_ps) + 14 * step_ps_of_ring + ramp_ps
    least = read_ps + layers * fixed_ps(card)
    assert least + (2 * layers + 1) * card.dispatch.link_ps < step_ps(report, "decode")
    assert step_ps(report, "decode") < 1.04 * (least + (2 * layers + 1) * reduce_ps)
    assert report.phases.decode.bound == "hbm"
    weights = {part.rank: part.by_tag["weight"] for part in report.cards}
    assert sum(weights[rank] for rank in (0, 8)) >= 2 * (layers * per_layer + 2 * vocab * hidden) / 8


@pytest.mark.parametrize("name", CARDS)
def test_a_long_prefill_attains_most_of_the_peak_and_never_more(name: str, models) -> None:
    tokens = 8192
    report = run(models["llama"], name, input_len=tokens, output_len=0)
    causal = 4 * HIDDEN * tokens * (tokens + 1) // 2
    operations = LAYERS * (2 * LAYER_PARAMETERS * tokens + causal) + 2 * VOCAB * HIDDEN
    attained = operations * 10**12 / report.totals.elapsed_ps / load_card(name).peak_ops_per_s(BF16)
    assert 0.6 < attained < 0.95
    assert report.phases.prefill.bound == "compute"


@pytest.mark.parametrize("name", CARDS)
def test_decode_of_a_tiny_model_is_held_by_dispatch(name: str, models) -> None:
    # Its 2 MB take a microsecond or two, its more than 50 instructions as many at least.
    report = run(models["tiny"], name, None, IDEAL, input_len=8, output_len=2)
    bounds = report.phases.decode.bounds
    assert report.phases.decode.bound == "dispatch"
    assert bounds.dispatch > 0.9 * bounds.total_ps
    least = LAYERS * fixed_ps(load_card(name)) + edges_ps(load_card(name))
    assert least < step_ps(report, "decode") < 1.05 * least


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize(
    ("field", "prefill", "decode"),
    [
        ("hbm.bandwidth_bytes_per_s", (1.0, 1.15), (1.4, 2.0)),
        ("clock_hz", (1.1, 1.9), (1.0, 1.05)),
        ("link.bandwidth_bytes_per_s", (1.0, 1.0), (1.0, 1.0)),
        ("l2.bandwidth_bytes_per_s", (1.0, 1.1), (1.0, 1.05)),
    ],
)
def test_twice_of_a_rate_never_slows_a_card_and_helps_the_phase_it_holds(
    name: str, field: str, prefill: tuple[float, float], decode: tuple[float, float], models
) -> None:
    card: object = load_card(name)
    for part in field.split("."):
        card = getattr(card, part)
    before = run(models["llama"], name, input_len=2048, output_len=1)
    after = run(models["llama"], name, None, ((field, str(2 * int(card))),), input_len=2048, output_len=1)
    for kind, (least, most) in (("prefill", prefill), ("decode", decode)):
        assert least <= step_ps(before, kind) / step_ps(after, kind) <= most


def attention_ps(path: Path, context: int) -> int:
    spans = result(path, "h100-sxm", None, IDEAL, cached_len=context, input_len=0, output_len=1).spans
    return max(span.end_ps - span.start_ps for span in spans if span.mnemonic == "attention")


def test_attention_of_a_decode_step_reads_its_context_once(models) -> None:
    attainable = load_card("h100-sxm").hbm.attainable_bytes_per_s
    short, long = attention_ps(models["llama"], 4095), attention_ps(models["llama"], 16383)
    read_ps = 12288 * KV_BYTES * 10**12 / attainable
    assert read_ps <= long - short + 2 < 1.01 * read_ps


def test_a_sliding_window_caps_what_attention_reads(models) -> None:
    # The new token sees itself and the 4,095 before it, however many there are; half of that below.
    inside, full, beyond = (attention_ps(models["mistral"], context) for context in (2047, 4095, 16383))
    assert inside < full == beyond


def test_more_tensor_parallelism_leaves_each_card_less_to_hold_and_to_read(models) -> None:
    reports = [run(models["llama"], "h100-sxm", f"tp={tp}", input_len=16, output_len=1) for tp in (1, 2, 4, 8)]
    weights = [report.cards[0].by_tag["weight"] for report in reports]
    norms = (2 * LAYERS + 1) * HIDDEN * 2  # which every card holds whole
    assert [weight - norms for weight in weights] == [(weights[0] - norms) // tp for tp in (1, 2, 4, 8)]
    hbm_ps = [report.phases.decode.bounds.hbm for report in reports]
    assert hbm_ps == sorted(hbm_ps, reverse=True)
    assert hbm_ps[-1] < hbm_ps[0] / 4
