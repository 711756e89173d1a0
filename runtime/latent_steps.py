"""What latent attention does in a job's steps, by its own instructions: its order of products, and its workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..isa.instruction import Instruction
from ..isa.operands import NameKind
from ..isa.program import Binding, Block, BoundShapes, Program
from ..isa.work import Work
from ..models.blocks import LatentAttention
from .context import Context, mode_of
from .lowering.context import Mode
from .lowering.latent_order import LATENT
from .portions import Portion, portions
from .report import LatentReport
from .scheduler import Entry, Step, StepKind

if TYPE_CHECKING:
    from .plan import JobPlan, Variant


class _Site(NamedTuple):
    """The latent attention of a block, with the program's names behind the block's extents that it reads."""

    block: Block
    extents: dict[str, str]
    instructions: tuple[Instruction, ...]


class _Asked(NamedTuple):
    """What one layer's latent attention does in a portion, and the most workspace that any layer's needs."""

    expanded: int = 0
    absorbed: int = 0
    pieces: int = 0
    workspace_bytes: int = 0


class LatentSteps:
    """The latent attention of programs in the portions of steps; equal portions and equal layers are asked about once.

    `held` are portions of a job's steps up to its first that only decodes, and `steps` these steps.
    """

    def __init__(self, plan: JobPlan, held: Iterable[Portion], steps: Iterable[Step]) -> None:
        ends = {request.index: request.most_kv_tokens for request in plan.requests()}
        last = [portion for step in last_decodes(steps, ends) for portion in portions(plan, step)]
        self._plan, self._held = plan, [*held, *last]
        self._bindings: dict[tuple[object, ...], Binding] = {}
        self._asked: dict[tuple[str, tuple[object, ...]], _Asked] = {}
        self._sites: dict[str, tuple[_Site, ...]] = {}
        self._programs: dict[Mode, Program | None] = {}

    def workspace_bytes(self, variants: Mapping[Variant, Program]) -> int:
        """The most that an instruction of a rank's programs needs in any step."""
        programs = {variant.mode: program for variant, program in variants.items()}
        if not any(map(self.sites, programs.values())):
            return 0
        held = ((programs[mode_of(self._plan, portion)], portion) for portion in self._held)
        return max((self.asked(program, portion).workspace_bytes for program, portion in held), default=0)

    def program(self, mode: Mode) -> Program | None:
        """A program of a mode with latent attention, of the first stage that has such; None where it is composed."""
        if mode not in self._programs:
            layout, variants = self._plan.layout, self._plan.variants
            variant = next(variant for variant in variants if variant.mode == mode)
            built = (self._plan.built(layout.rank(stage, 0, 0), variant).program for stage in range(layout.pp))
            self._programs[mode] = next((program for program in built if self.sites(program)), None)
        return self._programs[mode]

    def asked(self, program: Program, portion: Portion) -> _Asked:
        """What the latent attention of a program is asked in a portion."""
        key = program.name, self._key(portion)
        if key not in self._asked:
            works = self.works(program, portion)
            orders = [shape.by_order for work in works[0] for shape in work.latent_shapes]
            self._asked[key] = _Asked(
                sum(len(expanded) for expanded, _ in orders),
                sum(len(absorbed) for _, absorbed in orders),
                max(len(shape.pieces) for work in works[0] for shape in work.latent_shapes),
                max(work.workspace_bytes for block in works for work in block),
            )
        return self._asked[key]

    def works(self, program: Program, portion: Portion) -> list[tuple[Work, ...]]:
        """The Work of the latent attention of every layer, those of equal layers once."""
        key = self._key(portion)
        if key not in self._bindings:
            self._bindings[key] = self._binding(portion)
        found = []
        for block, extents, instructions in self.sites(program):
            shapes = BoundShapes(block, program.group_sizes, self._bindings[key], extents)
            found.append(tuple(instruction.work(shapes) for instruction in instructions))
        return found

    def sites(self, program: Program) -> tuple[_Site, ...]:
        """Where a program has latent attention, equal layers once."""
        if program.name not in self._sites:
            self._sites[program.name] = tuple(_sites(program))
        return self._sites[program.name]

    def _key(self, portion: Portion) -> tuple[object, ...]:
        """What decides the extents of a portion."""
        if self._plan.layout.cp > 1:
            return portion.holder, portion.entries
        return portion.counts, tuple(entry.start for entry in portion.entries)

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


def _sites(program: Program) -> Iterator[_Site]:
    extents: dict[str, dict[tuple[str, ...], None]] = {}
    for call in program.calls:
        extents.setdefault(call.block, {})[call.extents] = None
    seen: set[tuple[object, ...]] = set()
    for block in program.blocks:
        own = tuple(issue.instruction for issue in block.body if isinstance(issue.instruction, LATENT))
        if not own:
            continue
        types = tuple(block.types[ref.buffer] for instruction in own for ref, _ in instruction.refs())
        read = {
            getattr(one, name) for one in own for name, kind in one.operands.items() if kind.names is NameKind.EXTENT
        }
        for bound in extents[block.name]:
            names = {name: named for name, named in zip(block.extents, bound, strict=True) if name in read}
            key = own, types, tuple(names.items())
            if key not in seen:
                seen.add(key)
                yield _Site(block, names, own)


def last_decodes(steps: Iterable[Step], ends: Mapping[int, int]) -> Iterator[Step]:
    """Steps that only decode, moved to where each sequence ends: with `ends` tokens in its cache."""
    for step in steps:
        if step.kind == "decode":
            yield replace(step, entries=tuple(Entry(e.request, ends[e.request] - 1, 1, True) for e in step.entries))


def latent_reports(plan: JobPlan, steps: Iterable[Step]) -> tuple[LatentReport, ...]:
    """What latent attention did in all steps of each kind; nothing for a model without it."""
    if not any(isinstance(layer.attention, LatentAttention) for layer in plan.graph.layers):
        return ()
    found: dict[StepKind, list[_Asked]] = {}
    for step in steps:
        own = found.setdefault(step.kind, [])
        own += [_asked(plan, portion) for portion in portions(plan, step) if portion.tokens]
    return tuple(
        LatentReport(
            kind=kind,
            expanded=sum(one.expanded for one in asked),
            absorbed=sum(one.absorbed for one in asked),
            pieces=max((one.pieces for one in asked), default=0),
            piece_tokens=plan.latent.piece_tokens,
            workspace_bytes=max((one.workspace_bytes for one in asked), default=0),
        )
        for kind, asked in found.items()
    )


def _asked(plan: JobPlan, portion: Portion) -> _Asked:
    """What a portion asks of latent attention; a card that composes it absorbs."""
    program = plan.latent_steps.program(mode_of(plan, portion))
    if program is None:
        return _Asked(absorbed=sum(map(bool, portion.counts)))
    return plan.latent_steps.asked(program, portion)
