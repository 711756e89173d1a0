"""What a plan moves: bytes on every link and at every member, and the time it takes alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ...isa.errors import ConfigError, ProgramError
from ..routing import route
from ..topology import Topology
from .plan import SIGNAL, Plan

PS_PER_S = 10**12


@dataclass(frozen=True)
class PlanAmounts:
    """Bytes at every member of a group, by its index, wherever the members stand.

    `sent_bytes` leave a member's memory, `received_bytes` are written to it, and `reduced_bytes` are those of the
    received ones that are added to what was there, which is read first. `step_bytes` is the largest transfer of every
    step.
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
    flowing part alone: the sum over steps of the busiest link's bytes / bandwidth, one ceiling of the exact rational at
    the end. `latency_ps` is the fixed part: the sum over steps of the longest route's latencies. An empty part
    still costs its latency, for its target waits for the news.
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


def plan_cost(plan: Plan, part_bytes: Sequence[int]) -> PlanAmounts:
    """Bytes at every member when part i of the buffer has `part_bytes[i]` bytes (parts may differ, and be empty).

    ProgramError unless there is one size, not negative, for each of the plan's parts.
    """
    return _member_amounts(plan, _checked_sizes(plan, tuple(part_bytes)))


def group_amounts(plan: Plan, part_bytes: Sequence[int], ranks: Sequence[int], topology: Topology) -> GroupAmounts:
    """What the plan demands when member i of the group is card `ranks[i]` of the topology.

    Transfers of one step that cross the same link add their bytes there. ProgramError for wrong sizes, ConfigError for
    ranks that are not distinct cards or cannot reach each other. Cached: treat `link_bytes` as read-only.
    """
    return _group_amounts(plan, _checked_sizes(plan, tuple(part_bytes)), tuple(ranks), topology)


def _checked_sizes(plan: Plan, part_bytes: tuple[int, ...]) -> tuple[int, ...]:
    if len(part_bytes) != plan.parts:
        raise ProgramError(f"{plan.name}: {len(part_bytes)} part sizes; it has {plan.parts} parts")
    if any(size < 0 for size in part_bytes):
        raise ProgramError(f"{plan.name}: part sizes {part_bytes} must not be negative")
    return part_bytes


@lru_cache(maxsize=4096)
def _member_amounts(plan: Plan, part_bytes: tuple[int, ...]) -> PlanAmounts:
    sent, received, reduced = ([0] * plan.size for _ in range(3))
    step_bytes = []
    sizes = (*part_bytes, 0)  # so that sizes[SIGNAL] is 0
    for step in plan.steps:
        largest = 0
        for transfer in step.transfers:
            size = sizes[transfer.part]
            sent[transfer.source] += size
            received[transfer.target] += size
            reduced[transfer.target] += size if transfer.reduces else 0
            largest = max(largest, size)
        step_bytes.append(largest)
    return PlanAmounts(tuple(sent), tuple(received), tuple(reduced), tuple(step_bytes))


@dataclass(frozen=True)
class _Placement:
    """A plan on a topology before sizes are known: for each step, which parts cross which link."""

    latency_ps: int
    crossings: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]  # a step: ((link id, parts), ..)


@lru_cache(maxsize=512)
def _place(plan: Plan, ranks: tuple[int, ...], topology: Topology) -> _Placement:
    _check_ranks(plan, ranks, topology)
    latency_ps = 0
    crossings = []
    for step in plan.steps:
        parts: dict[int, list[int]] = {}
        longest_ps = 0
        for transfer in step.transfers:
            path = route(topology, ranks[transfer.source], ranks[transfer.target])
            longest_ps = max(longest_ps, sum(topology.links[link_id].latency_ps for link_id in path))
            for link_id in path if transfer.part != SIGNAL else ():
                parts.setdefault(link_id, []).append(transfer.part)
        latency_ps += longest_ps
        crossings.append(tuple((link_id, tuple(parts[link_id])) for link_id in sorted(parts)))
    return _Placement(latency_ps, tuple(crossings))


def _check_ranks(plan: Plan, ranks: tuple[int, ...], topology: Topology) -> None:
    if len(ranks) != plan.size:
        raise ConfigError(f"{plan.name}: ranks {ranks} are {len(ranks)}; the group has {plan.size} members")
    if len(set(ranks)) < len(ranks):
        twice = min(rank for rank in ranks if ranks.count(rank) > 1)
        raise ConfigError(f"{plan.name}: rank {twice} stands twice in {ranks}; every rank is one card")
    if outside := [rank for rank in ranks if not 0 <= rank < topology.cards]:
        raise ConfigError(
            f"{plan.name}: rank {outside[0]} is no card; the {topology.kind} has 0 to {topology.cards - 1}"
        )


@lru_cache(maxsize=4096)
def _group_amounts(plan: Plan, part_bytes: tuple[int, ...], ranks: tuple[int, ...], topology: Topology) -> GroupAmounts:
    placement = _place(plan, ranks, topology)
    link_bytes: dict[int, int] = {}
    busiest: dict[int, int] = {}  # bandwidth -> bytes, over the steps in which such a link was the busiest
    for step in placement.crossings:
        worst_bytes, worst_bandwidth = 0, 1
        for link_id, parts in step:
            size = sum([part_bytes[part] for part in parts])
            link_bytes[link_id] = link_bytes.get(link_id, 0) + size
            bandwidth = topology.links[link_id].bandwidth_bytes_per_s
            if size * worst_bandwidth > worst_bytes * bandwidth:
                worst_bytes, worst_bandwidth = size, bandwidth
        busiest[worst_bandwidth] = busiest.get(worst_bandwidth, 0) + worst_bytes
    return GroupAmounts(
        link_bytes={link_id: size for link_id, size in sorted(link_bytes.items()) if size},
        members=_member_amounts(plan, part_bytes),
        flow_ps=_ceiling(Fraction(size * PS_PER_S, bandwidth) for bandwidth, size in busiest.items()),
        latency_ps=placement.latency_ps,
        steps=len(plan.steps),
    )


def _ceiling(terms: Iterable[Fraction]) -> int:
    """The least whole number that is not below the exact sum."""
    total = sum(terms, Fraction(0))
    return -(-total.numerator // total.denominator)
