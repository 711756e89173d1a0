"""What a plan moves: bytes on every link and at every member, and the time it takes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...isa.errors import ProgramError
from ..topology import Topology
from .cache import WeighedCache
from .flows import Incidence, place
from .plan import Ints, Pattern, Plan
from .protocol import PLAIN, Protocol

PS_PER_S = 10**12
KEPT_BYTES = 1 << 27
TWO_BUFFERS = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


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


def plan_cost(plan: Plan, part_bytes: Sequence[int]) -> PlanAmounts:
    """Bytes at every member when part i of the buffer has `part_bytes[i]` bytes (parts may differ, and be empty).

    The sizes are those of the parts that the collective's callers name, or of the plan's own. ProgramError unless
    there is one size, not negative, for each.
    """
    key = (plan, sizes := _checked_sizes(plan, part_bytes))
    return _MEMBERS.get(key, lambda: _member_amounts(plan, plan.sizes_of(np.array(sizes, np.int64))))


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
    key = (plan, _checked_sizes(plan, part_bytes), tuple(ranks), topology, protocol)
    return _AMOUNTS.get(key, lambda: _group_amounts(*key))


def step_profile(
    plan: Plan,
    part_bytes: Sequence[int],
    ranks: Sequence[int],
    topology: Topology,
    protocol: Protocol = PLAIN,
) -> StepProfile:
    """What holds each step of the plan alone, placed as in group_amounts; the same errors."""
    sizes = plan.sizes_of(np.array(_checked_sizes(plan, part_bytes), np.int64))
    placed = place(plan, tuple(ranks), topology)
    bytes_of = _sizes_of_transfers(plan, sizes)
    _, terms = placed.flows(bytes_of)
    moved, reduced = (np.zeros(plan.num_steps, np.int64) for _ in range(2))
    for pattern in plan.patterns:
        some = bytes_of[pattern.rows]
        moved[pattern.steps], reduced[pattern.steps] = _busiest_members(plan, pattern, some)
    latency = placed.latency_ps + protocol.latencies(plan.moves.streamed)
    latency[:1] += protocol.once_ps(_own_bytes(plan, sizes))
    return StepProfile(protocol.flows_ps(terms), latency, moved, reduced)


def _busiest_members(plan: Plan, pattern: Pattern, sizes: Ints) -> tuple[Ints, Ints]:
    """(bytes read and written, bytes reduced) at the busiest member in every step of a pattern."""
    columns = np.arange(len(pattern.sources))
    adding = columns[pattern.reduces]
    places = np.concatenate((pattern.sources, pattern.targets, pattern.targets[adding]))
    ends, reducers = (
        Incidence.of(where[where < plan.size], which[where < plan.size])
        for where, which in ((places, np.concatenate((columns, columns, adding))), (pattern.targets[adding], adding))
    )
    none = np.zeros(len(sizes), np.int64)
    moved, reduced = (
        kind.sums(sizes[:, kind.columns]).max(axis=1) if len(kind.ids) else none for kind in (ends, reducers)
    )
    return moved, reduced


def _checked_sizes(plan: Plan, part_bytes: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(part_bytes)
    if len(sizes) not in (plan.parts, plan.given):
        raise ProgramError(f"{plan.name}: {len(sizes)} part sizes; it has {plan.given} parts")
    if sizes and min(sizes) < 0:
        raise ProgramError(f"{plan.name}: part sizes {_shortened(sizes)} must not be negative")
    return sizes


def _shortened(sizes: tuple[int, ...]) -> str:
    return str(sizes) if len(sizes) <= 16 else f"{str(sizes[:16])[:-1]}, ..)"


def _sizes_of_transfers(plan: Plan, sizes: Ints) -> Ints:
    return np.append(sizes, 0)[plan.moves.parts]  # so that the size of SIGNAL is 0


def _member_amounts(plan: Plan, sizes: Ints) -> PlanAmounts:
    moves, bytes_of = plan.moves, _sizes_of_transfers(plan, sizes)
    sent, received, reduced = (np.zeros(plan.size + 1, np.int64) for _ in range(3))
    np.add.at(sent, moves.sources, bytes_of)
    np.add.at(received, moves.targets, bytes_of)
    np.add.at(reduced, moves.targets, bytes_of * moves.reduces)
    largest = np.maximum.reduceat(bytes_of, moves.starts[:-1]) if len(moves) else sent[:0]
    members: list[tuple[Any, ...]] = [tuple(row[: plan.size].tolist()) for row in (sent, received, reduced)]
    return PlanAmounts(members[0], members[1], members[2], tuple(largest.tolist()))


def _group_amounts(
    plan: Plan, part_bytes: tuple[int, ...], ranks: tuple[int, ...], topology: Topology, protocol: Protocol
) -> GroupAmounts:
    placed = place(plan, ranks, topology)
    sizes = plan.sizes_of(np.array(part_bytes, np.int64))
    bytes_of = _sizes_of_transfers(plan, sizes)
    per_link, terms = placed.flows(bytes_of)
    used = np.flatnonzero(per_link)
    latency = placed.latency_ps + protocol.latencies(plan.moves.streamed)
    return GroupAmounts(
        link_bytes=dict(zip(used.tolist(), per_link[used].tolist(), strict=True)),
        members=plan_cost(plan, part_bytes),
        flow_ps=protocol.flow_ps(terms),
        latency_ps=int(latency.sum()) + (protocol.once_ps(_own_bytes(plan, sizes)) if plan.num_steps else 0),
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
