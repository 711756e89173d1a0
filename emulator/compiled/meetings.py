"""Which exchanges of a submission's programs meet, known before they run: members come to a group in program order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...isa.errors import ProgramError, UnsupportedError
from ..calendar.solver import Ints
from ..card import Action
from ..exchange import TRANSFER, Party, Sharing, check_sharing, message_of_all, name_of
from ..parts import Parts, sizes_of
from ..ticket import Submission
from ..timeline import Timeline
from ..wires import Message
from .flatten import FlatProgram
from .lane_ops import LaneOps
from .machine import NONE
from .ops import Ops

Ranks = tuple[int, ...]


class Channel(NamedTuple):
    """What exchanges of a program have in common: their action, their group, and the peer of a transfer."""

    action: Action
    group: str
    peer: int

    def place(self, rank: int, groups: Mapping[str, Ranks]) -> tuple[Ranks, bool]:
        """Where a rank goes by it: the ranks that meet there, a transfer's as source and target, and whether it is."""
        ranks = groups[self.group]
        if self.action is Action.COLLECTIVE:
            return ranks, False
        ends = (rank, ranks[self.peer]) if self.action is Action.SEND else (ranks[self.peer], rank)
        return ends, True


class LinkPart:
    """The exchanges of a program under one set of costs, in the order in which its card comes to them.

    `rows` are its rows in the program, `channel_of` and `message_of` its channel and message by their places in
    `channels` and `messages`. Cards share one if they differ in the bytes of all-to-alls alone, which each card's own
    operations know.
    A card may exchange from several queues, if it comes to each place from one; else only time could tell the order.
    """

    def __init__(self, program: FlatProgram, ops: Ops) -> None:
        self.program = program
        self.rows, self.sites = program.links, program.sites[program.links]
        sites, where = np.unique(self.sites, return_inverse=True)
        channels: dict[Channel, int] = {}
        messages: dict[tuple[Message, int], int] = {}
        rows = []
        for site in sites.tolist():
            lane = ops.lane(site)
            op = ops[site] if lane == NONE else ops.kind(site)
            assert op.message is not None, "exchanges have messages"
            channel = channels.setdefault(Channel(op.action, op.group, op.peer), len(channels))
            number = messages.setdefault((op.message, lane), len(messages))
            rows.append((channel, number, op.demand.fixed_ps))
        table = np.array(rows, np.int64).reshape(-1, 3)[where]
        self.channels, self.messages = tuple(channels), tuple(message for message, _ in messages)
        self.channel_of, self.message_of, self.dispatch_ps = table.T
        self._turns: dict[tuple[int, ...], Ints] = {}
        self._numbers: dict[tuple[tuple[int, ...], int], Ints] = {}

    @property
    def timeline(self) -> Timeline:
        """The program's timeline."""
        return self.program.timeline

    def _merged(self, first: tuple[int, ...]) -> Ints:
        """The channel of every exchange, where channel k is the same as channel first[k]: they lead to one place."""
        merged: Ints = np.array(first, np.int64)[self.channel_of]
        return merged

    def turns(self, first: tuple[int, ...]) -> Ints:
        """For each exchange how many come before it to its place."""
        found = self._turns.get(first)
        if found is None:
            merged = self._merged(first)
            order = np.argsort(merged, kind="stable")
            starts = np.searchsorted(merged[order], np.arange(len(first)))
            found = np.empty(len(merged), np.int64)
            found[order] = np.arange(len(merged)) - starts[merged[order]]
            self._turns[first] = found
        return found

    def numbers(self, first: tuple[int, ...], channel: int) -> Ints:
        """The exchanges of a channel and of those that are the same; UnsupportedError if of several queues."""
        found = self._numbers.get((first, channel))
        if found is None:
            found = self._numbers[first, channel] = np.flatnonzero(self._merged(first) == channel)
            self._check_queues(found, self.channels[channel].group)
        return found

    def _check_queues(self, numbers: Ints, group: str) -> None:
        queues = np.unique(self.program.queue[self.rows[numbers]]).tolist()
        if len(queues) > 1:
            names = ", ".join(sorted(self.program.queues_of_card[queue] for queue in queues))
            raise UnsupportedError(
                f"program {self.timeline.program.name} comes to group {group} from the queues {names}; the compiled "
                "calendar needs the exchanges of one group in one queue: use --engine simpy"
            )


class Member(NamedTuple):
    """A card that comes to a place: for which of its exchanges, by the numbers of these."""

    rank: int
    part: LinkPart
    numbers: Ints
    sharing: Sharing
    sends: bool
    ops: Ops

    @property
    def kind(self) -> tuple[int, int]:
        """What tells members apart by what they bring: equal ones bring the same, turn by turn."""
        return id(self.part), int(self.numbers[0])

    @property
    def rows(self) -> Ints:
        """The rows of the program that come to it."""
        return self.part.rows[self.numbers]

    @property
    def queue(self) -> int:
        """The queue, of those of the card, from which it comes there."""
        return int(self.part.program.queue[self.rows[0]])

    def party(self, turn: int) -> Party:
        """The card as it comes to a turn of the place, for those who must name it."""
        part, number = self.part, int(self.numbers[turn])
        op = self.ops[int(part.sites[number])]
        assert op.message is not None, "exchanges have messages"
        entry = part.timeline.made[int(part.program.entries[part.rows[number]])]
        return Party(self.rank, 0, op.message, op.demand.fixed_ps, part.timeline, entry, self.sharing)


class Offer(NamedTuple):
    """What an exchange of a place is: its message, and when it is dispatched (by its sender alone, if it is eager).

    Without a message it never starts, for somebody is missing. `turn` is the first of an all-to-all whose bytes are
    not known yet.
    """

    message: Message | None
    dispatch_ps: int = 0
    is_eager: bool = False
    alone_ps: int | None = None
    turn: int = NONE


MISSING = Offer(None)


@dataclass(eq=False)
class Place:
    """Where ranks meet, time after time: those of a group, in group order, or a transfer's source and target.

    `names` are what its members call the group. `kinds[turn]` is the number of what takes place then in `offers`.
    """

    ranks: Ranks
    is_transfer: bool
    names: frozenset[str] = frozenset()
    members: list[Member] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    kinds: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def count(self) -> int:
        """How many exchanges take place."""
        return len(self.kinds)

    @cached_property
    def sharing(self) -> Sharing:
        """How they stand where a resource is short."""
        return self.members[0].sharing

    @cached_property
    def ways(self) -> tuple[int, ...]:
        """By which of its exchanges each of `ranks` comes here first, others come in turn; NONE for who never comes."""
        firsts = {member.rank: int(member.numbers[0]) for member in self.members}
        return tuple(firsts.get(rank, NONE) for rank in self.ranks)

    def encounter(self, turn: int) -> Encounter:
        """One of its exchanges, with all who come to it."""
        parties = {member.rank: member.party(turn) for member in self.members if turn < len(member.numbers)}
        return Encounter(self.ranks, TRANSFER if self.is_transfer else turn, parties)

    def settle(self, eager_bytes: int) -> None:
        """Find out what takes place at every turn, save for the bytes of all-to-alls."""
        settled = self._settle_transfers(eager_bytes) if self.is_transfer else self._settle_collectives()
        found: dict[Offer, int] = {}
        self.kinds = np.array([found.setdefault(offer, len(found)) for offer in settled], np.int64)
        self.offers = list(found)

    def _settle_collectives(self) -> list[Offer]:
        """ProgramError where members do not agree on what a collective is."""
        kinds = {member.kind: member for member in self.members}
        brought = [(member.part, member.part.message_of[member.numbers].tolist()) for member in kinds.values()]
        whole = min(len(messages) for _, messages in brought) if len(self.members) == len(self.ranks) else 0
        known: dict[tuple[int, ...], Offer] = {}
        offers: list[Offer] = []
        for turn, key in enumerate(zip(*(messages for _, messages in brought), strict=False)):
            offer = known.get(key)
            if offer is None:
                messages = [part.messages[number] for (part, _), number in zip(brought, key, strict=True)]
                self._check(turn, messages)
                offer = known[key] = self._collective(turn, messages[0]) if turn < whole else MISSING
            offers.append(offer if turn < whole else MISSING)
        most = max(len(messages) for _, messages in brought)
        for member in self.members:
            if member.sharing != self.members[0].sharing:
                check_sharing(name_of(self.ranks, 0), self.members[0].party(0), member.party(0))
        return offers + [MISSING] * (most - len(offers))

    def _check(self, turn: int, messages: Sequence[Message]) -> None:
        if all(message.terms == messages[0].terms for message in messages):
            return
        here = [member.party(turn) for member in self.members if turn < len(member.numbers)]
        other = next(party for party in here if party.message.terms != here[0].message.terms)
        raise ProgramError(
            f"{name_of(self.ranks, turn)}: members differ: {here[0].name} brings {here[0].message}; "
            f"{other.name} brings {other.message}"
        )

    def _collective(self, turn: int, message: Message) -> Offer:
        dispatch_ps = max(int(member.part.dispatch_ps[member.numbers[turn]]) for member in self.members)
        return Offer(message, dispatch_ps, turn=turn if message.arriving_bytes else NONE)

    def all_to_all(self, offer: Offer) -> Offer:
        """An all-to-all and what it moves: part i * n + j goes from i to j. ProgramError unless j expects it."""
        assert offer.message is not None
        sent, received = self._bytes(offer.turn)
        if not np.array_equal(sent.T, received):
            return Offer(message_of_all(self.encounter(offer.turn)))
        return Offer(offer.message._replace(part_bytes=Parts(sent), arriving_bytes=()), offer.dispatch_ps)

    def _bytes(self, turn: int) -> tuple[Ints, Ints]:
        """What every member of an all-to-all sends to each and gets from each: [members, members], in group order."""
        members = {member.rank: member for member in self.members}
        ordered = [members[rank] for rank in self.ranks]
        sites = [int(member.part.sites[member.numbers[turn]]) for member in ordered]
        lanes = [member.ops for member in ordered if isinstance(member.ops, LaneOps)]
        numbers = {(id(ops.batch), ops.lane(site)) for ops, site in zip(lanes, sites, strict=False)}
        if len(lanes) == len(ordered) and len(numbers) == 1 and lanes[0].lane(sites[0]) != NONE:
            return lanes[0].batch.exchange(lanes[0].lane(sites[0]), np.array([ops.place for ops in lanes]))
        messages = [member.ops[site].message for member, site in zip(ordered, sites, strict=True)]
        sent = np.stack([sizes_of(message.part_bytes) for message in messages if message is not None])
        return sent, np.stack([sizes_of(message.arriving_bytes) for message in messages if message is not None])

    def _settle_transfers(self, eager_bytes: int) -> list[Offer]:
        """ProgramError where the ends of a transfer do not agree on its size or on how it shares."""
        ends = {member.sends: member for member in self.members}
        return [self._transfer(turn, ends, eager_bytes) for turn in range(max(len(m.numbers) for m in ends.values()))]

    def _transfer(self, turn: int, ends: Mapping[bool, Member], eager_bytes: int) -> Offer:
        parties = {sends: one.party(turn) for sends, one in ends.items() if turn < len(one.numbers)}
        sender = parties.get(True)
        if sender is None:
            return MISSING
        is_eager = sender.message.part_bytes[0] <= eager_bytes
        if len(parties) < 2:
            return Offer(sender.message, sender.dispatch_ps, True, sender.dispatch_ps) if is_eager else MISSING
        other, name = parties[False], name_of(self.ranks, TRANSFER)
        if (sender.message.part_bytes, sender.message.dtype) != (other.message.part_bytes, other.message.dtype):
            raise ProgramError(
                f"{name}: its ends differ: {sender.name} brings {sender.message}; {other.name} brings {other.message}"
            )
        check_sharing(name, sender, other)
        message = sender.message if is_eager else other.message  # a rendezvous is what its receiver makes of it
        alone_ps = sender.dispatch_ps if is_eager else None
        return Offer(message, max(sender.dispatch_ps, other.dispatch_ps), is_eager, alone_ps)

    @property
    def orphans(self) -> Iterator[tuple[int, int]]:
        """(turn, rank that never comes) of every transfer to which one end alone comes."""
        counts = dict.fromkeys(self.ranks, 0) | {member.rank: len(member.numbers) for member in self.members}
        for turn in range(self.count):
            for rank in self.ranks:
                if turn >= counts[rank]:
                    yield turn, rank


@dataclass(frozen=True)
class Encounter:
    """One exchange, for those who must name it: `turn` counts the collectives of one group; a transfer has -1."""

    ranks: Ranks
    turn: int
    parties: dict[int, Party]

    @property
    def name(self) -> str:
        """How errors call it."""
        return name_of(self.ranks, self.turn)


class Matching:
    """Pairs up the exchanges of the programs of one submission: `places`, and which of them each rank comes to.

    ProgramError where members do not agree on what a collective is, or the ends of a transfer on its size.
    """

    def __init__(self, sharing: Sharing, eager_bytes: int) -> None:
        self._sharing, self._eager_bytes = sharing, eager_bytes
        self._places: dict[tuple[Ranks, bool], Place] = {}
        self._parts: dict[tuple[int, object], LinkPart] = {}
        self.parts: dict[int, tuple[LinkPart, tuple[int, ...], list[Place]]] = {}
        self.likeness: dict[int, object] = {}  # equal for ranks that do the same in the same time, whomever they meet

    @property
    def places(self) -> list[Place]:
        """Where ranks meet."""
        return list(self._places.values())

    def add(self, submission: Submission, program: FlatProgram, ops: Ops) -> None:
        """Take a card's exchanges in."""
        rank, groups = submission.rank, submission.groups
        part = self._parts.get((id(program), ops.exchanges))
        if part is None:
            part = self._parts[id(program), ops.exchanges] = LinkPart(program, ops)
        keys = [(*channel.place(rank, groups), channel.action) for channel in part.channels]
        index: dict[object, int] = {}
        first = tuple(index.setdefault(key, number) for number, key in enumerate(keys))
        places: list[Place] = []
        for number, (ranks, is_transfer, action) in enumerate(keys):
            place = self._places.setdefault((ranks, is_transfer), Place(ranks, is_transfer))
            places.append(place)
            group = part.channels[number].group
            place.names |= {group}
            if first[number] == number:
                sharing = submission.sharing.get(group, self._sharing)
                numbers = part.numbers(first, number)
                place.members.append(Member(rank, part, numbers, sharing, action is Action.SEND, ops))
        self.parts[rank] = part, first, places
        self.likeness[rank] = id(program), ops.likeness, first

    def settle(self) -> None:
        """All have been added: find out what takes place."""
        for place in self._places.values():
            place.settle(self._eager_bytes)
            place.offers = [place.all_to_all(offer) if offer.turn != NONE else offer for offer in place.offers]

    def links(self, rank: int, base: Mapping[int, int]) -> Ints:
        """The meeting that each exchange of a card comes to, where those of a place begin with `base[id(place)]`."""
        part, first, places = self.parts[rank]
        starts = np.array([base[id(place)] for place in places], np.int64)
        return starts[part.channel_of] + part.turns(first) if places else np.zeros(0, np.int64)
