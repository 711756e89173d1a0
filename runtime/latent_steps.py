"""What latent attention does in a job's steps, by its own instructions: its order of products, and its workspace."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ..isa.instruction import Instruction
from ..isa.operands import NameKind
from ..isa.program import Binding, Block, BoundShapes, Program
from ..isa.work import Work
from ..models.blocks import LatentAttention
from .context import mode_of
from .halves import half_portions
from .lowering.context import Mode
from .lowering.latent_order import LATENT
from .lowering.passes.overlap import is_second
from .portions import Portion
from .report import LatentReport
from .scheduler import Entry, Step, StepKind

if TYPE_CHECKING:
    from .plan import JobPlan, Variant


class _Site(NamedTuple):
    """The latent attention of a block, with the program's names behind the block's extents that it reads.

    `lengths` are those of the program's extents that decide what each instruction does.
    """

    block: Block
    extents: dict[str, str]
    instructions: tuple[Instruction, ...]
    lengths: tuple[tuple[str, ...], ...]


class _Asked(NamedTuple):
    """What latent attention does in a portion, and the most workspace that an instruction needs."""

    expanded: int = 0
    absorbed: int = 0
    pieces: int = 0
    workspace_bytes: int = 0

    def beside(self, other: _Asked) -> _Asked:
        """What two instructions do."""
        most = max(self.pieces, other.pieces), max(self.workspace_bytes, other.workspace_bytes)
        return _Asked(self.expanded + other.expanded, self.absorbed + other.absorbed, *most)


class LatentSteps:
    """The latent attention of programs in the portions of steps; equal portions and equal layers are asked about once.

    `held` are portions of a job's steps up to its first that only decodes, and `steps` these steps.
    """

    def __init__(self, plan: JobPlan, held: Iterable[Portion], steps: Iterable[Step]) -> None:
        ends = {request.index: request.most_kv_tokens for request in plan.asked}
        last = [portion for step in last_decodes(steps, ends) for portion in half_portions(plan, step)]
        self._plan, self._held = plan, [*held, *last]
        self._bindings: dict[tuple[object, ...], Binding] = {}
        self._asked: dict[tuple[object, ...], _Asked] = {}
        self._sites: dict[str, tuple[_Site, ...]] = {}
        self._programs: dict[Mode, Program | None] = {}

    def workspace_bytes(self, variants: Mapping[Variant, Program]) -> int:
        """The most that an instruction of a rank's programs needs in any step."""
        programs = {variant.mode: program for variant, program in variants.items()}
        if not any(map(self.sites, programs.values())):
            return 0
        alike: dict[tuple[object, ...], list[Portion]] = {}
        for portion in self._held:
            share = portion.holder if self._plan.layout.cp > 1 else 0
            alike.setdefault((mode_of(self._plan, portion), share, portion.counts), []).append(portion)
        asked = (one for portions in alike.values() for one in self._largest(programs, portions))
        return max((one.workspace_bytes for one in asked), default=0)

    def _largest(self, programs: Mapping[Mode, Program], held: list[Portion]) -> Iterator[_Asked]:
        """What those of some portions with as many new tokens ask that may need most.

        A longer context never needs less while all its sequences are expanded, as shorter ones then are too, nor does
        it matter where all are absorbed in any case.
        """
        left = sorted(held, key=lambda portion: sum(entry.start for entry in portion.entries), reverse=True)
        while left:
            longest, *left = left
            asked = self.asked(programs[mode_of(self._plan, longest)], longest)
            yield asked
            if not asked.absorbed or self._plan.latent.order == "absorbed":
                left = [portion for portion in left if not _is_within(portion, longest)]

    def program(self, mode: Mode) -> Program | None:
        """A program of a mode with latent attention, of the first stage that has such; None where it is composed."""
        if mode not in self._programs:
            layout, variants = self._plan.layout, self._plan.variants
            variant = next(variant for variant in variants if variant.mode == mode)
            built = (self._plan.built(layout.rank(stage, 0, 0), variant).program for stage in range(layout.pp))
            self._programs[mode] = next((program for program in built if self.sites(program)), None)
        return self._programs[mode]

    def asked(self, program: Program, portion: Portion) -> _Asked:
        """What one layer's latent attention is asked in a portion; its workspace is the most of any layer."""
        binding = self.binding(portion)
        first, *others = [
            reduce(_Asked.beside, (self._asked_of(program, site, at, binding) for at in range(len(site.instructions))))
            for site in self.sites(program)
        ]
        return first._replace(workspace_bytes=max(one.workspace_bytes for one in (first, *others)))

    def _asked_of(self, program: Program, site: _Site, at: int, binding: Binding) -> _Asked:
        """What an instruction of a site is asked, by the lengths that it reads."""
        instruction = site.instructions[at]
        key = program.name, site.block.name, at, tuple(binding.extents[name] for name in site.lengths[at])
        if key not in self._asked:
            work = _work(program, site, instruction, binding)
            orders = [shape.by_order for shape in work.latent_shapes]
            self._asked[key] = _Asked(
                sum(len(expanded) for expanded, _ in orders),
                sum(len(absorbed) for _, absorbed in orders),
                max(len(shape.pieces) for shape in work.latent_shapes),
                work.workspace_bytes,
            )
        return self._asked[key]

    def works(self, program: Program, portion: Portion) -> list[Work]:
        """The Work of the latent attention of every layer, that of equal layers once."""
        binding, sites = self.binding(portion), self.sites(program)
        return [_work(program, site, instruction, binding) for site in sites for instruction in site.instructions]

    def sites(self, program: Program) -> tuple[_Site, ...]:
        """Where a program has latent attention, equal layers once."""
        if program.name not in self._sites:
            self._sites[program.name] = tuple(_sites(program))
        return self._sites[program.name]

    def binding(self, portion: Portion) -> Binding:
        """What latent attention reads of what a portion's ranks bind."""
        key: tuple[object, ...] = portion.counts, tuple(entry.start for entry in portion.entries)
        if self._plan.layout.cp > 1:
            owned = ((self._plan.ownership(entry.request), entry.start, entry.count) for entry in portion.entries)
            key = portion.share, *owned  # one object for all requests that are owned alike
        if key not in self._bindings:
            own = {
                "tokens": (portion.tokens,),
                "sequences": (len(portion.entries),),
                "q_lens": portion.counts,
                "kv_lens": tuple(entry.start + entry.count for entry in portion.entries),
            }
            largest = self._plan.largest
            spread = self._plan.spread(portion) if self._plan.layout.cp > 1 else {}
            self._bindings[key] = replace(largest, extents=ChainMap(spread, own, dict(largest.extents)))
        return self._bindings[key]


def _work(program: Program, site: _Site, instruction: Instruction, binding: Binding) -> Work:
    return instruction.work(BoundShapes(site.block, program.group_sizes, binding, site.extents))


def _sites(program: Program) -> Iterator[_Site]:
    extents: dict[str, dict[tuple[str, ...], None]] = {}
    for call in program.calls:
        extents.setdefault(call.block, {})[call.extents] = None
    seen: set[tuple[object, ...]] = set()
    for block in program.blocks:
        asked = (issue.instruction for issue in block.body if isinstance(issue.instruction, LATENT))
        own = tuple(one for one in asked if not is_second(one))  # which asks as the first half does of its own portion
        if not own:
            continue
        types = tuple(block.types[ref.buffer] for instruction in own for ref, _ in instruction.refs())
        read = [_extents_of(instruction) for instruction in own]
        for call_extents in extents[block.name]:
            bound = dict(zip(block.extents, call_extents, strict=True))
            names = {name: bound[name] for name in dict.fromkeys(chain(*read)) if name in bound}
            key = own, types, tuple(names.items())
            if key not in seen:
                seen.add(key)
                lengths = tuple(tuple(names.get(name, name) for name in one) for one in read)
                yield _Site(block, names, own, lengths)


def _extents_of(instruction: Instruction) -> list[str]:
    """The vector extents that an instruction names."""
    operands = instruction.operands.items()
    return [getattr(instruction, name) for name, operand in operands if operand.names is NameKind.EXTENT]


def _is_within(portion: Portion, other: Portion) -> bool:
    """Whether no entry of a portion begins later than that of another."""
    return all(one.start <= two.start for one, two in zip(portion.entries, other.entries, strict=True))


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
        own += [_asked(plan, portion) for portion in half_portions(plan, step) if portion.tokens]
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
