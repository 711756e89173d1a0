"""Synchronisation: which instruction waits for which, from the bytes that they touch, as waits on queue counters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...isa.operands import Role
from ...isa.program import Block, Issue, Program
from .arena import ArenaPlan

Clock = dict[str, int]  # queue -> how many of its instructions in this call have surely ended


@dataclass(frozen=True)
class _Access:
    """One operand's bytes: a range of the arena, or all of a parameter."""

    space: str
    start: int
    end: int
    writes: bool

    def conflicts(self, other: _Access) -> bool:
        """Whether the order of the two matters."""
        overlaps = self.space == other.space and self.start < other.end and other.start < self.end
        return overlaps and (self.writes or other.writes)


def synchronise(program: Program, arena: ArenaPlan) -> Program:
    """The program with the waits that make it race-free.

    Within a call an instruction waits for every earlier one in another queue that touches the same bytes, unless what
    its queue waited for before implies that. The first instruction of each queue in a call waits for all that earlier
    calls issued, since their locals lie in the same arena.
    """
    blocks = tuple(_Synchroniser(block, program.queues, arena).block() for block in program.blocks)
    return replace(program, blocks=blocks)


class _Synchroniser:
    """Walks one block once, keeping what every queue surely knows to have ended."""

    def __init__(self, block: Block, queues: tuple[str, ...], arena: ArenaPlan) -> None:
        self.source, self.queues, self.arena = block, queues, arena
        self.known: dict[str, Clock] = {queue: {} for queue in queues}
        self.ended: list[Clock] = []  # for each instruction, what has ended once it has
        self.places: list[tuple[str, int]] = []  # for each instruction, its queue and its number in it
        self.accesses: list[list[_Access]] = []

    def block(self) -> Block:
        """The block with waits."""
        return replace(self.source, body=tuple(self._issue(issue) for issue in self.source.body))

    def _issue(self, issue: Issue) -> Issue:
        accesses = [self._access(ref.buffer, role) for ref, role in issue.instruction.refs()]
        known = self.known[issue.queue]
        waits: Clock = {}
        for index in range(len(self.accesses) - 1, -1, -1):  # the latest implies most
            queue, number = self.places[index]
            if known.get(queue, -1) < number and _any_conflict(accesses, self.accesses[index]):
                if queue != issue.queue:
                    waits[queue] = number
                _merge(known, self.ended[index])
        for queue in self.queues:
            if queue != issue.queue and queue not in known:
                waits[queue] = known[queue] = 0
        number = sum(queue == issue.queue for queue, _ in self.places) + 1
        self.places.append((issue.queue, number))
        self.accesses.append(accesses)
        self.ended.append({**known, issue.queue: number})
        known[issue.queue] = number  # a queue issues in order
        return replace(issue, waits=tuple(sorted(waits.items())))

    def _access(self, name: str, role: Role) -> _Access:
        key = (self.source.name, name)
        if key not in self.arena.offsets:
            return _Access(f"param {name}", 0, 1, role is not Role.IN)
        start = self.arena.offsets[key]
        return _Access("arena", start, start + self.arena.sizes[key], role is not Role.IN)


def _any_conflict(some: list[_Access], others: list[_Access]) -> bool:
    return any(a.conflicts(b) for a in some for b in others)


def _merge(into: Clock, other: Clock) -> None:
    for queue, number in other.items():
        into[queue] = max(into.get(queue, 0), number)
