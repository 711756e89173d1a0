"""Linear attention on one rank: fused projections, convolution, gated delta rule, gated norm, output product."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

from ...isa.dtype import FP32
from ...isa.instruction import split_even
from ...isa.operands import Ref
from ...isa.program import Buffer, Space
from ...isa.recurrent import CAUSAL_CONV, GATED_DELTA
from ...isa.rows import SIGMOID_GATE
from ...isa.tensor import MATMUL
from ...isa.vector import GATED
from ...models.blocks import DeltaNet, HeadRows, Projection
from ..layout import kv_heads_of
from .builder import BlockBuilder, buffer
from .held import Held
from .passing import recur
from .stage import STATES, Stage

_Part = tuple[str, HeadRows, range]  # label, rows and heads


class _Share:
    """This rank's heads of a layer, and where its parts stand in `mixed`: beta, decay, q, k, v, gate, result."""

    def __init__(self, stage: Stage, delta: DeltaNet) -> None:
        tp, index = stage.layout.tp, stage.tp_index
        first, count = split_even(delta.heads, tp)[index]
        key_first, key_count = kv_heads_of(delta.key_heads, tp, index)
        self.heads, self.key_heads = range(first, first + count), range(key_first, key_first + key_count)
        self.delta, self.columns = delta, dict[str, Ref]()
        at = 0
        for name, part, heads in self.parts:
            self.columns[name] = Ref("mixed", at, part.size * len(heads))
            at += part.size * len(heads)
        self.columns["result"] = Ref("mixed", at, delta.value_dim * count)
        self.width = at + delta.value_dim * count

    @property
    def parts(self) -> list[_Part]:
        """Every part, its rows and its heads, those of low rank after the others; the gate is last, or before them."""
        delta = self.delta
        found = [
            ("beta", delta.beta, self.heads),
            ("decay", delta.decay, self.heads),
            ("q", delta.q, self.key_heads),
            ("k", delta.k, self.key_heads),
            ("v", delta.v, self.heads),
            ("gate", delta.gate, self.heads),
        ]
        return sorted(found, key=lambda part: self.down(part[0]) is not None)

    def down(self, part: str) -> Projection | None:
        """The first of the two products that make a part of low rank."""
        return {"decay": self.delta.decay_down, "gate": self.delta.gate_down}.get(part)


def lower_delta_net(stage: Stage, block: BlockBuilder, delta: DeltaNet, name: str, x: Ref, out: Ref) -> None:
    """out = this rank's part of linear attention of x, to be summed over the tensor-parallel group."""
    share = _Share(stage, delta)
    block.local("mixed", stage.options.dtype, "tokens", share.width)
    _project(stage, block, share, name, x)
    convolved = _convolve(stage, block, share, name)
    _delta_rule(stage, block, share, name, convolved)
    gated = _gate(stage, block, share, name)
    weight, _ = stage.weights.row_parallel(f"{name}.out", delta.out)
    block.emit(MATMUL(dst=out, a=gated, w=stage.weight(block, "out_weight", weight), bias=None))


def _project(stage: Stage, block: BlockBuilder, share: _Share, name: str, x: Ref) -> None:
    """All that the input alone makes, in one product of what is held alike; parts of low rank in two of their own."""
    direct = [entry for entry in share.parts if share.down(entry[0]) is None]
    for number, (packs, group) in enumerate(_held_alike(stage, direct)):
        label = f"mixed{number or ''}"
        own = [(part, heads) for _, part, heads in group]
        weight = stage.weights.heads_rows(f"{name}.{label}", own, share.delta.hidden_size, packs=packs)
        w = stage.weight(block, f"{label}_weight", weight)
        block.emit(MATMUL(dst=Ref("mixed", share.columns[group[0][0]].start, weight.shape[0]), a=x, w=w, bias=None))
    for label, part, heads in share.parts:
        down = share.down(label)
        if down is None:
            continue
        rank = down.out_features[0]
        low = block.local(f"{label}_low", stage.options.dtype, "tokens", rank)
        first = stage.weights.whole(f"{name}.delta_{label}_down", down.weights[0], rank, down.in_features)
        block.emit(MATMUL(dst=low, a=x, w=stage.weight(block, f"delta_{label}_down", first), bias=None))
        second = stage.weights.heads_rows(f"{name}.delta_{label}_up", [(part, heads)], rank, packs=True)
        w = stage.weight(block, f"delta_{label}_up", second)
        block.emit(MATMUL(dst=share.columns[label], a=low, w=w, bias=None))


def _held_alike(stage: Stage, parts: list[_Part]) -> Iterator[tuple[bool, list[_Part]]]:
    """Runs of parts whose tensors lie in device memory alike, and whether a job's scheme quantises them.

    It leaves the few rows of beta and decay alone, as publishers do.
    """

    def kind(entry: _Part) -> tuple[Held | None, bool]:
        packs = entry[0] not in ("beta", "decay")
        holding = stage.weights.holding
        return holding.of(entry[1].tensor, packs), packs and holding.scheme is not None

    for (_, packs), group in groupby(parts, kind):
        yield packs, list(group)


def _convolve(stage: Stage, block: BlockBuilder, share: _Share, name: str) -> Ref:
    """q, k and v after the short convolution, side by side."""
    delta, dtype = share.delta, stage.options.dtype
    heads = (share.key_heads, share.key_heads, share.heads)
    weight = stage.weights.heads_rows(f"{name}.conv", list(zip(delta.convs, heads, strict=True)), delta.kernel)
    channels = weight.type.shape[0]
    assert isinstance(channels, int), "weight shapes are numbers"
    tail = buffer(f"{name}.tail", Space.STATE, dtype, _states(stage), (delta.kernel - 1) * channels)
    convolved = block.local("convolved", dtype, "tokens", channels)
    x = Ref("mixed", share.columns["q"].start, channels)
    operands: dict[str, Any] = {"dst": convolved, "x": x, "weight": stage.weight(block, "conv", weight)}
    recur(stage, block, "tail", tail, partial(CAUSAL_CONV, **operands))
    return convolved


def _states(stage: Stage) -> str:
    return stage.program.scalar(STATES)


def _delta_rule(stage: Stage, block: BlockBuilder, share: _Share, name: str, convolved: Ref) -> None:
    """result = what the states answer to the queries; the states are brought up to date."""
    delta, heads, keys = share.delta, len(share.heads), len(share.key_heads) * share.delta.key_dim
    row = heads * delta.key_dim * delta.value_dim
    vectors = {
        label: stage.weight(block, label, stage.weights.heads_rows(f"{name}.{label}", [(part, share.heads)]))
        for label, part in (
            ("a_log", delta.a_log),
            ("dt_bias", delta.dt_bias),
        )
    }
    state: Buffer = buffer(f"{name}.state", Space.STATE, FP32, _states(stage), row)
    operands: dict[str, Any] = {
        "q": Ref(convolved.buffer, 0, keys),
        "k": Ref(convolved.buffer, keys, keys),
        "v": Ref(convolved.buffer, 2 * keys, heads * delta.value_dim),
        "dst": share.columns["result"],
        "decay": share.columns["decay"],
        "beta": share.columns["beta"],
        **vectors,
    }
    operands |= {
        "heads": heads,
        "key_heads": len(share.key_heads),
        "key_dim": delta.key_dim,
        "value_dim": delta.value_dim,
    }
    make = partial(GATED_DELTA, **operands, lower_bound=delta.lower_bound)
    recur(stage, block, "state", state, make)


def _gate(stage: Stage, block: BlockBuilder, share: _Share, name: str) -> Ref:
    """The normed result times the gate's SiLU or sigmoid."""
    delta, result, gate = share.delta, share.columns["result"], share.columns["gate"]
    columns = delta.value_dim * len(share.heads)
    stage.norm(block, f"{name}.delta_norm", delta.norm, result, result)
    gated = block.local("gated", stage.options.dtype, "tokens", columns)
    if delta.gate_activation == "silu":
        assert gate.start + columns == result.start, "the gate stands before the result"
        block.emit(GATED(dst=gated, x=Ref("mixed", gate.start, 2 * columns), activation="silu"))
    else:
        block.emit(SIGMOID_GATE(dst=gated, x=result, gate=gate))
    return gated
