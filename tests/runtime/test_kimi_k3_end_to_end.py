"""Kimi K3 against its statement in torch over every layout, and the laws of snapshots, latents, states and weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import UnsupportedError
from siltwin.isa.link import RECV, SEND
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.graph import parameter_shapes
from siltwin.runtime.job import Job
from siltwin.runtime.plan import Variant
from siltwin.runtime.prepare import prepare
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

torch = pytest.importorskip("torch")
from kimi_k3_checkpoints import SIZES, save_kimi_k3  # noqa: E402
from kimi_k3_statement import KimiK3  # noqa: E402

NEW_TOKENS = 24
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2", "pp=4", "tp=2,ep=2", "tp=4,pp=2", "dp=2,tp=2,pp=2,ep=4", "tp=4,ep=4,pp=2"]
LAYOUTS += ["cp=2", "tp=2,cp=2,pp=2"]
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]
PACKED = {"moe_intermediate_size": 32, "routed_expert_hidden_size": 64}
# Each of K3's additions left out, and sizes that nothing divides.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("tp=2,pp=3", {"attn_res_block_size": None}),
    ("tp=2,pp=2", {"routed_expert_hidden_size": None, "use_full_rank_gate": False}),
    ("tp=4,ep=2", {"gate_lower_bound": None, "hidden_act": "silu"}),
    ("pp=4", {"attn_res_block_size": 1, "mla_use_output_gate": False}),
    ("tp=2", {"linear_heads": 16, "linear_dim": 6, "num_attention_heads": 2, "latent_moe_use_norm": False}),
    ("tp=2,pp=2", {"moe_renormalize": False, "first_k_dense_replace": 2, "attn_res_block_size": 12}),
    (
        "tp=3",
        {
            "num_attention_heads": 6,
            "linear_heads": 3,
            "linear_dim": 9,
            "q_lora_rank": None,
            "intermediate_size": 57,
            "moe_intermediate_size": 21,
            "routed_expert_hidden_size": 32,
        },
    ),
]


@dataclass(frozen=True)
class Model:
    """A checkpoint and its statement in float32 and in float64; what they make of a sequence is kept."""

    path: Path
    single: KimiK3
    double: KimiK3
    known: dict[tuple[int, ...], tuple[np.ndarray, float]] = field(default_factory=dict)

    def logits(self, ids: list[int]) -> tuple[np.ndarray, float]:
        """The logits in float64, and how far from them float32 comes."""
        if tuple(ids) not in self.known:
            exact = self.double.logits(ids)
            self.known[tuple(ids)] = exact, float(np.abs(self.single.logits(ids) - exact).max())
        return self.known[tuple(ids)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints, made once each."""
    made: dict[str, Model] = {}

    def make(seed: int = 0, packed: bool = False, **changes: Any) -> Model:
        key = f"{seed} {packed} {sorted(changes.items(), key=str)}"
        if key not in made:
            path, single = save_kimi_k3(tmp_path_factory.mktemp("k3"), seed, packed, **changes)
            made[key] = Model(path, single, KimiK3(single.config, single.tensors, torch.float64))
        return made[key]

    return make


def run(path: Path, layout: str, **changes: Any) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
    }
    return run_job(Job(str(path), layout=layout, **{**options, **changes}))


def check(model: Model, result: RunResult) -> None:
    """Logits of prompts and of every cached step, and each token the statement's own choice.

    The tolerance is 1e-4 of the logits' standard deviation, or four times what fp32 does to the statement itself.
    """
    assert result.logits is not None
    whole = [[*prompt, *result.report.requests[at].tokens][:-1] for at, prompt in enumerate(PROMPTS)]
    noise = max(model.logits(ids)[1] for ids in whole)
    for index, (ids, prompt) in enumerate(zip(whole, PROMPTS, strict=True)):
        wanted, _ = model.logits(ids)
        allowed = max(1e-4 * wanted.std(), 4 * noise)
        ours = np.concatenate([result.logits[f"logits_{index}"][:-1], result.logits[f"decode_logits_{index}"]])
        assert np.abs(ours - wanted).max() <= allowed
        picked = wanted[len(prompt) - 1 :].argmax(axis=-1).tolist()
        assert picked == list(result.report.requests[index].tokens)
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_and_tokens_equal_those_of_the_statement(model, layout: str) -> None:
    check(model(), run(model().path, layout))


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2,ep=2"])
def test_experts_packed_as_mxfp4_give_what_their_decoded_weights_give(model, layout: str) -> None:
    packed = model(2, packed=True, **PACKED)
    check(packed, run(packed.path, layout))


@pytest.mark.parametrize(("layout", "changes"), VARIANTS)
def test_every_addition_may_be_left_out(model, layout: str, changes: dict[str, Any]) -> None:
    variant = model(3, **changes)
    check(variant, run(variant.path, layout))


@pytest.mark.long
@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=4", "dp=4,tp=2", "dp=8,ep=8"])
@pytest.mark.parametrize("seed", [1, 4, 5])
def test_other_seeds_agree_too(model, seed: int, layout: str) -> None:
    check(model(seed), run(model(seed).path, layout))


def test_chunked_prefill_gives_the_same_logits(model) -> None:
    check(model(), run(model().path, "tp=2,pp=2", chunk_tokens=7))


def test_a_card_without_situ_runs_it_from_soft_caps_and_products(model) -> None:
    native = run(model().path, "tp=2,pp=2", max_new_tokens=3)
    lacks = (("native", "all,-situ_gated,-grouped_situ_gated"),)
    composed = run(model().path, "tp=2,pp=2", max_new_tokens=3, overrides=lacks)
    assert native.logits is not None and composed.logits is not None
    for name, wanted in native.logits.items():
        assert np.abs(composed.logits[name] - wanted).max() <= 4e-4 * np.std(wanted)
    assert composed.report.totals.elapsed_ps > native.report.totals.elapsed_ps
    found = {span.mnemonic for span in composed.spans}
    assert "soft_cap" in found and not found & {"situ_gated", "grouped_situ_gated"}


def test_a_card_that_cannot_mix_residuals_is_refused_by_name(model) -> None:
    with pytest.raises(UnsupportedError, match="residual_mix"):
        run(model().path, "tp=1", overrides=(("native", "all,-residual_mix"),))


def test_without_numbers_time_and_memory_are_the_same(model) -> None:
    options = {"max_new_tokens": 4, "logits": False}
    on = run(model().path, "tp=2,pp=2,ep=2", **options)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    job = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": tuple(map(tuple, PROMPTS)), "ignore_eos": True}
    off = run_job(Job(str(model().path), layout="tp=2,pp=2,ep=2", payload=False, **job, **options), routing=loads)
    assert on.spans == off.spans
    assert on.memory == off.memory


def test_the_statement_without_additions_is_transformers_kimi_linear(tmp_path: Path) -> None:
    from kimi_k3_checkpoints import random_tensors, small_config
    from transformers import AutoConfig, KimiLinearForCausalLM

    off = {
        "attn_res_block_size": None,
        "routed_expert_hidden_size": None,
        "gate_lower_bound": None,
        "use_full_rank_gate": False,
        "mla_use_output_gate": False,
        "hidden_act": "silu",
        "q_lora_rank": None,
        "moe_intermediate_size": 20,
    }
    config = small_config(**off)
    text, tensors = config["text_config"], random_tensors(config, 6)
    linear = text["linear_attn_config"]
    theirs = AutoConfig.for_model(
        "kimi_linear",
        **{
            key: value
            for key, value in text.items()
            if key not in ("linear_attn_config", "architectures", "model_type")
        },
        layer_types=[
            "full_attention" if at + 1 in linear["full_attn_layers"] else "linear_attention"
            for at in range(text["num_hidden_layers"])
        ],
        linear_num_heads=linear["num_heads"],
        linear_head_dim=linear["head_dim"],
        num_experts_per_tok=text["num_experts_per_token"],
        num_local_experts=text["num_experts"],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    state = {name: tensor for name, tensor in tensors.items() if "A_log" not in name}
    state |= {n: t[: linear["num_heads"]].view(1, 1, -1, 1) for n, t in tensors.items() if "A_log" in n}
    reference = KimiLinearForCausalLM.from_pretrained(
        None, config=theirs, state_dict=state, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        wanted = reference(torch.tensor([PROMPTS[2]])).logits[0].numpy()
    assert np.abs(KimiK3(config, tensors).logits(PROMPTS[2]) - wanted).max() <= 1e-4 * wanted.std()


def test_a_stage_sends_the_stream_and_the_snapshots_that_stand(model) -> None:
    """Seven layers over four stages begin at 0, 2, 4, 6; blocks of three take snapshots before layers 0, 3 and 6."""
    plan = prepare(Job(str(model().path), layout="pp=4", dtype="float32", prompt_ids=((1, 2),))).plan
    hidden, found = SIZES["hidden_size"], []
    for rank in range(4):
        program = plan.lowered(rank, Variant(True)).program
        types = {block.name: dict(block.params) for block in program.blocks}
        for kind in (RECV, SEND):
            moved = [
                (issue.instruction.x, types[block.name][issue.instruction.x.buffer])
                for block in program.blocks
                for issue in block.body
                if isinstance(issue.instruction, kind)
            ]
            found.append([(ref.size or kind.shape[-1]) // hidden for ref, kind in moved])
    assert found == [[], [1, 1], [1, 1], [1, 2], [1, 2], [1, 2], [1, 2], []]


def test_states_are_counted_by_hand(model) -> None:
    """Five delta layers of 4 heads of 12 x 12 in fp32, and of each convolution 3 inputs of 48 channels."""
    each = 5 * 4 * (4 * 12 * 12 + 3 * 3 * 48)
    for layout, share in (("tp=1", 1), ("tp=2", 2)):
        result = run(model().path, layout, payload=False, logits=False, max_new_tokens=2)
        assert {card.by_tag["state"] for card in result.report.cards} == {4 * each // share}


CUT = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "conv1d", "f_b_proj", "b_proj", "g_proj", "dt_bias")
CUT += ("A_log", "o_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "down_proj", "experts.")
WHOLE = ("routed_expert_down_proj", "q_a_proj", "kv_a_proj")


def holders(name: str, tp: int) -> int:
    """Whole copies of a tensor that a tensor-parallel group holds; of what no layer reads, none.

    What would mix snapshots before the first layer stands in the file, and there are none to mix.
    """
    if name.startswith("model.layers.0.self_attention_res"):
        return 0
    is_cut = any(part in name for part in CUT) and not any(part in name for part in WHOLE)
    return 1 if is_cut else tp


@pytest.mark.parametrize("layout", ["tp=1", "tp=4,pp=2", "tp=4,ep=4,pp=2", "dp=2,tp=2,pp=2"])
def test_each_tensor_is_held_as_often_as_its_kind_says(model, layout: str) -> None:
    """The cards' bytes of weights are those of the stored tensors, times how many hold them."""
    path = model().path
    plan = prepare(Job(str(path), layout=layout, dtype="float32", prompt_ids=((1, 2),))).plan
    tp, dp = plan.layout.tp, plan.layout.dp
    total = 0
    for name, shape in open_checkpoint(path).shapes.items():
        count = SIZES["linear_heads"] if name.endswith("A_log") else int(np.prod(shape))
        total += FP32.bytes_of(count) * dp * holders(name, tp)
    held = sum(
        static.num_bytes
        for rank in range(plan.layout.cards)
        for static in plan.footprint(rank).static
        if static.tag == "weight"
    )
    assert held == total


@pytest.mark.long
def test_the_published_model_is_held_to_the_byte_on_256_cards() -> None:
    """Experts stand once, as mxfp4: a half byte an element and a byte for 32; all else in bf16, cut or whole."""
    layout = "tp=8,pp=8,dp=4,ep=32"
    job = Job("Kimi-K3", layout=layout, dtype="bfloat16", batch=1, input_len=16, output_len=1, payload=False)
    plan = prepare(job).plan
    total = 0
    for name, shape in parameter_shapes(plan.graph).items():
        count = 96 if name.endswith("A_log") else int(np.prod(shape))
        if ".experts." in name:
            total += count // 2 + count // 32
        else:
            total += 2 * count * 4 * holders(name, 8)
    held = sum(
        static.num_bytes
        for rank in range(plan.layout.cards)
        for static in plan.footprint(rank).static
        if static.tag in ("weight", "scale")
    )
    assert held == total
