"""Which part of the model each instruction of a lowered block belongs to: attention, experts, norms, the wires, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..isa.control import HALT, SIGNAL, WAIT
from ..isa.instruction import Instruction
from ..isa.operands import NameKind, Role
from ..isa.program import Block
from ..isa.work import Unit
from .lowering.passes.overlap import SECOND, is_second

INPUTS, HEAD, WAITING, CONTROL = "inputs", "head", "waiting", "control"
NORMS, ROUTER, EXPERTS, SHARED, DENSE = "norms and residuals", "router", "routed experts", "shared experts", "dense"
COLLECTIVES = "collectives"  # "collectives tp": along an axis of the layout
OFFLOAD = "offload"  # what comes from host memory before its turn, and what goes back
ATTENTION = "attention"  # "attention latent", "attention linear", ...

# Blocks outside the layers, by the name that lowering gives them.
_ENDS = {"inputs": INPUTS, "embed": INPUTS, "head": HEAD, "send": CONTROL, "receive": CONTROL}
_WITHOUT_INPUTS = ("embed", "receive")  # ends that transfer nothing with the host but what is offloaded
_NORMS = frozenset({"add", "residual_mix", "sum_squares", "rms_scale", "rms_unit"})
_ROUTING = frozenset({"route", "tally", "choose_replica", "copy_choices"})
_TRAVELLING = frozenset({"permute", "regroup", "combine", "scale_routed"})
SECOND_HALF = "post_norm"  # the weight by which a layer passes from its attention to its feed-forward


def parts_of(block: Block) -> tuple[str, ...]:
    """The part of every instruction of a block, by position.

    A norm, a router or a product is known by its mnemonic or by its weight; what has none, as an activation or the
    quantising of an input, belongs to what first reads it, or where that is no layer's own, to what stands before it.
    """
    instructions = [issue.instruction for issue in block.body]
    root = block.name.partition(".")[0]
    if root in _ENDS:
        own = _ENDS[root]
        return tuple(_wire(one) or (root in _WITHOUT_INPUTS and _offloaded(one)) or own for one in instructions)
    params = {name for name, _ in block.params if not name.endswith(SECOND)} - {"x", "snapshots"}
    found = [DENSE] * len(instructions)
    for half in (False, True):  # which take turns, where exchanges are overlapped
        places = [at for at, one in enumerate(instructions) if is_second(one) == half]
        for at, part in zip(places, _layer_parts([instructions[at] for at in places], params), strict=True):
            found[at] = part
    return tuple(found)


def _layer_parts(instructions: Sequence[Instruction], params: set[str]) -> list[str]:
    """The parts of a layer's instructions."""
    uses = [_Uses.of(one) for one in instructions]
    weights = [use.reads & params for use in uses]
    half = next((index for index, names in enumerate(weights) if SECOND_HALF in names), len(instructions))
    mixer, is_moe = _mixer(instructions[:half]), any(one.mnemonic == "route" for one in instructions)
    found = [
        _wire(one)
        or _offloaded(one)
        or _plain(one, uses[at], weights[at])
        or _routed(one, weights[at])
        or (mixer if at < half else _fed(weights[at], is_moe))
        for at, one in enumerate(instructions)
    ]
    for index in range(len(found)):
        found[index] = found[index] or _reader(uses, found, index)
    return [part or DENSE for part in found]


def group_of(instruction: Instruction) -> str | None:
    """The group in which an instruction communicates, which is an axis of the layout; None for all others."""
    if type(instruction).unit is not Unit.LINK:
        return None
    group: str = next(
        getattr(instruction, n) for n, kind in instruction.operands.items() if kind.names is NameKind.GROUP
    )
    return group


def _wire(instruction: Instruction) -> str:
    """The axis of an exchange, and what only keeps order."""
    if isinstance(instruction, WAIT | SIGNAL | HALT):
        return CONTROL
    group = group_of(instruction)
    return "" if group is None else f"{COLLECTIVES} {group}"


def _offloaded(instruction: Instruction) -> str:
    """Transfers with the host, where a block has none of inputs and tokens."""
    return OFFLOAD if type(instruction).unit is Unit.HOST else ""


class _Uses(NamedTuple):
    """Buffers that an instruction reads without changing them, that it reads at all, and that it writes."""

    reads: set[str]
    takes: set[str]
    makes: set[str]

    @classmethod
    def of(cls, instruction: Instruction) -> _Uses:
        refs = [(ref.buffer.removesuffix(SECOND), role) for ref, role in instruction.refs()]
        return cls(
            {name for name, role in refs if role is Role.IN},
            {name for name, role in refs if role is not Role.OUT},
            {name for name, role in refs if role is not Role.IN},
        )


def _plain(instruction: Instruction, uses: _Uses, weights: set[str]) -> str:
    """Norms and what carries the residual stream, wherever they stand."""
    mnemonic = instruction.mnemonic
    carries = mnemonic == "copy" and "snapshots" in uses.takes | uses.makes
    normed = "norm" in mnemonic or mnemonic in _NORMS or any(name.endswith("_norm") for name in weights)
    return NORMS if carries or normed else ""


def _routed(instruction: Instruction, weights: set[str]) -> str:
    """Routers and routed experts, which are known wherever they stand."""
    mnemonic = instruction.mnemonic
    if mnemonic in _ROUTING or any(name.startswith("router") for name in weights):
        return ROUTER
    is_of_experts = "grouped" in mnemonic or mnemonic in _TRAVELLING
    return EXPERTS if is_of_experts or any(name.startswith("experts_") for name in weights) else ""


def _fed(weights: set[str], is_moe: bool) -> str:
    """The part of a layer's feed-forward."""
    return (SHARED if is_moe else DENSE) if weights else ""


def _mixer(instructions: Sequence[Instruction]) -> str:
    """What kind of attention a layer has, by the instruction that does it."""
    mnemonics = {one.mnemonic for one in instructions}
    kind = "full"
    if "gated_delta" in mnemonics:
        kind = "linear"
    elif any("latent_attention" in mnemonic for mnemonic in mnemonics):
        kind = "latent"
    elif any(getattr(one, "window", 0) or getattr(one, "chunk", 0) for one in instructions):
        kind = "window"
    return f"{ATTENTION} {kind}, chosen keys" if "select_keys" in mnemonics else f"{ATTENTION} {kind}"


def _reader(uses: Sequence[_Uses], parts: Sequence[str], index: int) -> str:
    """The part of what first reads the result of an instruction, if that is a layer's own; else of what is before."""
    for later in range(index + 1, len(uses)):
        if parts[later] and uses[later].takes & uses[index].makes:
            if parts[later] == NORMS or parts[later].startswith(COLLECTIVES):
                break
            return parts[later]
    return parts[index - 1] if index else ""
