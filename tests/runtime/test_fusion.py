"""Fusion: fewer launches and bytes, less time, the very same numbers; each switched by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from checkpoints import save
from latent_checkpoints import LATENT_FAMILIES, SPARSE_FAMILIES, save_latent

from siltwin.isa.dtype import BF16
from siltwin.isa.errors import ConfigError
from siltwin.isa.instruction import TensorType
from siltwin.isa.operands import Ref
from siltwin.isa.program import Block, Buffer, Call, Extent, Issue, Program, Space
from siltwin.isa.registry import INSTRUCTIONS, parse_instruction
from siltwin.isa.work import Unit
from siltwin.runtime.job import Job
from siltwin.runtime.lowering.passes.fuse import fuse, parse_fusions
from siltwin.runtime.plan import Variant
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job

PROMPTS = tuple(tuple(range(1, 1 + length)) for length in (3, 21, 1, 40))


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fusion")


@cache
def checkpoint(directory: Path, family: str) -> Path:
    return (save_latent if family in (*LATENT_FAMILIES, *SPARSE_FAMILIES) else save)(directory, family, 1)


def job(directory: Path, family: str, fused: str | None = None, **options: object) -> Job:
    given: dict[str, object] = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": PROMPTS, "max_new_tokens": 4}
    given |= {"ignore_eos": True, "logits": True, "layout": "tp=2", **options}
    return Job(str(checkpoint(directory, family)), fuse=fused, **given)


@cache
def whole(directory: Path, family: str, dtype: str = "float32") -> RunResult:
    return run_job(job(directory, family, dtype=dtype, kv_dtype=dtype))


def launches(result: RunResult) -> int:
    return len(result.spans)


# Three layers on two ranks: a norm before the fused projections, one before gate and up, one before the head.
CASES = [
    ("llama", "norm-matmul", 2 * (3 + 3 + 1), 1),
    ("llama", "swiglu", 2 * 3, 1),
    ("llama", "rope-attention", 2 * 3, 2),
    ("gpt_oss", "rope-attention", 2 * 3, 2),
    ("gpt_oss", "swiglu", 2 * 3, 1),
    ("deepseek_v3", "rope-attention", 2 * 3, 3),
    ("deepseek_v2", "rope-attention", 2 * 3, 3),
    ("mixtral", "swiglu", 2 * 3, 1),
    ("qwen3", "norm-matmul", 2 * (3 + 3 + 1), 1),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "name", "count", "saved"), CASES)
def test_numbers_stay_and_time_shrinks(
    places: Path, family: str, name: str, count: int, saved: int, dtype: str
) -> None:
    plain, fused = whole(places, family, dtype), run_job(job(places, family, name, dtype=dtype, kv_dtype=dtype))
    assert plain.logits is not None and fused.logits is not None
    for key, rows in plain.logits.items():
        np.testing.assert_array_equal(fused.logits[key], rows)
    assert fused.report.totals.elapsed_ps < plain.report.totals.elapsed_ps
    (applied,) = fused.report.passes
    assert (applied.name, applied.places, applied.launches) == (f"fuse {name}", count, -saved * count)
    steps = len(fused.records)
    assert launches(plain) - launches(fused) == saved * count * steps


def test_all_of_them_act_together_and_payload_off_gives_the_same_spans(places: Path) -> None:
    short, off = (run_job(job(places, "qwen3", "all", payload=on, logits=False)) for on in (True, False))
    assert short.spans == off.spans
    on = run_job(job(places, "qwen3", "all"))
    assert [item.name for item in on.report.passes] == ["fuse norm-matmul", "fuse swiglu", "fuse rope-attention"]
    plain = whole(places, "qwen3")
    assert plain.logits is not None and on.logits is not None
    for key, rows in plain.logits.items():
        np.testing.assert_array_equal(on.logits[key], rows)
    names = ("norm-matmul", "swiglu", "rope-attention")
    times = [run_job(job(places, "qwen3", name, payload=False, logits=False)) for name in names]
    assert all(off.report.totals.elapsed_ps < other.report.totals.elapsed_ps for other in times)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm_moe_dsa", "gpt_oss"])
def test_all_of_them_together_change_no_number(places: Path, family: str) -> None:
    fused, plain = run_job(job(places, family, "all")), whole(places, family)
    assert plain.logits is not None and fused.logits is not None
    for key, rows in plain.logits.items():
        np.testing.assert_array_equal(fused.logits[key], rows)
    assert fused.report.totals.elapsed_ps < plain.report.totals.elapsed_ps


def test_latents_are_normed_in_the_product_that_makes_queries(places: Path) -> None:
    fused = run_job(job(places, "deepseek_v3", "norm-matmul"))
    plain = whole(places, "deepseek_v3")
    assert plain.logits is not None and fused.logits is not None
    for key, rows in plain.logits.items():
        np.testing.assert_array_equal(fused.logits[key], rows)
    # latents and queries of three layers, the dense layer's gate and up, the head; other norms have many readers
    assert fused.report.passes[0].places == 2 * (3 + 3 + 1 + 1)


def test_what_stood_between_takes_no_room(places: Path) -> None:
    plain, fused = (prepare(job(places, "llama", name)).plan.lowered(0, Variant(True)) for name in (None, "all"))
    names = [{name for block, name in lowered.arena.sizes if block == "layer"} for lowered in (plain, fused)]
    assert names[0] - names[1] == {"normed", "gate_up"}
    assert fused.arena.num_bytes <= plain.arena.num_bytes


def test_a_fusion_without_a_place_is_told(places: Path) -> None:
    lacking = job(places, "qwen3", "rope-attention", payload=False, logits=False, overrides=(("native", "all,-rope"),))
    report = run_job(lacking).report
    assert "--fuse rope-attention changes nothing: no block of this model has a place for it" in report.warnings


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, ("dequantise-matmul",)),
        ("none", ()),
        ("all", ("dequantise-matmul", "norm-matmul", "swiglu", "rope-attention")),
        ("swiglu, norm-matmul", ("norm-matmul", "swiglu")),
    ],
)
def test_names_are_taken_in_the_order_in_which_they_act(text: str | None, names: tuple[str, ...]) -> None:
    assert parse_fusions(text)[: len(names)] == names if text == "all" else parse_fusions(text) == names


@pytest.mark.parametrize(
    ("text", "says"), [("swigloo", "choose of dequantise-matmul, norm-matmul"), ("none,all", "exclude")]
)
def test_a_name_that_is_no_fusion_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"--fuse .*{says}"):
        parse_fusions(text)


def test_a_card_without_the_fused_instruction_is_refused(places: Path) -> None:
    asked = job(places, "llama", "norm-matmul", overrides=(("native", "all,-fused_matmul,-fused_packed_matmul"),))
    with pytest.raises(ConfigError, match="makes fused_matmul or fused_packed_matmul, none of which is native"):
        run_job(asked)


NORM = "rmsnorm dst=%y x=%x weight=%w eps=1e-05 plus_one=no"
PRODUCT = "matmul dst=%o a=%y w=%m bias=-"


def program(*lines: str) -> Program:
    """A block with parameters x, w, m, o and locals y, z, of 8 columns."""
    rows, square = TensorType(BF16, ("tokens", 8)), TensorType(BF16, (8, 8))
    types = {"x": rows, "w": TensorType(BF16, (8,)), "m": square, "o": rows}
    block = Block(
        "layer",
        tuple(types.items()),
        (("y", rows), ("z", rows)),
        tuple(Issue("q", parse_instruction(line)) for line in lines),
    )
    buffers = tuple(Buffer(name, kind, Space.ACTIVATION) for name, kind in types.items())
    return Program("p", ("q",), (Extent("tokens"),), (), (), buffers, (block,), (Call("layer", tuple(types)),))


def fused_names(*lines: str) -> list[str]:
    made, _ = fuse(program(*lines), ("norm-matmul",), frozenset(INSTRUCTIONS), dict.fromkeys(Unit, "q"))
    return [issue.instruction.mnemonic for issue in made.blocks[0].body]


def test_a_norm_with_one_reader_is_fused() -> None:
    assert fused_names(NORM, PRODUCT) == ["fused_matmul"]
    assert fused_names(NORM, PRODUCT, "add dst=%y a=%x b=%x", "add dst=%o a=%o b=%y")[0] == "fused_matmul"


@pytest.mark.parametrize(
    "lines",
    [
        (NORM, PRODUCT, "add dst=%o a=%o b=%y"),  # a second reader
        (NORM, "add dst=%x a=%x b=%x", PRODUCT),  # what the norm reads is written between
        (NORM.replace("dst=%y", "dst=%o"), "matmul dst=%z a=%o w=%m bias=-", "add dst=%o a=%o b=%z"),  # outlives it
        (NORM, "matmul dst=%o a=%y[0:8] w=%m bias=-"),  # columns of it, if all
        (NORM, "add dst=%y[0:4] a=%x[0:4] b=%x[4:8]", PRODUCT),  # written anew in part
    ],
)
def test_a_norm_is_left_where_fusing_would_change_numbers(lines: tuple[str, ...]) -> None:
    assert "rmsnorm" in fused_names(*lines) and "fused_matmul" not in fused_names(*lines)


def test_refs_of_the_fused_product_are_those_of_norm_and_product() -> None:
    made, rewritten = fuse(program(NORM, PRODUCT), ("norm-matmul",), frozenset(INSTRUCTIONS), dict.fromkeys(Unit, "q"))
    fused = made.blocks[0].body[0].instruction
    assert {ref for ref, _ in fused.refs()} == {Ref("o"), Ref("x"), Ref("w"), Ref("m")}
    assert made.blocks[0].locals == ()
    assert [change.old for change in rewritten] == [tuple(map(parse_instruction, (NORM, PRODUCT)))]


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_packed_products_take_norms_and_gates_too(places: Path, family: str) -> None:
    plain, fused = (run_job(job(places, family, name, weights="int8")) for name in ("none", "all"))
    assert plain.logits is not None and fused.logits is not None
    for key, rows in plain.logits.items():
        np.testing.assert_array_equal(fused.logits[key], rows)
    into = {name for item in fused.report.passes for name in item.into}
    assert ("fused_packed_grouped_matmul" if family == "mixtral" else "fused_packed_matmul") in into


def test_packed_weights_are_decoded_in_the_product_unless_told_otherwise(places: Path) -> None:
    plain, fused = (run_job(job(places, "llama", name, weights="int8")) for name in ("none", None))
    assert plain.logits is not None and fused.logits is not None
    for key, rows in plain.logits.items():
        np.testing.assert_array_equal(fused.logits[key], rows)
    assert plain.report.passes == () and fused.report.passes[0].name == "fuse dequantise-matmul"
    assert fused.report.totals.elapsed_ps < plain.report.totals.elapsed_ps
