"""What both calendars' clusters share: equal cards on the nodes of a topology, and what may be submitted to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from ..interconnect.topology import Topology
from ..isa.errors import ConfigError, ProgramError
from .calendar.engine import MAX_PRIORITY
from .calendar.resources import ResourceTable
from .card import Card
from .choosing import Choose
from .exchange import Exchanged
from .span import Span
from .span_columns import CardColumns
from .spec import CardSpec
from .thermal import at_clock
from .ticket import Submission
from .usage import Ledger, Usage
from .wires import Wires

KEPT_PROGRAMS = 256


class Ran(Protocol):
    """Programs that were submitted together; times are picoseconds, and all is known once they have ended."""

    start_ps: int
    end_ps: int

    @property
    def spans(self) -> Sequence[Span]:
        """Every instruction, in any order."""

    @property
    def columns(self) -> tuple[CardColumns, ...]:
        """The same as columns, by card; of cards that did the very same one stands for all."""

    @property
    def exchanged(self) -> Sequence[Exchanged]:
        """Collectives and transfers, in order of their end."""


class Machines(ABC):
    """Equal cards, ranks 0 to `num_cards` - 1, each on the node of a topology that `placement` gives it, by rank.

    Without a placement every rank stands on the node of its own number; links and nodes keep the topology's numbers.
    `choose(collective, group size, ranks, bytes of all parts, dtype)` gives the algorithm and protocol of a collective,
    as `ClusterSpec.choose` does by a cluster file's table.
    """

    def __init__(
        self,
        table: ResourceTable,
        spec: CardSpec,
        topology: Topology,
        num_cards: int | None,
        choose: Choose,
        placement: Sequence[int] | None,
    ) -> None:
        num_cards = topology.cards if num_cards is None else num_cards
        if not 1 <= num_cards <= topology.cards:
            raise ConfigError(f"num_cards={num_cards}; the {topology.kind} has room for 1 to {topology.cards}")
        self.placement = tuple(range(num_cards)) if placement is None else _checked(placement, num_cards, topology)
        self.spec, self.topology, self._table = spec, topology, table
        self.cards = tuple(Card(table, rank, spec) for rank in range(num_cards))
        self._stepped: dict[int, Card] = {}  # those whose clock is not their own
        links = topology.links
        self.link_resources = table.add_resources(
            lambda number: f"link {number} {links[number].name}", topology.columns.bandwidth_bytes_per_s, "link"
        )
        ports = [card.ports for card in self.cards]
        self._wires = Wires(spec, topology, self.link_resources, ports, choose, self.placement, table.resources)
        self.ledger = Ledger(self.cards, topology, self.link_resources, self.placement, len(table.resources))

    @property
    @abstractmethod
    def now_ps(self) -> int:
        """The time, in picoseconds."""

    @abstractmethod
    def start(self, programs: Sequence[Submission], *, in_turn: bool = False) -> Ran:
        """Hand programs to the queues of their cards; with `in_turn` a card's last program must be over before."""

    @abstractmethod
    def finish(self, ran: Ran) -> None:
        """Let time pass until programs that this cluster has started have ended; raises what went wrong in them."""

    @property
    def orders(self) -> int:
        """Places in the order of activities that a submission takes."""
        return 2 * len(self.cards) * len(self.spec.queues)

    def orders_of(self, rank: int, number: int) -> tuple[int, int]:
        """The places of the exchanges that a card's queue owns, and of what it does alone.

        Exchanges come first, those of the same queue of all cards together, so that no card is before another in what
        it shares with peers.
        """
        cards, queues = len(self.cards), len(self.spec.queues)
        return number * cards + rank, (cards + rank) * queues + number

    def usage(self, rank: int) -> dict[str, Usage]:
        """What all submissions that have ended used of a card, by unit: tensor, vector, dma0 .., host, hbm, link."""
        self._card(rank)
        return self.ledger.card(rank)

    # changes from outside

    def set_capacity(self, rank: int, unit: str, capacity_per_s: int) -> None:
        """Change a unit from now on: cycles a second (tensor, vector, dma0 ..) or bytes (hbm, host); 0 is dead."""
        self._change(self._card(rank).resource(unit), capacity_per_s)

    def set_clock(self, rank: int, clock_hz: int) -> None:
        """Step a card's clock: all units that run at it, from now on, and what later submissions cost; 0 is dead."""
        card = self._card(rank)
        for unit in card.clocked:
            self.set_capacity(rank, unit, clock_hz)
        self._stepped.pop(rank, None)
        if clock_hz and clock_hz != self.spec.clock_hz:
            self._stepped[rank] = card.of_spec(at_clock(self.spec, clock_hz))

    def _clocked(self, rank: int) -> Card:
        """A card as its clock stands."""
        return self._stepped.get(rank, self.cards[rank])

    def set_link_capacity(self, source: int, target: int, bandwidth_bytes_per_s: int) -> None:
        """Change the directed links from node `source` to node `target` from now on; 0 is dead."""
        found = [n for n, link in enumerate(self.topology.links) if (link.source, link.target) == (source, target)]
        if not found:
            raise ConfigError(f"no link leads from node {source} to node {target} of the {self.topology.kind}")
        for number in found:
            self._change(self.link_resources[number], bandwidth_bytes_per_s)

    def _change(self, resource: int, capacity_per_s: int) -> None:
        """Change a capacity from now on."""
        self._table.set_capacity(resource, capacity_per_s)

    def _check(self, programs: Sequence[Submission]) -> None:
        """Raise ProgramError for ranks, groups or sharings that do not fit."""
        orders: dict[frozenset[int], tuple[str, tuple[int, ...]]] = {}
        seen: set[int] = set()
        for submission in programs:
            rank = submission.rank
            if not 0 <= rank < len(self.cards):
                raise ProgramError(f"rank {rank} is no card; there are 0 to {len(self.cards) - 1}")
            if rank in seen:
                raise ProgramError(f"rank {rank} stands twice in one submission; a card executes one program of it")
            seen.add(rank)
            _check_sharing(submission)
            for name, size in submission.program.group_sizes.items():
                ranks = self._check_group(submission, name, size)
                other, order = orders.setdefault(frozenset(ranks), (name, ranks))
                if order != ranks:
                    raise ProgramError(
                        f"rank {rank}: group {name} is {ranks}, and group {other} of another card or name is {order}: "
                        "the same ranks in another order; give members the same order"
                    )

    def _check_group(self, submission: Submission, name: str, size: int) -> tuple[int, ...]:
        rank = submission.rank
        where = f"rank {rank}, program {submission.program.name}: group {name}"
        if name not in submission.groups:
            known = ", ".join(submission.groups) or "none"
            raise ProgramError(f"{where} has no ranks; given: {known}")
        ranks = submission.groups[name]
        if len(ranks) != size or len(set(ranks)) != size:
            raise ProgramError(f"{where} needs {size} different ranks, and is given {ranks}")
        if min(ranks) < 0 or max(ranks) >= len(self.cards):
            raise ProgramError(f"{where} is {ranks}; cards are 0 to {len(self.cards) - 1}")
        index = submission.binding.group_index.get(name)
        if index is None or not 0 <= index < size or ranks[index] != rank:
            raise ProgramError(f"{where} is {ranks}, and the binding calls rank {rank} its member {index}")
        return ranks

    def _queue_number(self, rank: int, queue: str) -> int:
        """The place of a queue among those of a card."""
        self._card(rank)
        names = [own.name for own in self.spec.queues]
        if queue not in names:
            raise ConfigError(f"card {rank} has no queue {queue!r}; it has {', '.join(names)}")
        return names.index(queue)

    def _card(self, rank: int) -> Card:
        if not 0 <= rank < len(self.cards):
            raise ConfigError(f"rank {rank} is no card; there are 0 to {len(self.cards) - 1}")
        return self.cards[rank]


def _checked(placement: Sequence[int], num_cards: int, topology: Topology) -> tuple[int, ...]:
    nodes = tuple(placement)
    if len(nodes) != num_cards or len(set(nodes)) != num_cards or not all(0 <= n < topology.cards for n in nodes):
        raise ConfigError(
            f"placement={nodes}: it must name {num_cards} different cards of the {topology.kind}'s 0 to "
            f"{topology.cards - 1}, one for each rank"
        )
    return nodes


def _check_sharing(submission: Submission) -> None:
    where = f"rank {submission.rank}, program {submission.program.name}"
    for name, (weight, priority) in submission.sharing.items():
        if name not in submission.program.group_sizes:
            known = ", ".join(submission.program.group_sizes) or "none"
            raise ProgramError(f"{where}: a sharing is given for {name}, which is no group of it; its groups: {known}")
        if type(weight) is not int or weight < 1 or type(priority) is not int or abs(priority) >= MAX_PRIORITY:
            raise ProgramError(
                f"{where}: group {name} has weight {weight!r} and priority {priority!r}; a weight is an int of 1 or "
                "more, a priority one of 32 bits"
            )
