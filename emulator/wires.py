"""Wires: what a collective or a transfer demands of the links it crosses and of the cards at their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..interconnect.collectives.amounts import Measured, StepProfile, measure
from ..interconnect.collectives.flows import PlacedPlan, PlacedShape, place
from ..interconnect.collectives.plan import Ints, Plan
from ..interconnect.collectives.protocol import Protocol
from ..interconnect.topology import Topology
from ..isa.dtype import DType
from ..isa.work import CollectiveShape, TransferShape, Unit, Work
from .calendar.activity import Demand
from .calendar.amounts import Amounts
from .calendar.resource_columns import Resources
from .calendar.shares import share_of
from .choosing import Choose
from .parts import sizes_of, total_of
from .span import Bound
from .spec import CardSpec
from .units.link import reduction_cycles
from .units.rates import ps_for

RECV, RECV_REDUCE = TRANSFERS = ("send_recv", "send_recv_reduce")  # the interconnect's names
LISTED = 64  # parts that a message's text names
KEPT_COSTS = 1 << 11  # forgotten all at once; steps of changing length would pile them up
FEW = 16  # amounts that are handled faster one by one


class Message(NamedTuple):
    """What members must agree on: the collective's name in the interconnect, the bytes of its parts, dtype, root.

    Of an all-to-all a member knows but what it sends to each, `part_bytes`, and gets from each, `arriving_bytes`; the
    message of the group has all parts, as `Parts`, and no `arriving_bytes`.
    """

    kind: str
    part_bytes: Sequence[int]
    dtype: DType | None
    root: int
    arriving_bytes: Sequence[int] = ()

    @property
    def terms(self) -> tuple[object, ...]:
        """What is the same on every member."""
        return self if not self.arriving_bytes else (self.kind, self.dtype, self.root)

    def __str__(self) -> str:
        parts = "+".join(map(str, self.part_bytes[:LISTED])) or "no"
        if len(self.part_bytes) > LISTED:
            parts += f"+.. ({len(self.part_bytes)} parts of {total_of(self.part_bytes)} in all)"
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


class GroupShare(NamedTuple):
    """How an exchange takes part in the sharing: its times, and its uses as int64 [n] columns.

    `rate_bound`, `coefficients` and `loads` are as in `Share`; `units` are the resources that it must own.
    """

    fixed_ps: int
    alone_ps: int
    bound: Bound
    rate_bound: int
    resources: Ints
    coefficients: Ints
    loads: Ints
    units: Ints


class _Alike(NamedTuple):
    """What a message costs wherever its members stand alike: amounts on some links of their shape, then on some ports.

    Ports are every member's HBM and reducer, one after the other.
    """

    fixed_ps: int
    alone_ps: int
    bound: Bound
    links: Ints
    ports: Ints
    amounts: Ints


class Wires:
    """Costs of exchanges on one topology, kept by message, ranks and dispatch.

    `choose` says by which algorithm and protocol a collective runs, `nodes` on which node of the topology each rank
    stands. ConfigError where there is no route. Groups whose members stand alike are worked out once.
    """

    def __init__(
        self,
        card: CardSpec,
        topology: Topology,
        link_resources: Sequence[int],
        ports: Sequence[Ports],
        choose: Choose,
        nodes: Sequence[int],
        resources: Resources,
    ) -> None:
        self._card, self._topology, self._choose, self._nodes = card, topology, choose, nodes
        self._link_resources, self._resources = np.array(link_resources, np.int64), resources
        self._ports = np.array([(port.hbm, port.reducer) for port in ports], np.int64)
        self._costs: dict[tuple[Message, tuple[int, ...], int], GroupCost] = {}
        self._stood: dict[tuple[Message, tuple[int, ...], int], tuple[_Alike, Ints]] = {}
        self._alike: dict[tuple[PlacedShape, Message, Protocol, int], _Alike] = {}
        self._shares: dict[int, tuple[_Alike, Ints, Ints, int, Ints, Ints]] = {}

    def cost(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> GroupCost:
        """What a message between `ranks`, in group order, demands."""
        key = (message, ranks, dispatch_ps)
        cost = self._costs.get(key)
        if cost is None:
            alike, resources = self._cost(message, ranks, dispatch_ps)
            demand = Demand(alike.fixed_ps, alike.alone_ps, _amounts(resources, alike.amounts))
            if len(self._costs) >= KEPT_COSTS:
                self._costs.clear()
            cost = self._costs[key] = GroupCost(demand, alike.bound)
        return cost

    def share(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> GroupShare:
        """How that exchange shares links and ports, worked out once for groups that stand alike.

        Their links have equal speeds in the same order, and cards are equal, so that only the indices differ.
        """
        alike, resources = self._cost(message, ranks, dispatch_ps)
        none = resources[:0]
        if not alike.alone_ps:
            return GroupShare(alike.fixed_ps, 0, alike.bound, 1, none, none, none, none)
        known = self._shares.get(id(alike))
        if known is None:
            share = share_of(Demand(alike.fixed_ps, alike.alone_ps, Amounts(resources, alike.amounts)), self._resources)
            place_of = np.zeros(len(self._resources), np.int64)
            place_of[resources] = np.arange(len(resources))
            units = np.array([unit.index for unit in share.exclusive], np.int64)
            index, coefficients, loads = share.columns
            known = self._shares[id(alike)] = alike, place_of[index], place_of[units], share.bound, coefficients, loads
        _, uses, units, bound, coefficients, loads = known
        times = alike.fixed_ps, alike.alone_ps, alike.bound
        return GroupShare(*times, bound, resources[uses], coefficients, loads, np.sort(resources[units]))

    def steps(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> tuple[Demand, ...]:
        """The same exchange in lockstep, a demand a step; the dispatch stands before the first."""
        demands: list[Demand] = []
        plan, protocol = self._plan(message, ranks)
        dispatch_ps, sizes = _issue_ps(dispatch_ps, plan, protocol), sizes_of(message.part_bytes)
        held = measure(self._placed(plan, ranks).shape, sizes, protocol).steps
        for index in range(plan.num_steps):
            placed = self._placed(plan.step(index), ranks)
            measured = measure(placed.shape, sizes)
            fixed_ps = int(held.latency_ps[index]) + (0 if demands else dispatch_ps)
            flow_ps = max(int(held.flow_ps[index]), *self._ends_ps(measured, message.dtype))
            alike = self._on_links_and_ports(fixed_ps, flow_ps, "link", measured, message.dtype)
            demands.append(Demand(fixed_ps, flow_ps, _amounts(self._stand(alike, placed, ranks), alike.amounts)))
        return tuple(demands) or (Demand(dispatch_ps, 0, ()),)

    def _placed(self, plan: Plan, ranks: tuple[int, ...]) -> PlacedPlan:
        return place(plan, self._at(ranks), self._topology)

    def _at(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes on which ranks stand."""
        return tuple([self._nodes[rank] for rank in ranks])

    def _plan(self, message: Message, ranks: tuple[int, ...]) -> tuple[Plan, Protocol]:
        """By which plan a message runs, and how its library sends."""
        choice = self._choose(message.kind, len(ranks), self._at(ranks), total_of(message.part_bytes))
        return choice.plan(message.kind, len(ranks), message.root), choice.protocol

    def _cost(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> tuple[_Alike, Ints]:
        """What an exchange costs, and the resources of its amounts."""
        asked = (message, ranks, dispatch_ps)
        found = self._stood.get(asked)
        if found is None:
            if len(self._stood) >= KEPT_COSTS:
                self._stood.clear()
            found = self._stood[asked] = self._worked_out(message, ranks, dispatch_ps)
        return found

    def _worked_out(self, message: Message, ranks: tuple[int, ...], dispatch_ps: int) -> tuple[_Alike, Ints]:
        plan, protocol = self._plan(message, ranks)
        placed = self._placed(plan, ranks)
        key = placed.shape, message, protocol, dispatch_ps
        alike = self._alike.get(key)
        if alike is None:
            if len(self._alike) >= KEPT_COSTS:
                self._alike.clear()
                self._shares.clear()
            alike = self._alike[key] = self._measured(*key)
        return alike, self._stand(alike, placed, ranks)

    def _measured(self, shape: PlacedShape, message: Message, protocol: Protocol, dispatch_ps: int) -> _Alike:
        dispatch_ps = _issue_ps(dispatch_ps, shape.plan, protocol)
        whole = measure(shape, sizes_of(message.part_bytes), protocol)
        excess_ps = self._excess_ps(whole.steps, message.dtype)
        latency_ps, alone_ps = whole.latency_ps, whole.flow_ps + excess_ps
        bound: Bound = "link"
        if message.kind == "barrier":
            bound = "dependency"
        elif dispatch_ps > latency_ps + alone_ps:
            bound = "dispatch"
        elif excess_ps > latency_ps:
            memory_ps, reduction_ps = self._ends_ps(whole, message.dtype)
            bound = "hbm" if memory_ps >= reduction_ps else "compute"
        return self._on_links_and_ports(dispatch_ps + latency_ps, alone_ps, bound, whole, message.dtype)

    def _on_links_and_ports(
        self, fixed_ps: int, alone_ps: int, bound: Bound, measured: Measured, dtype: DType | None
    ) -> _Alike:
        at_ports = np.stack(self._ends(measured, dtype), axis=1).reshape(-1)
        links, ports = np.flatnonzero(measured.link_bytes), np.flatnonzero(at_ports)
        amounts = np.concatenate((measured.link_bytes[links], at_ports[ports]))
        return _Alike(fixed_ps, alone_ps, bound, links, ports, amounts)

    def _stand(self, alike: _Alike, placed: PlacedPlan, ranks: tuple[int, ...]) -> Ints:
        """The resources of the amounts where the members stand."""
        links, ports = placed.links[alike.links], self._ports[list(ranks)].reshape(-1)[alike.ports]
        return np.concatenate((self._link_resources[links], ports))

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

    def _ends_ps(self, measured: Measured, dtype: DType | None) -> tuple[int, int]:
        """Picoseconds that the busiest member's HBM takes, and its reductions."""
        num_bytes, cycles = (int(column.max()) for column in self._ends(measured, dtype))
        return ps_for(num_bytes, self._card.hbm.attainable_bytes_per_s), ps_for(cycles, self._card.clock_hz)

    def _ends(self, measured: Measured, dtype: DType | None) -> tuple[Ints, Ints]:
        """HBM bytes and reduction cycles of members: each reads what it sends or adds to, and writes what arrives."""
        work = Work(Unit.LINK, dtype=dtype)
        sizes, which = np.unique(measured.members[2], return_inverse=True)
        cycles = [reduction_cycles(work, reduced, self._card) if reduced else 0 for reduced in sizes.tolist()]
        return measured.members.sum(axis=0), np.array(cycles, np.int64)[which]


def _amounts(resources: Ints, amounts: Ints) -> Sequence[tuple[int, int]]:
    """The amounts of a demand."""
    columns = Amounts(resources, amounts)
    return columns if len(columns) > FEW else columns.pairs


def _issue_ps(dispatch_ps: int, plan: Plan, protocol: Protocol) -> int:
    """What a card's dispatch adds to a library's own start, which holds its launch: by how much it is longer."""
    return max(0, dispatch_ps - protocol.start_ps) if plan.num_steps else dispatch_ps
