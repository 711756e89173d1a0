"""Which part of the model each instruction of a lowered block belongs to: attention, experts, norms, the wires, ..."""

from __future__ import annotations

from collections.abc import Sequence

from ..isa.control import HALT, SIGNAL, WAIT
from ..isa.instruction import Instruction
from ..isa.operands import NameKind, Role
from ..isa.program import Block
from ..isa.work import Unit

INPUTS, HEAD, WAITING, CONTROL = "inputs", "head", "waiting", "control"
NORMS, ROUTER, EXPERTS, SHARED, DENSE = "norms and residuals", "router", "routed experts", "shared experts", "dense"
COLLECTIVES = "collectives"  # "collectives tp": along an axis of the layout
ATTENTION = "attention"  # "attention latent", "attention linear", ...

# Blocks outside the layers, by the name that lowering gives them.
_ENDS = {"inputs": INPUTS, "embed": INPUTS, "head": HEAD, "send": CONTROL, "receive": CONTROL}
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
        return tuple(_wire(one) or _ENDS[root] for one in instructions)
    half = next((i for i, one in enumerate(instructions) if SECOND_HALF in _weights(block, one)), len(instructions))
    mixer, is_moe = _mixer(instructions[:half]), any(one.mnemonic == "route" for one in instructions)
    found = [
        _wire(one) or _plain(block, one) or (mixer if index < half else _feed_forward(block, one, is_moe))
        for index, one in enumerate(instructions)
    ]
    for index in range(len(found)):
        found[index] = found[index] or _reader(instructions, found, index)
    return tuple(part or DENSE for part in found)


def _wire(instruction: Instruction) -> str:
    """The axis of an exchange, and what only keeps order."""
    if isinstance(instruction, WAIT | SIGNAL | HALT):
        return CONTROL
    if type(instruction).unit is not Unit.LINK:
        return ""
    kinds = instruction.operands.items()
    return f"{COLLECTIVES} {next(getattr(instruction, n) for n, kind in kinds if kind.names is NameKind.GROUP)}"


def _plain(block: Block, instruction: Instruction) -> str:
    """Norms and what carries the residual stream, wherever they stand."""
    mnemonic = instruction.mnemonic
    carries = mnemonic == "copy" and any(ref.buffer == "snapshots" for ref, _ in instruction.refs())
    normed = "norm" in mnemonic or mnemonic in _NORMS or any(n.endswith("_norm") for n in _weights(block, instruction))
    return NORMS if carries or normed else ""


def _feed_forward(block: Block, instruction: Instruction, is_moe: bool) -> str:
    mnemonic, weights = instruction.mnemonic, _weights(block, instruction)
    if mnemonic in _ROUTING or any(name.startswith("router") for name in weights):
        return ROUTER
    if "grouped" in mnemonic or mnemonic in _TRAVELLING or any(name.startswith("experts_") for name in weights):
        return EXPERTS
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


def _weights(block: Block, instruction: Instruction) -> set[str]:
    """The block's parameters that an instruction reads, the residual stream left out: its weights and caches."""
    names = {name for name, _ in block.params} - {"x", "snapshots"}
    return {ref.buffer for ref, role in instruction.refs() if role is Role.IN and ref.buffer in names}


def _reader(instructions: Sequence[Instruction], parts: Sequence[str], index: int) -> str:
    """The part of what first reads the result of an instruction, if that is a layer's own; else of what is before."""
    made = {ref.buffer for ref, role in instructions[index].refs() if role is not Role.IN}
    for later in range(index + 1, len(instructions)):
        reads = {ref.buffer for ref, role in instructions[later].refs() if role is not Role.OUT}
        if parts[later] and reads & made:
            if parts[later] == NORMS or parts[later].startswith(COLLECTIVES):
                break
            return parts[later]
    return parts[index - 1] if index else ""
