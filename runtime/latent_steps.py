"""What latent attention does in a job's steps, by its own instructions: its order of products, and its workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..isa.program import Binding, BoundShapes, Program
from ..isa.work import Work
from ..models.blocks import LatentAttention
from .context import Context, mode_of
from .lowering.context import Mode
from .lowering.latent_order import LATENT
from .portions import Portion, portions
from .report import LatentReport
from .scheduler import Entry, Step

if TYPE_CHECKING:
    from .plan import JobPlan, Variant

Works = tuple[tuple[Work, ...], ...]  # of every block that has latent attention, called with these extents


class LatentSteps:
    """The latent attention of programs in the portions of steps; equal portions are asked about once.

    `held` are portions of a job's steps up to its first that only decodes, and `steps` these steps.
    """

    def __init__(self, plan: JobPlan, held: Iterable[Portion], steps: Iterable[Step]) -> None:
        ends = {request.index: request.most_kv_tokens for request in plan.requests()}
        last = [portion for step in last_decodes(steps, ends) for portion in portions(plan, step)]
        self._plan, self._held = plan, [*held, *last]
        self._bindings: dict[tuple[object, ...], Binding] = {}
        self._works: dict[tuple[str, tuple[object, ...]], Works] = {}

    def workspace_bytes(self, variants: Mapping[Variant, Program]) -> int:
        """The most that an instruction of a rank's programs needs in any step."""
        if not any(map(_has_latents, variants.values())):
            return 0
        programs = {variant.mode: program for variant, program in variants.items()}
        held = ((programs[mode_of(self._plan, portion)], portion) for portion in self._held)
        works = (work for program, portion in held for block in self.works(program, portion) for work in block)
        return max((work.workspace_bytes for work in works), default=0)

    def program(self, mode: Mode) -> Program | None:
        """A program of a mode with latent attention, of the first stage that has such; None where it is composed."""
        layout, variants = self._plan.layout, self._plan.variants
        variant = next(variant for variant in variants if variant.mode == mode)
        built = (self._plan.built(layout.rank(stage, 0, 0), variant) for stage in range(layout.pp))
        return next((found.program for found in built if _has_latents(found.program)), None)

    def works(self, program: Program, portion: Portion) -> Works:
        """What the latent attention of a program is asked in a portion."""
        key: tuple[object, ...] = portion.counts, tuple(entry.start for entry in portion.entries)
        if self._plan.layout.cp > 1:
            key = portion.holder, portion.entries
        if (program.name, key) not in self._works:
            if key not in self._bindings:
                self._bindings[key] = self._binding(portion)
            self._works[program.name, key] = tuple(_works(program, self._bindings[key]))
        return self._works[program.name, key]

    def _binding(self, portion: Portion) -> Binding:
        entries, largest = portion.entries, self._plan.largest
        spread = Context(self._plan, portion).extents() if self._plan.layout.cp > 1 else {}
        own = {
            "tokens": (portion.tokens,),
            "sequences": (len(entries),),
            "q_lens": portion.counts,
            "kv_lens": tuple(entry.start + entry.count for entry in entries),
        }
        return replace(largest, extents={**largest.extents, **own, **spread})


def _has_latents(program: Program) -> bool:
    """Whether some instruction of a program is latent attention."""
    return any(isinstance(issue.instruction, LATENT) for block in program.blocks for issue in block.body)


def _works(program: Program, binding: Binding) -> Iterator[tuple[Work, ...]]:
    for block in program.blocks:
        own = [issue.instruction for issue in block.body if isinstance(issue.instruction, LATENT)]
        called = dict.fromkeys(call.extents for call in program.calls if call.block == block.name) if own else {}
        for extents in called:
            names = dict(zip(block.extents, extents, strict=True))
            shapes = BoundShapes(block, program.group_sizes, binding, names)
            yield tuple(instruction.work(shapes) for instruction in own)


def last_decodes(steps: Iterable[Step], ends: Mapping[int, int]) -> Iterator[Step]:
    """Steps that only decode, moved to where each sequence ends: with `ends` tokens in its cache."""
    for step in steps:
        if step.kind == "decode":
            yield replace(step, entries=tuple(Entry(e.request, ends[e.request] - 1, 1, True) for e in step.entries))


def latent_reports(plan: JobPlan, steps: Iterable[Step]) -> tuple[LatentReport, ...]:
    """What latent attention did in all steps of each kind; nothing for a model without it."""
    if not any(isinstance(layer.attention, LatentAttention) for layer in plan.graph.layers):
        return ()
    found: dict[str, LatentReport] = {}
    for step in steps:
        said = found.get(step.kind) or LatentReport(kind=step.kind, piece_tokens=plan.latent.piece_tokens)
        for portion in portions(plan, step):
            if portion.tokens:
                said = _with(said, plan, portion)
        found[step.kind] = said
    return tuple(found.values())


def _with(said: LatentReport, plan: JobPlan, portion: Portion) -> LatentReport:
    """A report, and one portion more; a card that composes latent attention absorbs."""
    program = plan.latent_steps.program(mode_of(plan, portion))
    if program is None:
        return said.model_copy(update={"absorbed": said.absorbed + sum(map(bool, portion.counts))})
    blocks = plan.latent_steps.works(program, portion)
    shapes = [shape for work in blocks[0] for shape in work.latent_shapes]
    orders = [shape.by_order for shape in shapes]
    return said.model_copy(
        update={
            "expanded": said.expanded + sum(len(expanded) for expanded, _ in orders),
            "absorbed": said.absorbed + sum(len(absorbed) for _, absorbed in orders),
            "pieces": max([said.pieces, *(len(shape.pieces) for shape in shapes)]),
            "workspace_bytes": max(
                [said.workspace_bytes, *(work.workspace_bytes for works in blocks for work in works)]
            ),
        }
    )
