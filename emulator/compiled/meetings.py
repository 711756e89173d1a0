"""Which exchanges of a submission's programs meet, known before they run: members come to a group in program order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...isa.errors import ProgramError, UnsupportedError
from ..card import Action, Op
from ..exchange import TRANSFER, Party, Sharing, check_sharing, message_of_all
from ..ticket import Submission
from ..wires import Message
from .flatten import FlatProgram


@dataclass(slots=True)
class Encounter:
    """One exchange: `ranks` in group order (a transfer's are source and target) and who comes to it.

    `turn` counts the collectives of one group; a transfer has -1.
    """

    ranks: tuple[int, ...]
    turn: int
    parties: dict[int, Party] = field(default_factory=dict)
    message: Message | None = None
    is_eager: bool = False

    @property
    def name(self) -> str:
        """How errors call it."""
        if self.turn == TRANSFER:
            return f"the transfer from rank {self.ranks[0]} to rank {self.ranks[1]}"
        return f"collective {self.turn} of ranks {', '.join(map(str, self.ranks))}"

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that never come."""
        return tuple(rank for rank in self.ranks if rank not in self.parties)


class Matching:
    """Pairs up the exchanges of the programs of one submission.

    ProgramError where members do not agree on what a collective is, or the ends of a transfer on its size;
    UnsupportedError for a program that exchanges from several queues, whose order only time could tell.
    """

    def __init__(self, sharing: Sharing, eager_bytes: int) -> None:
        self._sharing, self._eager_bytes = sharing, eager_bytes
        self.encounters: list[Encounter] = []
        self._collectives: dict[tuple[tuple[int, ...], int], int] = {}
        self._turns: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self._transfers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._sent: defaultdict[tuple[int, int, bool], int] = defaultdict(int)

    def add(self, submission: Submission, program: FlatProgram, ops: Sequence[Op]) -> list[int]:
        """The number of the encounter that each exchange of a card's program comes to."""
        if len(program.link_queues) > 1:
            raise UnsupportedError(
                f"program {program.timeline.program.name} exchanges from the queues "
                f"{', '.join(sorted(program.link_queues))}; the compiled calendar needs them in one: use --engine simpy"
            )
        found = []
        for row in program.links.tolist():
            op, entry = ops[program.sites[row]], program.timeline.made[program.entries[row]]
            assert op.message is not None
            sharing = submission.sharing.get(op.group, self._sharing)
            party = Party(submission.rank, 0, op.message, op.demand.fixed_ps, program.timeline, entry, sharing)
            ranks = submission.groups[op.group]
            if op.action is Action.COLLECTIVE:
                found.append(self._collective(party, ranks))
            elif op.action is Action.SEND:
                found.append(self._transfer(party, (submission.rank, ranks[op.peer]), True))
            else:
                found.append(self._transfer(party, (ranks[op.peer], submission.rank), False))
        return found

    def _new(self, ranks: tuple[int, ...], turn: int) -> int:
        self.encounters.append(Encounter(ranks, turn))
        return len(self.encounters) - 1

    def _collective(self, party: Party, ranks: tuple[int, ...]) -> int:
        turn = self._turns[party.rank, ranks]
        self._turns[party.rank, ranks] = turn + 1
        number = self._collectives.get((ranks, turn))
        if number is None:
            number = self._collectives[ranks, turn] = self._new(ranks, turn)
        encounter = self.encounters[number]
        if encounter.parties:
            other = next(iter(encounter.parties.values()))
            if other.message.terms != party.message.terms:
                raise ProgramError(
                    f"{encounter.name}: members differ: {other.name} brings {other.message}; "
                    f"{party.name} brings {party.message}"
                )
            check_sharing(encounter.name, other, party)
        encounter.parties[party.rank] = party
        if len(encounter.parties) == len(ranks):
            all_to_all = bool(party.message.arriving_bytes)
            encounter.message = message_of_all(encounter) if all_to_all else party.message
        return number

    def _transfer(self, party: Party, ends: tuple[int, int], sends: bool) -> int:
        count = self._sent[*ends, sends]
        self._sent[*ends, sends] = count + 1
        waiting = self._transfers[ends]
        if count == len(waiting):
            waiting.append(self._new(ends, TRANSFER))
        encounter = self.encounters[waiting[count]]
        for other in encounter.parties.values():
            if other.message.part_bytes != party.message.part_bytes or other.message.dtype != party.message.dtype:
                raise ProgramError(
                    f"{encounter.name}: its ends differ: {other.name} brings {other.message}; "
                    f"{party.name} brings {party.message}"
                )
            check_sharing(encounter.name, other, party)
        encounter.parties[party.rank] = party
        if sends:
            encounter.is_eager = party.message.part_bytes[0] <= self._eager_bytes
        if sends == encounter.is_eager or encounter.message is None:
            encounter.message = party.message  # a rendezvous is what its receiver makes of it
        return waiting[count]
