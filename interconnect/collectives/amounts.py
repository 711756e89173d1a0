"""What a plan moves: bytes on every link and at every member, and the time it takes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...isa.errors import ProgramError
from ..topology import Topology
from .cache import WeighedCache
from .flows import PlacedShape, place
from .plan import Ints, Plan
from .protocol import PLAIN, Protocol, Terms
from .sums import at_members

PS_PER_S = 10**12
KEPT_BYTES = 1 << 27
TWO_BUFFERS = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
TRANSFERS = ("send_recv", "send_recv_reduce")


@dataclass(frozen=True)
class PlanAmounts:
    """Bytes at every member of a group, by its index, wherever the members stand.

    `sent_bytes` leave a member's memory, `received_bytes` are written to it, and `reduced_bytes` are those of the
    received ones that are added to what was there, which is read first. `step_bytes` is the largest transfer of every
    step. What a switch adds up on the way is nobody's.
    """

    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    reduced_bytes: tuple[int, ...]
    step_bytes: tuple[int, ...]

    @property
    def read_bytes(self) -> tuple[int, ...]:
        """Bytes that each member's memory reads: what it sends, and its own operand of every addition."""
        return tuple(sent + own for sent, own in zip(self.sent_bytes, self.reduced_bytes, strict=True))

    @property
    def write_bytes(self) -> tuple[int, ...]:
        """Bytes that each member's memory writes: what it receives, added or not."""
        return self.received_bytes


@dataclass(frozen=True)
class GroupAmounts:
    """A plan placed on a topology: what it demands of links and members, and how long it takes alone.

    `link_bytes` maps the id of each directed link that carries any to its bytes over all steps. `flow_ps` is the
    flowing part alone: the sum over steps of the busiest link's bytes / bandwidth (and what store-and-forward holds up
    on the way), one ceiling of the exact rational at the end. `latency_ps` is the fixed part: the sum over steps of
    the longest route's latencies, and of the messages' overheads. An empty part still costs its latency, for its
    target waits for the news.
    """

    link_bytes: Mapping[int, int]
    members: PlanAmounts
    flow_ps: int
    latency_ps: int
    steps: int

    @property
    def alone_ps(self) -> int:
        """The whole time when nothing contends: latencies and flow."""
        return self.latency_ps + self.flow_ps

    @property
    def sent_bytes(self) -> tuple[int, ...]:
        """Bytes that leave each member, by index in the group."""
        return self.members.sent_bytes

    @property
    def received_bytes(self) -> tuple[int, ...]:
        """Bytes that reach each member."""
        return self.members.received_bytes

    @property
    def reduced_bytes(self) -> tuple[int, ...]:
        """Bytes of those received that each member adds to its own."""
        return self.members.reduced_bytes


@dataclass(frozen=True, eq=False)
class StepProfile:
    """The steps of a placed plan one by one, int64 [steps]: what holds each of them.

    `flow_ps` and `latency_ps` as in GroupAmounts, each step's flow rounded up, and what a protocol costs once in the
    first latency; `moved_bytes` is what the busiest
    member's memory reads and writes, `reduced_bytes` what the busiest reducer adds.
    """

    flow_ps: Ints
    latency_ps: Ints
    moved_bytes: Ints
    reduced_bytes: Ints


@dataclass(frozen=True, eq=False)
class Measured:
    """What a plan of some shape demands, as columns, wherever it stands.

    `link_bytes` are those on every link of the shape; `members`, int64 [3, size], those that each member sends,
    receives and reduces; `sizes` those of the transfers; `own_bytes` the largest share that a member takes from one of
    its buffers to the other; `terms` and `wire_latency_ps` are of every step, before the protocol's part.
    """

    plan: Plan
    protocol: Protocol
    sizes: Ints
    link_bytes: Ints
    members: Ints
    terms: list[Terms]
    wire_latency_ps: Ints
    own_bytes: int

    def under(self, protocol: Protocol) -> Measured:
        """The same bytes on the same wires, sent by another protocol."""
        return replace(self, protocol=protocol)

    @property
    def _members(self) -> int:
        """Those whose own shares go through the pipeline beside what crosses links."""
        return 0 if self.plan.collective in TRANSFERS else self.plan.size

    @property
    def step_latency_ps(self) -> Ints:
        """Picoseconds of every step beside its bytes, int64 [steps]; what the protocol costs once is in the first."""
        latency_ps = self.wire_latency_ps + self.protocol.latencies(self.plan.moves.streamed)
        latency_ps[:1] += self.protocol.once_ps(self.own_bytes)
        return latency_ps

    @property
    def flow_ps(self) -> int:
        """As in GroupAmounts."""
        return self.protocol.flow_ps(self.terms, self._members)

    @property
    def latency_ps(self) -> int:
        """As in GroupAmounts."""
        return int(self.step_latency_ps.sum())

    @property
    def steps(self) -> StepProfile:
        """What holds each step."""
        moved, reduced = (np.zeros(self.plan.num_steps, np.int64) for _ in range(2))
        for pattern, ends, reducers in self.plan.busy:
            some = self.sizes[pattern.rows]
            moved[pattern.steps], reduced[pattern.steps] = ends.most(some), reducers.most(some)
        return StepProfile(self.protocol.flows_ps(self.terms, self._members), self.step_latency_ps, moved, reduced)


def plan_cost(plan: Plan, part_bytes: Sequence[int]) -> PlanAmounts:
    """Bytes at every member when part i of the buffer has `part_bytes[i]` bytes (parts may differ, and be empty).

    The sizes are those of the parts that the collective's callers name, or of the plan's own. ProgramError unless
    there is one size, not negative, for each.
    """
    key = (plan, sizes := tuple(_checked_sizes(plan, part_bytes).tolist()))
    return _MEMBERS.get(key, lambda: _plan_amounts(plan, np.array(sizes, np.int64)))


def group_amounts(
    plan: Plan,
    part_bytes: Sequence[int],
    ranks: Sequence[int],
    topology: Topology,
    protocol: Protocol = PLAIN,
) -> GroupAmounts:
    """What the plan demands when member i of the group is card `ranks[i]` of the topology.

    Transfers of one step that cross the same link add their bytes there. `protocol` is how the library sends: its
    start and step costs count as latency, and its share of the bandwidth slows the flow. ProgramError for wrong sizes,
    ConfigError for ranks that are not distinct cards or cannot reach each other. Cached: `link_bytes` is read-only.
    """
    sizes = _checked_sizes(plan, part_bytes)
    key = (plan, tuple(sizes.tolist()), tuple(ranks), topology, protocol)
    return _AMOUNTS.get(key, lambda: _group_amounts(*key))


def step_profile(
    plan: Plan,
    part_bytes: Sequence[int],
    ranks: Sequence[int],
    topology: Topology,
    protocol: Protocol = PLAIN,
) -> StepProfile:
    """What holds each step of the plan alone, placed as in group_amounts; the same errors."""
    return measure(place(plan, tuple(ranks), topology).shape, part_bytes, protocol).steps


def measure(shape: PlacedShape, part_bytes: Sequence[int] | Ints, protocol: Protocol = PLAIN) -> Measured:
    """What a placed plan demands; ProgramError for wrong sizes."""
    plan = shape.plan
    sizes = plan.sizes_of(_checked_sizes(plan, part_bytes))
    bytes_of = _sizes_of_transfers(plan, sizes)
    link_bytes, terms = shape.flows(bytes_of)
    members, own_bytes = _at_members(plan, bytes_of), _own_bytes(plan, sizes)
    return Measured(plan, protocol, bytes_of, link_bytes, members, terms, shape.latency_ps, own_bytes)


def _checked_sizes(plan: Plan, part_bytes: Sequence[int] | Ints) -> Ints:
    sizes = np.asarray(part_bytes, np.int64).reshape(-1)
    if len(sizes) not in (plan.parts, plan.given):
        raise ProgramError(f"{plan.name}: {len(sizes)} part sizes; it has {plan.given} parts")
    if len(sizes) and sizes.min() < 0:
        raise ProgramError(f"{plan.name}: part sizes {_shortened(tuple(sizes.tolist()))} must not be negative")
    return sizes


def _shortened(sizes: tuple[int, ...]) -> str:
    return str(sizes) if len(sizes) <= 16 else f"{str(sizes[:16])[:-1]}, ..)"


def _sizes_of_transfers(plan: Plan, sizes: Ints) -> Ints:
    return np.append(sizes, 0)[plan.moves.parts]  # so that the size of SIGNAL is 0


def _at_members(plan: Plan, bytes_of: Ints) -> Ints:
    """Bytes sent, received and reduced at every member, int64 [3, size]."""
    moves = plan.moves
    return at_members(moves.sources, moves.targets, moves.reduces, bytes_of, plan.size + 1)[:, : plan.size]


def _plan_amounts(plan: Plan, part_bytes: Ints) -> PlanAmounts:
    bytes_of = _sizes_of_transfers(plan, plan.sizes_of(part_bytes))
    largest = np.maximum.reduceat(bytes_of, plan.moves.starts[:-1]) if len(plan.moves) else bytes_of[:0]
    members: list[tuple[Any, ...]] = [tuple(row.tolist()) for row in _at_members(plan, bytes_of)]
    return PlanAmounts(members[0], members[1], members[2], tuple(largest.tolist()))


def _group_amounts(
    plan: Plan, part_bytes: tuple[int, ...], ranks: tuple[int, ...], topology: Topology, protocol: Protocol
) -> GroupAmounts:
    placed = place(plan, ranks, topology)
    measured = measure(placed.shape, part_bytes, protocol)
    used = np.flatnonzero(measured.link_bytes)
    return GroupAmounts(
        link_bytes=dict(zip(placed.links[used].tolist(), measured.link_bytes[used].tolist(), strict=True)),
        members=plan_cost(plan, part_bytes),
        flow_ps=measured.flow_ps,
        latency_ps=measured.latency_ps,
        steps=plan.num_steps,
    )


def _own_bytes(plan: Plan, sizes: Ints) -> int:
    """The largest share that a member takes from one of its own buffers to another."""
    if plan.collective not in TWO_BUFFERS or not len(sizes):
        return 0
    pieces = plan.parts // plan.given
    shares = sizes.reshape(plan.given, pieces).sum(axis=1)
    return int(shares[:: plan.size + 1].max() if plan.collective == "all_to_all" else shares.max())


def _weight(amounts: GroupAmounts) -> int:
    return 1000 + 130 * len(amounts.link_bytes) + _members_weight(amounts.members)


def _members_weight(members: PlanAmounts) -> int:
    return 500 + 40 * (3 * len(members.sent_bytes) + len(members.step_bytes))


_MEMBERS: WeighedCache[PlanAmounts] = WeighedCache(KEPT_BYTES, _members_weight)
_AMOUNTS: WeighedCache[GroupAmounts] = WeighedCache(KEPT_BYTES, _weight)
