"""Long contexts by emulated steps of big configs with few layers: what grows with the context, and what does not."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import siltwin
from siltwin.emulator.spec import load_card
from siltwin.isa.dtype import BF16
from siltwin.isa.tensor import ATTENTION
from siltwin.runtime.job import Job
from siltwin.runtime.portions import portions
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.scheduler import Entry, Step

CONFIGS = Path(siltwin.__file__).parent / "models" / "configs"
MILLION = 1_048_576
CHUNK = 8192
FEW_EXPERTS: dict[str, Any] = {"vocab_size": 1024, "hidden_size": 512, "intermediate_size": 256}
EXPERTS = {"moe_intermediate_size": 64, "routed_expert_hidden_size": 64}


def k3(directory: Path, layers: int = 4) -> Path:
    """Kimi K3 with its attention as it is, its first layers alone, and little around them."""
    raw = json.loads((CONFIGS / "Kimi-K3.json").read_text())
    text = raw["text_config"]
    linear = text["linear_attn_config"]
    linear |= {name: [n for n in linear[name] if n <= layers] for name in ("full_attn_layers", "kda_layers")}
    text |= FEW_EXPERTS | EXPERTS | {"num_hidden_layers": layers, "num_experts": 16}
    return saved(directory, raw)


def dsa(directory: Path) -> Path:
    """DeepSeek-V3.2's sparse attention in one dense layer, for a million tokens."""
    raw = json.loads((CONFIGS / "DeepSeek-V3.2.json").read_text())
    few = {"num_hidden_layers": 1, "mlp_layer_types": ["dense"], "max_position_embeddings": MILLION}
    return saved(directory, {name: value for name, value in raw.items() if name != "layer_types"} | FEW_EXPERTS | few)


def windowed(directory: Path) -> Path:
    """gpt-oss: a layer with a window of 128 and a full one."""
    raw = json.loads((CONFIGS / "gpt-oss-120b.json").read_text())
    raw |= {"num_hidden_layers": 2, "layer_types": raw["layer_types"][:2], "num_local_experts": 4, "vocab_size": 1024}
    return saved(directory, raw)


def saved(directory: Path, raw: dict[str, Any]) -> Path:
    raw.pop("quantization_config", None)
    path = directory / "config.json"
    path.write_text(json.dumps(raw))
    return path


def run(path: Path, tokens: int, **options: Any) -> RunResult:
    asked = {"batch": 1, "input_len": tokens, "output_len": 0, "chunk_tokens": CHUNK, "payload": False}
    return run_job(Job(str(path), card="ascend-910c", **{**asked, **options}))


def times(result: RunResult) -> dict[str, list[int]]:
    """Picoseconds that each kind of attention took in every step, on the first card."""
    found: dict[str, list[int]] = defaultdict(lambda: [0] * len(result.records))
    for step, record in enumerate(result.records):
        for span in record.spans:
            if span.card:
                continue
            program = result.programs[0, record.variants[0]]
            instruction = program.block[program.calls[span.call].block].body[span.position].instruction
            name = instruction.mnemonic
            if isinstance(instruction, ATTENTION):
                name += " window" if instruction.window else " full"
            if name.split()[0] in ("attention", "latent_attention", "gated_delta", "select_keys"):
                found[name][step] += span.end_ps - span.start_ps
    return found


def grows_evenly(times_ps: list[int], within: float = 0.03) -> bool:
    """Whether each step takes as much longer than the one before it as all others do, within a part of that."""
    steps = [later - sooner for sooner, later in zip(times_ps[2:], times_ps[3:], strict=False)]
    mean = sum(steps) / len(steps)
    return mean > 0.02 * times_ps[0] and all(abs(step - mean) <= within * mean for step in steps)


@pytest.mark.parametrize("mla", [{}, {"mla": "absorbed"}, {"mla": "expanded", "mla_piece_tokens": 16_384}])
def test_full_attention_grows_by_the_same_each_chunk_and_linear_attention_not_at_all(
    tmp_path: Path, mla: dict[str, Any]
) -> None:
    found = times(run(k3(tmp_path), 12 * CHUNK, **mla))
    assert grows_evenly(found["latent_attention"], within=0.07)  # where a piece more begins, tiles start anew
    first, *others = found["gated_delta"]  # the first chunk finds no state to read
    assert len(set(others)) == 1 and 0.95 * others[0] < first <= others[0]


def test_a_window_saturates_beside_full_attention(tmp_path: Path) -> None:
    found = times(run(windowed(tmp_path), 12 * CHUNK))
    assert grows_evenly(found["attention full"])
    window = found["attention window"]
    assert window[0] <= window[1] and len(set(window[1:])) == 1
    assert window[-1] < found["attention full"][-1] / 20


def test_sparse_attention_saturates_while_its_index_grows(tmp_path: Path) -> None:
    found = times(run(dsa(tmp_path), 12 * CHUNK))
    chosen = found["latent_attention"]
    assert max(chosen[1:]) == min(chosen[1:])
    assert grows_evenly(found["select_keys"])


def test_memory_grows_by_the_pages_of_each_chunk_alone(tmp_path: Path) -> None:
    """One MLA layer's 576 elements of 2 bytes a token; states and tails of three KDA layers stand from the first on."""
    result = run(k3(tmp_path), 6 * CHUNK)
    history = result.memory[0]
    for index, record in enumerate(result.records):
        held = sum(delta for ps, delta, tag in history if tag == "kv" and ps <= record.start_ps)
        if record is not result.records[-1]:
            assert held == (index + 1) * CHUNK * 576 * 2
    state = 3 * (96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2)
    assert result.report.cards[0].by_tag["state"] == state
    # expanded whole, as 48 Ki tokens are one piece: 96 heads of 192 + 128 elements
    assert result.report.cards[0].by_tag["workspace"] == 6 * CHUNK * 96 * 320 * 2


@pytest.mark.long
def test_a_million_tokens_in_chunks_take_what_their_chunks_do(tmp_path: Path) -> None:
    """The floor of one layer: each query meets each key in 96 x 2 x 320 operations."""
    result = run(k3(tmp_path), MILLION, layout="tp=8")
    found = times(result)
    assert len(result.records) == 128
    assert grows_evenly(found["latent_attention"][8:])  # from the second piece on
    assert len(set(found["gated_delta"][1:])) == 1
    met = 96 // 8 * 2 * 320 * MILLION * (MILLION + 1) // 2
    peak = load_card("ascend-910c").peak_ops_per_s(BF16)
    assert met / peak < sum(found["latent_attention"]) / 1e12 < 4 * met / peak


# bytes a cached token: latents of 512 and 64 turned elements; 512 codes, 4 scales of 128 codes, 64 elements in bf16
LATENT_BYTES = {"bf16": 576 * 2, "fp8": 512 + 4 * 4 + 64 * 2, "int8": 512 + 4 * 4 + 64 * 2}
# keys and values of 8 heads of 64; fp8 without scales, int8 with one for each head's key and value
FULL_BYTES = {"bf16": 1024 * 2, "fp8": 1024, "int8": 1024 + 16 * 4}


def read_by_attention(job: Job, length: int) -> int:
    """What the emulated program's attention over a whole context reads from its cache in one decode step."""
    plan = prepare(job).plan
    (portion,) = portions(plan, Step(0, "decode", (Entry(0, length - 1, 1, True),)))
    (work,) = plan.latent_steps.works(plan.built(0, plan.variants[0]).program, portion)
    return work.read_bytes


@pytest.mark.parametrize("kv_dtype", LATENT_BYTES)
def test_a_decode_step_at_a_million_tokens_reads_latents_in_their_dtype(tmp_path: Path, kv_dtype: str) -> None:
    path, length = k3(tmp_path), MILLION - 16
    job = Job(
        str(path),
        card="ascend-910c",
        layout="tp=8",
        batch=1,
        cached_len=length,
        output_len=2,
        payload=False,
        kv_dtype=kv_dtype,
    )
    queries, w = 12 * 192 * 2, 12 * 256 * 512 * 2
    assert read_by_attention(job, length + 1) == (length + 1) * LATENT_BYTES[kv_dtype] + queries + w
    result = run_job(job)
    kv = result.report.cards[0].by_tag["kv"]
    assert kv == MILLION * LATENT_BYTES[kv_dtype]
    # the cache is read once: what bounds the instruction is HBM, or the dispatch beside it
    (ps,) = {times(result)["latent_attention"][0]}
    rate = prepare(job).plan.card.hbm.attainable_bytes_per_s
    assert ps >= (length + 1) * LATENT_BYTES[kv_dtype] * 10**12 // int(rate)


@pytest.mark.parametrize("kv_dtype", FULL_BYTES)
def test_a_decode_step_over_keys_and_values_follows_their_dtype(tmp_path: Path, kv_dtype: str) -> None:
    length = 131_072 - 16
    job = Job(
        str(windowed(tmp_path)),
        card="ascend-910c",
        batch=1,
        cached_len=length,
        output_len=2,
        payload=False,
        kv_dtype=kv_dtype,
    )
    result = run_job(job)
    assert result.report.cards[0].by_tag["kv"] == 2 * 131_072 * FULL_BYTES[kv_dtype]
    rate = int(prepare(job).plan.card.hbm.attainable_bytes_per_s)
    wanted = length * FULL_BYTES[kv_dtype] * 10**12 // rate
    assert wanted <= times(result)["attention full"][0] <= wanted * 1.25
