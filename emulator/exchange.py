"""Exchange: where the cards of one submission meet for collectives and transfers, and what they then do together."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple, Protocol

import numpy as np
import simpy

from ..isa.errors import ProgramError
from .calendar.activity import Demand, Running, now_ps
from .calendar.engine import Calendar
from .parts import Parts, sizes_of
from .span import NOBODY_LATE
from .timeline import Entry, Timeline
from .wires import TRANSFERS, GroupCost, Message, Wires

Detail = Literal["group", "step"]
TRANSFER = -1  # the turn of a meeting that is no collective


class Sharing(NamedTuple):
    """How activities stand where a resource is short: the highest priority first, those of one priority by weight."""

    weight: int = 1
    priority: int = 0


class Party(NamedTuple):
    """A card that has come to an exchange: since when, for what, and by which instruction of which program.

    `sharing` is that of its group, or of the submission; `order` the place of what it owns among all activities.
    """

    rank: int
    issued_ps: int
    message: Message
    dispatch_ps: int
    timeline: Timeline
    entry: Entry
    sharing: Sharing
    order: int = 0

    @property
    def name(self) -> str:
        """How errors call it."""
        return f"card {self.rank}, {self.timeline.describe(self.entry)},"


class Exchanged(NamedTuple):
    """An exchange that took place: who, what, when, and what it demanded. A transfer's ranks are (source, target)."""

    message: Message
    ranks: tuple[int, ...]
    start_ps: int
    end_ps: int
    demand: Demand

    @property
    def is_transfer(self) -> bool:
        """Whether it went from one card to another; else it was a collective."""
        return self.message.kind in TRANSFERS


class Gathering(Protocol):
    """An exchange that all members have come to."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its members, in group order."""

    @property
    def parties(self) -> dict[int, Party]:
        """Who has come, by rank."""

    @property
    def name(self) -> str:
        """How errors call it."""


class Meeting:
    """One exchange: who has come, the activities since it started, and `gate`, which succeeds when it ends.

    `turn` counts the collectives of one group; a transfer has -1. `late` is the rank that the others waited for, or -1.
    """

    __slots__ = ("ranks", "turn", "parties", "gate", "activities", "start_ps", "late", "cost", "is_eager")

    def __init__(self, env: simpy.Environment, ranks: tuple[int, ...], turn: int = TRANSFER) -> None:
        self.ranks, self.turn = ranks, turn
        self.parties: dict[int, Party] = {}
        self.gate = simpy.Event(env)
        self.activities: list[Running] = []
        self.start_ps, self.late = -1, NOBODY_LATE
        self.cost: GroupCost | None = None
        self.is_eager = False

    @property
    def name(self) -> str:
        """How errors call it."""
        return name_of(self.ranks, self.turn)

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not come."""
        return tuple(rank for rank in self.ranks if rank not in self.parties)

    def fail(self, cause: Exception) -> None:
        """End it for all who wait, with `cause`."""
        if not self.gate.triggered:
            self.gate.defused = True  # there may be nobody yet
            self.gate.fail(cause)


class Exchange:
    """The meetings of one submission. Members meet in the order in which each of them comes to a group.

    A collective starts when its last member has issued; a transfer when its SEND and its RECV have, or when its SEND
    has if it is eager. An eager message lands in a buffer: a RECV finds it in place, a RECV_REDUCE adds it
    when it gets there.
    """

    def __init__(self, calendar: Calendar, wires: Wires, eager_bytes: int, detail: Detail) -> None:
        self._calendar, self._wires, self._eager_bytes, self._detail = calendar, wires, eager_bytes, detail
        self._env = calendar.env
        self.sharing = Sharing()
        self.first_order = 0  # of its activities, for units that serve one at a time
        self.exchanged: list[Exchanged] = []
        self._cause: Exception | None = None
        self._turns: dict[tuple[int, tuple[int, ...]], int] = {}
        self._collectives: dict[tuple[tuple[int, ...], int], Meeting] = {}
        self._transfers: dict[tuple[int, int], deque[Meeting]] = {}
        self._open: dict[Meeting, None] = {}

    def collective(self, party: Party, ranks: tuple[int, ...]) -> Meeting:
        """`party` comes to the next collective of its group. ProgramError when members do not agree on what it is."""
        self._refuse_if_failed()
        turn = self._turns.get((party.rank, ranks), 0)
        self._turns[party.rank, ranks] = turn + 1
        meeting = self._collectives.get((ranks, turn))
        if meeting is None:
            meeting = self._collectives[ranks, turn] = self._new(ranks, turn)
        for other in meeting.parties.values():
            if other.message.terms != party.message.terms:
                raise ProgramError(
                    f"{meeting.name}: members differ: {other.name} brings {other.message}; "
                    f"{party.name} brings {party.message}"
                )
            check_sharing(meeting.name, other, party)
            break  # all before agree with the first
        meeting.parties[party.rank] = party
        if len(meeting.parties) == len(ranks):
            del self._collectives[ranks, turn]
            self._start(meeting, message_of_all(meeting) if party.message.arriving_bytes else party.message)
        return meeting

    def send(self, party: Party, target: int) -> Meeting:
        """`party` offers its next message to `target`."""
        meeting = self._transfer(party, party.rank, target)
        meeting.is_eager = party.message.part_bytes[0] <= self._eager_bytes
        if meeting.is_eager:
            self._start(meeting, party.message)
        else:
            self._start_transfer(meeting)
        return meeting

    def receive(self, party: Party, source: int) -> Meeting:
        """`party` wants the next message from `source`. ProgramError when it is of another size or dtype."""
        meeting = self._transfer(party, source, party.rank)
        if not meeting.is_eager:
            self._start_transfer(meeting)
        return meeting

    @property
    def half_met(self) -> Iterator[Meeting]:
        """Transfers that one end has come to and the other has not."""
        return (meeting for waiting in self._transfers.values() for meeting in waiting)

    def poison(self, cause: Exception) -> None:
        """Fail everybody who waits for a meeting that has not started, and whoever still comes."""
        self._cause = cause
        for meeting in list(self._open):
            if meeting.start_ps < 0:
                meeting.fail(cause)

    def abort(self, cause: Exception) -> None:
        """Fail the activities of all meetings that have started."""
        for meeting in list(self._open):
            for running in meeting.activities:
                self._calendar.cancel(running, failed=cause)

    def _refuse_if_failed(self) -> None:
        if self._cause is not None:
            raise self._cause

    def _new(self, ranks: tuple[int, ...], turn: int = TRANSFER) -> Meeting:
        meeting = Meeting(self._env, ranks, turn)
        self._open[meeting] = None
        return meeting

    def _transfer(self, party: Party, source: int, target: int) -> Meeting:
        """The first transfer from source to target that `party` has no part in yet, with `party` in it."""
        self._refuse_if_failed()
        waiting = self._transfers.setdefault((source, target), deque())
        meeting = next((m for m in waiting if party.rank not in m.parties), None)
        if meeting is None:
            meeting = self._new((source, target))
            waiting.append(meeting)
        for other in meeting.parties.values():
            if other.message.part_bytes != party.message.part_bytes or other.message.dtype != party.message.dtype:
                raise ProgramError(
                    f"{meeting.name}: its ends differ: {other.name} brings {other.message}; "
                    f"{party.name} brings {party.message}"
                )
            check_sharing(meeting.name, other, party)
        meeting.parties[party.rank] = party
        if not meeting.missing:
            waiting.remove(meeting)
        return meeting

    def _start_transfer(self, meeting: Meeting) -> None:
        if not meeting.missing:
            self._start(meeting, meeting.parties[meeting.ranks[1]].message)

    def _start(self, meeting: Meeting, message: Message) -> None:
        parties = meeting.parties.values()
        dispatch_ps = max(party.dispatch_ps for party in parties)
        meeting.cost = cost = self._wires.cost(message, meeting.ranks, dispatch_ps)
        meeting.start_ps = now_ps(self._env)
        last = min(parties, key=lambda party: (-party.issued_ps, party.rank))
        if any(party.issued_ps < last.issued_ps for party in parties):
            meeting.late = last.rank
        if self._detail == "step":
            steps = self._wires.steps(message, meeting.ranks, dispatch_ps)
            self._env.process(self._steps(meeting, message, steps))
            return
        running = self._run(meeting, cost.demand)
        # One event for all members: those who came early wait for the gate, which is older than the activity.
        running.done.callbacks.append(lambda done: self._end(meeting, message, None if done.ok else done))

    def _run(self, meeting: Meeting, demand: Demand) -> Running:
        weight, priority = next(iter(meeting.parties.values())).sharing
        order = self.first_order + meeting.parties[owner(meeting.ranks, meeting.turn)].order
        running = self._calendar.run(demand, weight=weight, priority=priority, order=order)
        meeting.activities.append(running)
        return running

    def _steps(
        self, meeting: Meeting, message: Message, steps: tuple[Demand, ...]
    ) -> Generator[simpy.Event, object, None]:
        """The lockstep steps, each an activity of its own."""
        for demand in steps:
            running = self._run(meeting, demand)
            try:
                yield running.done
            except Exception:
                self._end(meeting, message, running.done)
                return
        self._end(meeting, message, None)

    def _end(self, meeting: Meeting, message: Message, failed: simpy.Event | None) -> None:
        del self._open[meeting]
        if failed is not None:
            failed.defused = True
            assert isinstance(failed.value, Exception)
            meeting.fail(failed.value)
            return
        assert meeting.cost is not None
        self.exchanged.append(
            Exchanged(message, meeting.ranks, meeting.start_ps, now_ps(self._env), meeting.cost.demand)
        )
        meeting.gate.succeed()


def name_of(ranks: tuple[int, ...], turn: int) -> str:
    """How errors call an exchange of ranks; the turn of a transfer is TRANSFER."""
    if turn == TRANSFER:
        return f"the transfer from rank {ranks[0]} to rank {ranks[1]}"
    return f"collective {turn} of ranks {', '.join(map(str, ranks))}"


def owner(ranks: tuple[int, ...], turn: int) -> int:
    """The rank whose activity an exchange is: the sender, or the lowest of a collective."""
    return ranks[0] if turn == TRANSFER else min(ranks)


def check_sharing(meeting: str, one: Party, other: Party) -> None:
    """Raise ProgramError where two members of a meeting share differently."""
    if one.sharing != other.sharing:
        raise ProgramError(
            f"{meeting}: {one.name} shares by {one.sharing} and {other.name} by {other.sharing}; give a group the "
            "same sharing on every member"
        )


def message_of_all(meeting: Gathering) -> Message:
    """What an all-to-all moves: part i * n + j goes from member i to member j. ProgramError unless j expects it."""
    parties = [meeting.parties[rank] for rank in meeting.ranks]
    sent = np.stack([sizes_of(party.message.part_bytes) for party in parties])
    expected = np.stack([sizes_of(party.message.arriving_bytes) for party in parties], axis=1)
    if (wrong := np.argwhere((sent != expected).T)).size:
        j, i = wrong[0].tolist()
        raise ProgramError(
            f"{meeting.name}: members differ: {parties[i].name} sends {sent[i, j]} bytes to rank {parties[j].rank}; "
            f"{parties[j].name} expects {expected[i, j]} from there"
        )
    return parties[0].message._replace(part_bytes=Parts(sent), arriving_bytes=())
