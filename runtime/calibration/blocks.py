"""Blocks of the instructions that a measured row stands for."""

from __future__ import annotations

from collections.abc import Mapping

from ...isa.dtype import DType
from ...isa.instruction import Dim, Instruction, TensorType
from ...isa.program import Block, Issue

Row = Mapping[str, int | str]
Extents = dict[str, tuple[int, ...]]
Types = dict[str, tuple[DType, tuple[Dim, ...]]]


def block_of(name: str, body: tuple[Instruction, ...], types: Types) -> Block:
    """A block of these instructions over buffers of these types, each after the one before."""
    params = tuple((key, TensorType(dtype, shape)) for key, (dtype, shape) in types.items())
    return Block(name, params, (), tuple(Issue("alone", instruction) for instruction in body))
