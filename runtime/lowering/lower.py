"""Lowering: a graph and a layout to one checked, synchronised Program a card, with its weights and its arena."""

from __future__ import annotations

from dataclasses import dataclass

from ...isa.check import check_program
from ...isa.program import Binding, Program
from ...models.blocks import Graph
from ..layout import Layout
from .arena import ArenaPlan, plan_arena
from .decoder import DecoderLowering, LoweringOptions
from .sync import synchronise
from .weights import WeightBuffer


@dataclass(frozen=True)
class LoweredProgram:
    """What one rank runs, and what it must hold to run it."""

    program: Program
    arena: ArenaPlan
    weights: tuple[WeightBuffer, ...]


def lower(graph: Graph, layout: Layout, rank: int, options: LoweringOptions, largest: Binding) -> LoweredProgram:
    """Lower `rank`'s part of the model for steps whose extents are at most `largest`."""
    lowering = DecoderLowering(graph, layout, rank, options)
    unsynchronised = lowering.build()
    arena = plan_arena(unsynchronised, largest)
    program = synchronise(unsynchronised, arena)
    check_program(program)
    return LoweredProgram(program, arena, tuple(lowering.weights.buffers.values()))
