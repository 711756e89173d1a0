"""Lowering: a graph and a layout to one checked, synchronised Program a card, with its weights and its arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...isa.check import check_program
from ...isa.program import Binding, Program
from ...models.blocks import Graph
from ..layout import Layout
from .arena import ArenaPlan, plan_arena
from .decoder import lower_stage
from .passes.cache import code_caches
from .passes.compose import Missing, compose
from .passes.fuse import fuse
from .passes.offload import offload_experts
from .passes.offload_caches import offload_caches
from .passes.overlap import overlap_halves
from .passes.packed import fuse_decoding, quantise_inputs
from .passes.rewrite import Rewritten
from .passes.window import DEQUANTISE_MATMUL
from .stage import LoweringOptions, Stage
from .sync import synchronise
from .templates import Weights
from .weights import WeightBuffer


@dataclass(frozen=True)
class BuiltProgram:
    """A rank's blocks and calls before anything is placed: it depends on no length and holds no waits yet.

    `held` are its weights, `rewritten` is what passes changed of the model's own blocks, `missing` what the card can
    run in no way.
    """

    program: Program
    held: Weights
    rewritten: tuple[Rewritten, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def weights(self) -> tuple[WeightBuffer, ...]:
        """What its weights are made of."""
        return self.held.all


@dataclass(frozen=True)
class LoweredProgram:
    """What one rank runs, and what it must hold to run it."""

    program: Program
    arena: ArenaPlan
    held: Weights

    @property
    def weights(self) -> tuple[WeightBuffer, ...]:
        """What its weights are made of."""
        return self.held.all


def build(graph: Graph, layout: Layout, rank: int, options: LoweringOptions) -> BuiltProgram:
    """`rank`'s part of the model as blocks and calls, made of what is native to the card as far as that can be."""
    stage = Stage(graph, layout, rank, options)
    program, coded, quantised = lower_stage(stage), tuple[Rewritten, ...](), tuple[Rewritten, ...]()
    if options.cache is not None:
        program, coded = code_caches(program, options.cache, options.queue_of)
    if options.activations is not None:
        program, quantised = quantise_inputs(program, options.activations, options.queue_of)
    decoding: tuple[Rewritten, ...] = ()
    if DEQUANTISE_MATMUL in options.fuse:
        program, decoding = fuse_decoding(program, options.native, options.queue_of)
    composed = compose(program, options.native, options.queue_of)
    fused, joined = fuse(composed.program, options.fuse, options.native, options.queue_of)
    rewritten = (*coded, *quantised, *decoding, *composed.rewritten, *joined)
    if options.overlap:
        fused, added, copies = overlap_halves(fused)
        rewritten = _told(rewritten, copies, added)
    for share, offload in ((options.offload.experts, offload_experts), (options.offload.caches, offload_caches)):
        if share:
            fused, added, copies = offload(fused, share, options.queue_of)
            rewritten = _told(rewritten, copies, added)
    return BuiltProgram(fused, stage.held, rewritten, composed.missing)


def _told(
    told: tuple[Rewritten, ...], copies: Mapping[str, str], added: tuple[Rewritten, ...]
) -> tuple[Rewritten, ...]:
    """What is told of blocks, of their copies too, and what was added to these."""
    copied = (replace(one, block=new) for new, old in copies.items() for one in told if one.block == old)
    return (*told, *copied, *added)


def place(built: BuiltProgram, arena: ArenaPlan) -> LoweredProgram:
    """Lay the program's locals into its arena, add the waits that makes, and check it all."""
    program = synchronise(built.program, arena)
    check_program(program)
    return LoweredProgram(program, arena, built.held)


def lower(graph: Graph, layout: Layout, rank: int, options: LoweringOptions, largest: Binding) -> LoweredProgram:
    """Lower `rank`'s part of the model for steps whose extents are at most `largest`."""
    built = build(graph, layout, rank, options)
    return place(built, plan_arena(built.program, largest))
