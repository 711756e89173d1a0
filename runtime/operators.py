"""Operators of a job's programs: which instructions a step issues, in which element types, and what some cost alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..emulator.cluster import Cluster
from ..emulator.spec import CardSpec
from ..emulator.ticket import Submission
from ..isa.instruction import Instruction, TensorType
from ..isa.program import Binding, Block, BoundShapes, Buffer, Call, Issue, Program, Space
from ..isa.work import CollectiveShape, TransferShape, Work
from .lowering.arena import plan_arena
from .lowering.lower import BuiltProgram, place
from .lowering.templates import Weights
from .plan import JobPlan
from .prepare import cluster_of
from .report_coverage import Cost

LINKED = (CollectiveShape, TransferShape)


@dataclass(frozen=True)
class Site:
    """An instruction of a block, and how often a step calls it; `call` is the first of these."""

    program: Program
    block: Block
    call: Call
    instruction: Instruction
    calls: int

    def shapes(self, binding: Binding) -> BoundShapes:
        """Its operands, every extent a number."""
        return BoundShapes(self.block, self.program.group_sizes, binding, self.program.extents_of(self.call))

    def work(self, binding: Binding) -> Work:
        """Its Work in a step."""
        return self.instruction.work(self.shapes(binding))

    def dtype(self, binding: Binding) -> str:
        """The element type it computes in, or that of what it moves."""
        work = self.work(binding)
        if work.dtype is not None:
            return work.dtype.name
        if isinstance(work.shape, LINKED) and work.shape.dtype is not None:
            return work.shape.dtype.name
        refs = [ref for ref, _ in self.instruction.refs()]
        return self.shapes(binding).type_of(refs[0]).dtype.name if refs else "-"


def sites(program: Program) -> Iterator[Site]:
    """Every instruction of every block that the program calls."""
    counts = Counter(call.block for call in program.calls)
    first = {call.block: call for call in reversed(program.calls)}
    for block in program.blocks:
        for issue in block.body:
            yield Site(program, block, first[block.name], issue.instruction, counts[block.name])


def block_kinds(plan: JobPlan, rank: int, program: Program) -> dict[str, str]:
    """What each block of a rank's program is: a layer by what it is made of, all others by their own name."""
    stage = plan.layout.stage_of(rank)
    layers = iter(plan.layout.stage_layers(len(plan.graph.layers))[stage])
    kinds: dict[str, str] = {}
    for call in program.calls:
        kind, _, _ = call.block.partition(".")
        if kind == "layer":
            layer = plan.graph.layers[next(layers)]
            kind = f"{type(layer.attention).__name__} + {type(layer.mlp).__name__}"
        kinds.setdefault(call.block, kind)
    return kinds


def hbm_bytes(program: Program, binding: Binding) -> int:
    """Bytes to and from HBM that the Works of a whole step ask for; exchanges between cards aside."""
    total = 0
    for site in sites(program):
        work = site.work(binding)
        if not isinstance(work.shape, LINKED):
            total += site.calls * (work.read_bytes + work.write_bytes)
    return total


def cost_alone(
    plan: JobPlan,
    card: CardSpec,
    site: Site,
    parts: Sequence[Instruction],
    types: Mapping[str, TensorType],
    bind: Binding,
) -> Cost:
    """What some instructions cost on an otherwise idle card, emulated as a program of their own.

    `types` are those of all buffers they mention; what is a parameter of the site's block stays one.
    """
    program = _alone(plan, site, parts, types)
    lowered = place(BuiltProgram(program, Weights()), plan_arena(program, bind))
    cluster = Cluster(card, cluster_of(card, 1, None).topology(), 1)
    ticket = cluster.submit([Submission(0, lowered.program, Binding(bind.extents, {}), {})])
    cluster.run_until(ticket)
    moved = hbm_bytes(lowered.program, bind)
    return Cost(launches=len(parts), hbm_bytes=moved, time_ps=ticket.end_ps - ticket.start_ps)


def _alone(plan: JobPlan, site: Site, parts: Sequence[Instruction], types: Mapping[str, TensorType]) -> Program:
    used = dict.fromkeys(ref.buffer for part in parts for ref, _ in part.refs())
    held = site.block.types  # what others of the block make is given here
    params = tuple((name, types[name]) for name in used if name in held)
    block = Block(
        name="alone",
        params=params,
        locals=tuple((name, types[name]) for name in used if name not in held),
        body=tuple(Issue(plan.queue_of[type(part).unit], part) for part in parts),
        extents=site.block.extents,
    )
    buffers = tuple(Buffer(name, kind, Space.ACTIVATION) for name, kind in params)
    call = Call("alone", tuple(name for name, _ in params), site.call.extents)
    return replace(site.program, name="alone", buffers=buffers, blocks=(block,), calls=(call,), groups=())


def plus(one: Cost, other: Cost, times: int) -> Cost:
    """A sum of costs, the second as often as it occurs."""
    return Cost(
        launches=one.launches + times * other.launches,
        hbm_bytes=one.hbm_bytes + times * other.hbm_bytes,
        time_ps=one.time_ps + times * other.time_ps,
    )
