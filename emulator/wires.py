"""Wires: what a collective or a transfer demands of the links it crosses and of the cards at their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..interconnect.collectives.amounts import GroupAmounts, StepProfile, group_amounts, step_profile
from ..interconnect.collectives.plan import Plan
from ..interconnect.topology import Topology
from ..isa.dtype import DType
from ..isa.work import CollectiveShape, TransferShape, Unit, Work
from .calendar.activity import Demand
from .span import Bound
from .spec import CardSpec
from .units.link import reduction_cycles
from .units.rates import ps_for

RECV, RECV_REDUCE = TRANSFERS = ("send_recv", "send_recv_reduce")  # the interconnect's names
KEPT_COSTS = 1 << 13  # forgotten all at once; steps of changing length would pile them up


class Message(NamedTuple):
    """What members must agree on: the collective's name in the interconnect, the bytes of its parts, dtype, root."""

    kind: str
    part_bytes: tuple[int, ...]
    dtype: DType | None
    root: int

    def __str__(self) -> str:
        parts = "+".join(map(str, self.part_bytes)) or "no"
        return f"{self.kind} of {parts} bytes" + (f" in {self.dtype}" if self.dtype else "") + f", root {self.root}"


def message_of(work: Work) -> Message:
    """The message of a link instruction."""
    shape = work.shape
    if isinstance(shape, TransferShape):
        kind = RECV_REDUCE if shape.reduces else RECV
        return Message(kind, (shape.num_bytes,), shape.dtype, 0)
    assert isinstance(shape, CollectiveShape), f"a link instruction has the shape {shape}"
    return Message(shape.kind, shape.part_bytes, shape.dtype, shape.root)


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

    `choose(collective, group size, root)` is the plan by which a collective runs. ConfigError where there is no route.
    """

    def __init__(
        self,
        card: CardSpec,
        topology: Topology,
        link_resources: Sequence[int],
        ports: Sequence[Ports],
        choose: Callable[[str, int, int], Plan],
    ) -> None:
        self._card, self._topology, self._ports, self._choose = card, topology, ports, choose
        self._link_resources = link_resources
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
        for amounts in self._step_amounts(message, ranks):
            fixed_ps = amounts.latency_ps + (0 if demands else dispatch_ps)
            flow_ps = max(amounts.flow_ps, *self._ends_ps(amounts, message.dtype))
            demands.append(Demand(fixed_ps, flow_ps, self._amounts(amounts, ranks, message.dtype)))
        return tuple(demands) or (Demand(dispatch_ps, 0, ()),)

    def _cost(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> GroupCost:
        plan = self._choose(message.kind, len(ranks), message.root)
        whole = group_amounts(plan, message.part_bytes, ranks, self._topology)
        excess_ps = self._excess_ps(step_profile(plan, message.part_bytes, ranks, self._topology), message.dtype)
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

    def _step_amounts(self, message: Message, ranks: tuple[int, ...]) -> Iterator[GroupAmounts]:
        plan = self._choose(message.kind, len(ranks), message.root)
        for index in range(plan.num_steps):
            yield group_amounts(plan.step(index), message.part_bytes, ranks, self._topology)

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
