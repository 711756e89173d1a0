"""Wires: what a collective or a transfer demands of the links it crosses and of the cards at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..interconnect.collectives.amounts import Measured, measure
from ..interconnect.collectives.flows import PlacedPlan, PlacedShape, place
from ..interconnect.collectives.plan import Ints, Plan
from ..interconnect.collectives.protocol import Protocol
from ..interconnect.topology import Topology
from ..isa.dtype import DType
from ..isa.work import CollectiveShape, TransferShape, Work
from .calendar.activity import Demand
from .calendar.amounts import Amounts
from .calendar.resource_columns import Resources
from .calendar.shares import share_of
from .choosing import Choose
from .exchange_costs import alone_of, at_ends, ends_ps, issue_ps
from .parts import sizes_of, total_of
from .span import Bound
from .spec import CardSpec

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
        dispatch_ps, sizes = issue_ps(dispatch_ps, plan, protocol), sizes_of(message.part_bytes)
        held = measure(self._placed(plan, ranks).shape, sizes, protocol).steps
        for index in range(plan.num_steps):
            placed = self._placed(plan.step(index), ranks)
            measured = measure(placed.shape, sizes)
            fixed_ps = int(held.latency_ps[index]) + (0 if demands else dispatch_ps)
            flow_ps = max(int(held.flow_ps[index]), *ends_ps(measured, message.dtype, self._card))
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
        choice = self._choose(message.kind, len(ranks), self._at(ranks), total_of(message.part_bytes), message.dtype)
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
        whole = measure(shape, sizes_of(message.part_bytes), protocol)
        alone = alone_of(whole, message.kind, message.dtype, self._card, dispatch_ps)
        return self._on_links_and_ports(*alone, whole, message.dtype)

    def _on_links_and_ports(
        self, fixed_ps: int, alone_ps: int, bound: Bound, measured: Measured, dtype: DType | None
    ) -> _Alike:
        at_ports = np.stack(at_ends(measured, dtype, self._card), axis=1).reshape(-1)
        links, ports = np.flatnonzero(measured.link_bytes), np.flatnonzero(at_ports)
        amounts = np.concatenate((measured.link_bytes[links], at_ports[ports]))
        return _Alike(fixed_ps, alone_ps, bound, links, ports, amounts)

    def _stand(self, alike: _Alike, placed: PlacedPlan, ranks: tuple[int, ...]) -> Ints:
        """The resources of the amounts where the members stand."""
        links, ports = placed.links[alike.links], self._ports[list(ranks)].reshape(-1)[alike.ports]
        return np.concatenate((self._link_resources[links], ports))


def _amounts(resources: Ints, amounts: Ints) -> Sequence[tuple[int, int]]:
    """The amounts of a demand."""
    columns = Amounts(resources, amounts)
    return columns if len(columns) > FEW else columns.pairs
