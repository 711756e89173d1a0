"""Fused instructions: Work is that of the parts without what stands between; rules and meaning are the parts'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from siltwin.emulator.spec import load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import BF16
from siltwin.isa.errors import ProgramError
from siltwin.isa.work import FusedShape, MatmulShape, Unit, VectorShape

EXTENTS = {"t": (5,)}
KINDS = {"o": "bf16[t, 6]", "a": "bf16[t, 8]", "e": "bf16[t, 8]", "n": "bf16[8]", "w": "bf16[12, 8]", "b": "bf16[12]"}
WHOLE = "fused_matmul dst=%o total=%a a=%a delta=%e norm=%n w=%w bias=%b eps=1e-05 plus_one=no activation=silu"


def test_work_leaves_out_what_stands_between(bench: Any) -> None:
    found = bench.work(WHOLE, extents=EXTENTS, **KINDS)
    assert (found.unit, found.dtype) == (Unit.TENSOR, BF16)
    assert found.read_bytes == 2 * (40 + 40 + 8 + 96 + 12)  # a, delta, norm, w, bias
    assert found.write_bytes == 2 * (40 + 30)  # the sum, and the gated half
    assert found.ops == 5 * 40 + (2 * 5 * 12 * 8 + 60) + 6 * 30
    assert isinstance(found.shape, FusedShape)
    shapes = [part.shape for part in found.shape.parts]
    assert shapes == [VectorShape(5, 8, 2), MatmulShape(5, 12, 8), VectorShape(5, 6)]


@pytest.mark.parametrize("card", ["ascend-910b2", "h100-sxm"])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_one_launch_is_shorter_than_its_parts_and_never_than_its_bytes(bench: Any, card: str, tokens: int) -> None:
    kinds = {"o": "bf16[t, 4096]", "a": "bf16[t, 2048]", "e": "bf16[t, 2048]", "n": "bf16[2048]"}
    kinds |= {"w": "bf16[8192, 2048]", "b": "bf16[8192]"}
    work = bench.work(WHOLE, extents={"t": (tokens,)}, **kinds)
    spec = load_card(card)
    whole, parts = demand(work, spec), [demand(part, spec) for part in work.shape.parts]
    assert whole.fixed_ps == spec.dispatch.tensor_ps + spec.hbm.latency_ps
    assert whole.fixed_ps + whole.alone_ps < sum(part.fixed_ps + part.alone_ps for part in parts)
    amounts = dict(whole.amounts)
    assert amounts["hbm"] == work.read_bytes + work.write_bytes
    assert whole.alone_ps >= amounts["hbm"] * 10**12 // spec.hbm.attainable_bytes_per_s
    assert 0 < amounts["tensor"] <= sum(dict(part.amounts).get("tensor", 0) for part in parts)


def test_the_meaning_is_the_parts_one_after_the_other(bench: Any) -> None:
    rng = np.random.default_rng(3)
    values = {name: rng.standard_normal(shape) for name, shape in (("a", (5, 8)), ("e", (5, 8)), ("n", 8))}
    values |= {"w": rng.standard_normal((12, 8)), "b": rng.standard_normal(12)}
    fused = bench.run(WHOLE, values, extents=EXTENTS, **KINDS)
    apart = bench.run(
        "add_rmsnorm dst=%y x=%a delta=%e weight=%n eps=1e-05 plus_one=no\n"
        "matmul dst=%h a=%y w=%w bias=%b\n"
        "gated dst=%o x=%h activation=silu",
        values,
        extents=EXTENTS,
        **KINDS,
        y="bf16[t, 8]",
        h="bf16[t, 12]",
    )
    for name in ("o", "a"):
        np.testing.assert_array_equal(fused[name], apart[name])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("activation=silu", "activation=none", "dst is .*, must be"),
        ("delta=%e norm=%n", "delta=%e norm=-", "delta is added before a norm, and there is none"),
        ("total=%a", "total=-", "total must be a where there is a delta"),
        ("total=%a a=%a delta=%e norm=%n", "total=- a=%a delta=- norm=-", "nothing is fused"),
        ("norm=%n", "norm=%b", "must divide rows"),
        ("dst=%o", "dst=%a", "overlaps"),
    ],
)
def test_what_breaks_a_part_s_rule_is_refused(bench: Any, old: str, new: str, message: str) -> None:
    text = WHOLE.replace(old, new)
    if message == "nothing is fused":
        text = text.replace("activation=silu", "activation=none")
    with pytest.raises(ProgramError, match=message):
        bench.work(text, extents=EXTENTS, **KINDS)


def test_rope_attention_reads_rows_once_and_writes_the_cache(bench: Any) -> None:
    found = bench.work(
        "rope_attention dst=%o cache=%c qkv=%x cos=%u sin=%v positions=%p slots=%i tables=%y q_lens=%l kv_lens=%k "
        "q_extent=q_lens kv_extent=kv_lens rotary_dim=4 interleaved=no heads=2 kv_heads=1 qk_dim=8 v_dim=8 scale=0.5 "
        "window=0 sinks=- chunk=0 soft_cap=0.0",
        extents={"t": (5,), "n": (2,), "q_lens": (4, 1), "kv_lens": (4, 9)},
        o="bf16[t, 16]",
        c="bf16[10, 16, 16]",
        x="bf16[t, 32]",
        u="bf16[64, 2]",
        v="bf16[64, 2]",
        p="int32[t]",
        i="int32[t]",
        y="int32[n, 1]",
        l="int32[n]",
        k="int32[n]",
    )
    # qkv; positions and two rows of two tables; slots; the cached rows of 13 tokens
    assert found.read_bytes == 2 * 5 * 32 + (4 * 5 + 2 * 2 * 5 * 2) + 4 * 5 + 2 * 13 * 16
    assert found.write_bytes == 2 * 5 * 16 + 2 * 5 * 16  # five rows into the cache, and the result


def test_only_the_rows_of_experts_count_between_product_and_gate(bench: Any) -> None:
    text = "fused_grouped_matmul dst=%o a=%a w=%w bias=- counts=%c extent=q_lens at=1 activation=silu"
    kinds = {"o": "bf16[t, 6]", "a": "bf16[t, 8]", "w": "bf16[3, 12, 8]", "c": "int32[4]"}
    found = bench.work(text, extents={"t": (20,), "q_lens": (9, 4, 0, 3)}, **kinds)
    assert found.read_bytes == 2 * (7 * 8 + 2 * 12 * 8)  # seven rows, and the matrices of two experts
    assert found.write_bytes == 2 * 7 * 6
    assert found.ops == 2 * 7 * 12 * 8 + 6 * 7 * 6
