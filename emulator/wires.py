"""Wires: what a collective or a transfer demands of the links it crosses and of the cards at their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..interconnect.collectives.amounts import GroupAmounts, StepProfile, group_amounts, step_profile
from ..interconnect.collectives.plan import Plan
from ..interconnect.collectives.protocol import Protocol
from ..interconnect.topology import Topology
from ..isa.dtype import DType
from ..isa.work import CollectiveShape, TransferShape, Unit, Work
from .calendar.activity import Demand
from .choosing import Choose
from .span import Bound
from .spec import CardSpec
from .units.link import reduction_cycles
from .units.rates import ps_for

RECV, RECV_REDUCE = TRANSFERS = ("send_recv", "send_recv_reduce")  # the interconnect's names
LISTED = 64  # parts that a message's text names
KEPT_COSTS = 1 << 13  # forgotten all at once; steps of changing length would pile them up


class Message(NamedTuple):
    """What members must agree on: the collective's name in the interconnect, the bytes of its parts, dtype, root.

    Of an all-to-all a member knows but what it sends to each, `part_bytes`, and gets from each, `arriving_bytes`; the
    message of the group has all parts and no `arriving_bytes`.
    """

    kind: str
    part_bytes: tuple[int, ...]
    dtype: DType | None
    root: int
    arriving_bytes: tuple[int, ...] = ()

    @property
    def terms(self) -> tuple[object, ...]:
        """What is the same on every member."""
        return self if not self.arriving_bytes else (self.kind, self.dtype, self.root)

    def __str__(self) -> str:
        parts = "+".join(map(str, self.part_bytes[:LISTED])) or "no"
        if len(self.part_bytes) > LISTED:
            parts += f"+.. ({len(self.part_bytes)} parts of {sum(self.part_bytes)} in all)"
        return f"{self.kind} of {parts} bytes" + (f" in {self.dtype}" if self.dtype else "") + f", root {self.root}"


def message_of(work: Work) -> Message:
    """The message of a link instruction."""
    shape = work.shape
    if isinstance(shape, TransferShape):
        kind = RECV_REDUCE if shape.reduces else RECV
        return Message(kind, (shape.num_bytes,), shape.dtype, 0)
    assert isinstance(shape, CollectiveShape), f"a link instruction has the shape {shape}"
    return Message(shape.kind, shape.part_bytes, shape.dtype, shape.root, shape.received_bytes)


@dataclass(frozen=True)
class Ports:
    """Where a card's ends of messages meet the calendar: its HBM and its reducing unit, as resource indices."""

    hbm: int
    reducer: int


class GroupCost(NamedTuple):
    """What an exchange demands as one activity of its whole group, and what would hold it alone.

    The fixed part is the link dispatch and every step's latency; the flowing part lasts, step by step, as long as the
    slowest of the busiest link, the busiest member's HBM and its reductions.
    """

    demand: Demand
    bound: Bound


class Wires:
    """Costs of exchanges on one topology, kept by message, ranks and dispatch.

    `choose` says by which algorithm and protocol a collective runs, `nodes` on which node of the topology each rank
    stands. ConfigError where there is no route.
    """

    def __init__(
        self,
        card: CardSpec,
        topology: Topology,
        link_resources: Sequence[int],
        ports: Sequence[Ports],
        choose: Choose,
        nodes: Sequence[int],
    ) -> None:
        self._card, self._topology, self._ports, self._choose = card, topology, ports, choose
        self._link_resources, self._nodes = link_resources, nodes
        self._costs: dict[tuple[Message, tuple[int, ...], int], GroupCost] = {}

    def cost(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> GroupCost:
        """What a message between `ranks`, in group order, demands."""
        key = (message, ranks, dispatch_ps)
        cost = self._costs.get(key)
        if cost is None:
            if len(self._costs) >= KEPT_COSTS:
                self._costs.clear()
            cost = self._costs[key] = self._cost(message, ranks, dispatch_ps)
        return cost

    def steps(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> tuple[Demand, ...]:
        """The same exchange in lockstep, a demand a step; the dispatch stands before the first."""
        demands: list[Demand] = []
        plan, protocol = self._plan(message, ranks)
        dispatch_ps = _issue_ps(dispatch_ps, plan, protocol)
        held = step_profile(plan, message.part_bytes, self._at(ranks), self._topology, protocol)
        for index in range(plan.num_steps):
            amounts = group_amounts(plan.step(index), message.part_bytes, self._at(ranks), self._topology)
            fixed_ps = int(held.latency_ps[index]) + (0 if demands else dispatch_ps)
            flow_ps = max(int(held.flow_ps[index]), *self._ends_ps(amounts, message.dtype))
            demands.append(Demand(fixed_ps, flow_ps, self._amounts(amounts, ranks, message.dtype)))
        return tuple(demands) or (Demand(dispatch_ps, 0, ()),)

    def _at(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes on which ranks stand."""
        return tuple([self._nodes[rank] for rank in ranks])

    def _plan(self, message: Message, ranks: tuple[int, ...]) -> tuple[Plan, Protocol]:
        """By which plan a message runs, and how its library sends."""
        choice = self._choose(message.kind, len(ranks), self._at(ranks), sum(message.part_bytes))
        return choice.plan(message.kind, len(ranks), message.root), choice.protocol

    def _cost(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> GroupCost:
        plan, protocol = self._plan(message, ranks)
        dispatch_ps = _issue_ps(dispatch_ps, plan, protocol)
        placed = plan, message.part_bytes, self._at(ranks), self._topology, protocol
        whole = group_amounts(*placed)
        excess_ps = self._excess_ps(step_profile(*placed), message.dtype)
        alone_ps = whole.flow_ps + excess_ps
        bound: Bound = "link"
        if message.kind == "barrier":
            bound = "dependency"
        elif dispatch_ps > whole.latency_ps + alone_ps:
            bound = "dispatch"
        elif excess_ps > whole.latency_ps:
            memory_ps, reduction_ps = self._ends_ps(whole, message.dtype)
            bound = "hbm" if memory_ps >= reduction_ps else "compute"
        amounts = self._amounts(whole, ranks, message.dtype)
        return GroupCost(Demand(dispatch_ps + whole.latency_ps, alone_ps, amounts), bound)

    def _excess_ps(self, steps: StepProfile, dtype: DType | None) -> int:
        """How much longer than the links the members' ends hold the steps, all added up."""
        work, bandwidth = Work(Unit.LINK, dtype=dtype), self._card.hbm.attainable_bytes_per_s
        rows = (steps.flow_ps, steps.moved_bytes, steps.reduced_bytes)
        times = Counter(zip(*(row.tolist() for row in rows), strict=True))  # most steps are alike
        total = 0
        for (flow_ps, moved, reduced), count in times.items():
            cycles = reduction_cycles(work, reduced, self._card) if reduced else 0
            ends_ps = max(ps_for(moved, bandwidth), ps_for(cycles, self._card.clock_hz))
            total += count * max(0, ends_ps - flow_ps)
        return total

    def _ends_ps(self, amounts: GroupAmounts, dtype: DType | None) -> tuple[int, int]:
        """Picoseconds that the busiest member's HBM takes, and its reductions."""
        ends = self._ends(amounts, dtype)
        memory_ps = ps_for(max(num_bytes for num_bytes, _ in ends), self._card.hbm.attainable_bytes_per_s)
        return memory_ps, ps_for(max(cycles for _, cycles in ends), self._card.clock_hz)

    def _ends(self, amounts: GroupAmounts, dtype: DType | None) -> list[tuple[int, int]]:
        """(HBM bytes, reduction cycles) of every member: it reads what it sends or adds to, and writes what arrives."""
        work, members = Work(Unit.LINK, dtype=dtype), amounts.members
        return [
            (read + written, reduction_cycles(work, reduced, self._card) if reduced else 0)
            for read, written, reduced in zip(
                members.read_bytes, members.write_bytes, members.reduced_bytes, strict=True
            )
        ]

    def _amounts(
        self, amounts: GroupAmounts, ranks: tuple[int, ...], dtype: DType | None
    ) -> tuple[tuple[int, int], ...]:
        asked = [(self._link_resources[link], num_bytes) for link, num_bytes in amounts.link_bytes.items()]
        for rank, (num_bytes, cycles) in zip(ranks, self._ends(amounts, dtype), strict=True):
            asked += [(self._ports[rank].hbm, num_bytes), (self._ports[rank].reducer, cycles)]
        return tuple((resource, amount) for resource, amount in asked if amount)


def _issue_ps(dispatch_ps: int, plan: Plan, protocol: Protocol) -> int:
    """What a card's dispatch adds to a library's own start, which holds its launch: by how much it is longer."""
    return max(0, dispatch_ps - protocol.start_ps) if plan.num_steps else dispatch_ps
