"""The instruction set: importing this declares every instruction, one module a unit; found by name or code."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from . import (
    activations,
    attention_parts,
    control,
    dispatch,
    dma,
    elementary,
    experts,
    fused,
    fused_attention,
    fused_packed,
    host_pages,
    latent,
    link,
    partial,
    products,
    quantised,
    ragged,
    recurrent,
    residual,
    rows,
    scaling,
    situ,
    sparse,
    tensor,
    vector,
)
from .errors import ProgramError
from .instruction import REGISTRY, Instruction
from .operands import Reader

MODULES = (
    tensor,
    latent,
    sparse,
    partial,
    attention_parts,
    vector,
    rows,
    elementary,
    residual,
    situ,
    fused,
    fused_attention,
    quantised,
    experts,
    dispatch,
    scaling,
    recurrent,
    dma,
    host_pages,
    link,
    ragged,
    control,
    products,
    fused_packed,
    activations,
)
INSTRUCTIONS: dict[str, type[Instruction]] = dict(sorted(REGISTRY.items(), key=lambda item: item[1].opcode))
BY_OPCODE: dict[int, type[Instruction]] = {cls.opcode: cls for cls in INSTRUCTIONS.values()}


def decode_instruction(reader: Reader) -> Instruction:
    """Read one instruction; ProgramError for an opcode or operand that does not exist."""
    opcode = reader.uint()
    if opcode not in BY_OPCODE:
        raise reader.fail(f"opcode {opcode:#x}, which no instruction has,")
    cls = BY_OPCODE[opcode]
    return cls(**{name: kind.read(reader) for name, kind in cls.operands.items()})


def parse_instruction(text: str) -> Instruction:
    """Read `mnemonic name=value ...`; every operand must be given once, those with a default at most once."""
    mnemonic, *words = text.split() or [""]
    if mnemonic not in INSTRUCTIONS:
        raise ProgramError(f"unknown instruction {mnemonic!r}; known: {', '.join(INSTRUCTIONS)}")
    cls = INSTRUCTIONS[mnemonic]
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in cls.operands or name in values:
            raise ProgramError(
                f"{mnemonic}: {word!r} is not one of its operands ({', '.join(cls.operands)}), each once"
            )
        try:
            values[name] = cls.operands[name].parse(value)
        except ProgramError as error:
            raise ProgramError(f"{mnemonic}: {name}: {error}") from None
    missing = {name for name in cls.operands if cls.__dataclass_fields__[name].default is MISSING} - values.keys()  # type: ignore[attr-defined]
    if missing:
        raise ProgramError(f"{mnemonic}: operands missing: {', '.join(sorted(missing))}")
    return cls(**values)
