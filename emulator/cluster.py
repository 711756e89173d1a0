"""Cluster: cards on an interconnect, in one calendar; programs in, spans out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import simpy
from simpy.core import EmptySchedule

from ..interconnect.topology import Topology
from ..isa.errors import ConfigError, ProgramError, SiltwinError
from ..isa.program import Program
from .calendar.engine import MAX_PRIORITY, Calendar, int_env
from .card import Card, Op
from .card_queue import CardQueue
from .choosing import Choose, default_choice
from .costs import Costs
from .deadlock import deadlock
from .exchange import Detail, Exchange, Sharing
from .failure import carried
from .spec import CardSpec
from .ticket import CardRun, Submission, Ticket
from .timeline import Timeline
from .usage import Ledger, Usage
from .wires import Wires

KEPT_PROGRAMS = 256


class Cancelled(SiltwinError):
    """A submission was taken back before it ended."""


class Prepared:
    """A program made ready for one kind of card: its timeline, its costs, and each card's latest operations."""

    def __init__(self, program: Program, card: Card) -> None:
        self.program = program  # kept alive, since it is found by its identity
        self.timeline = Timeline(program)
        card.check(self.timeline)
        self._costs = Costs(self.timeline, card.spec)
        self._ops: dict[int, list[Op]] = {}

    def ops(self, submission: Submission, card: Card) -> list[Op]:
        """What every site asks of a card under a submission's binding."""
        costs = self._costs.of(submission.binding)
        ops = self._ops[card.rank] = card.ops(self.timeline, costs, self._ops.get(card.rank, ()))
        return ops


class Cluster:
    """Equal cards, ranks 0 to `num_cards` - 1, each on the node of a topology that `placement` gives it, by rank.

    Without a placement every rank stands on the node of its own number; links and nodes keep the topology's numbers.
    `detail` "step" runs every lockstep step of a collective as an activity of its own, where "group" makes one of the
    whole. `choose(collective, group size, ranks, bytes of all parts)` gives the algorithm and protocol of a collective,
    as `ClusterSpec.choose` does by a cluster file's table. All times are integer picoseconds of `env`.
    """

    def __init__(
        self,
        spec: CardSpec,
        topology: Topology,
        num_cards: int | None = None,
        *,
        env: simpy.Environment | None = None,
        detail: Detail = "group",
        choose: Choose = default_choice,
        placement: Sequence[int] | None = None,
    ) -> None:
        num_cards = topology.cards if num_cards is None else num_cards
        if not 1 <= num_cards <= topology.cards:
            raise ConfigError(f"num_cards={num_cards}; the {topology.kind} has room for 1 to {topology.cards}")
        if detail not in ("group", "step"):
            raise ConfigError(f"detail={detail!r}; choose group or step")
        self.placement = tuple(range(num_cards)) if placement is None else _checked(placement, num_cards, topology)
        self.env = int_env() if env is None else env
        self.spec, self.topology, self.detail = spec, topology, detail
        self.calendar = Calendar(self.env)
        self.cards = tuple(Card(self.calendar, rank, spec) for rank in range(num_cards))
        self.link_resources = tuple(
            self.calendar.add_resource(f"link {number} {link.name}", link.bandwidth_bytes_per_s, "link")
            for number, link in enumerate(topology.links)
        )
        ports = [card.ports for card in self.cards]
        self._wires = Wires(spec, topology, self.link_resources, ports, choose, self.placement)
        self.queues = tuple(
            {queue.name: CardQueue(self.calendar, card.rank, queue.name) for queue in spec.queues}
            for card in self.cards
        )
        self._prepared: OrderedDict[int, Prepared] = OrderedDict()
        self._latest: dict[int, CardRun] = {}
        self._submitted = self._in_flight = 0
        self.ledger = Ledger(self.cards, topology.links, self.link_resources, self.placement)

    # programs

    def submit(
        self, programs: Sequence[Submission], *, weight: int = 1, priority: int = 0, in_turn: bool = False
    ) -> Ticket:
        """Hand programs to the queues of their cards, to be executed after all that was submitted before.

        Queues run on by themselves; with `in_turn` none of a card starts before the card's last program is over, for
        programs that share buffers.
        On a resource that is short, activities of the highest priority are served first, and those of one priority by
        weight; exchanges of a group by its own, where submissions give it a sharing. ProgramError for a program that is
        not legal, for queues, groups or sharings that do not fit, or for a rank twice.
        """
        self._check(programs)
        exchange = Exchange(self.calendar, self._wires, self.spec.link.eager_bytes, self.detail)
        exchange.sharing = Sharing(weight, priority)
        ticket = Ticket(self.env, self._submitted, exchange)
        for submission in programs:
            prepared = self._prepare(submission)
            ops = prepared.ops(submission, self.cards[submission.rank])
            after = self._latest.get(submission.rank) if in_turn else None
            run = CardRun(ticket, submission, prepared.timeline, ops, after)
            ticket.runs[submission.rank] = self._latest[submission.rank] = run
        self._submitted += 1
        parts = [
            (self.queues[rank][name], run)
            for rank, run in ticket.runs.items()
            for name, entries in run.timeline.queues.items()
            if entries
        ]
        for queue, run in parts:
            queue.submit(run)
        self._in_flight += 1
        ticket.expect(len(parts), self._at_rest)
        return ticket

    def _at_rest(self, ticket: Ticket) -> None:
        """A submission has left the queues: enter what it used."""
        self.ledger.add(ticket)
        self._in_flight -= 1
        if not self._in_flight:
            self.ledger.settle()

    def usage(self, rank: int) -> dict[str, Usage]:
        """What all submissions that have ended used of a card, by unit: tensor, vector, dma0 .., host, hbm, link."""
        self._card(rank)
        return self.ledger.card(rank)

    def cancel(self, ticket: Ticket, cause: Exception | None = None) -> None:
        """Take a submission back now: what it is doing is cut short, and it fails with `cause`."""
        cause = cause or Cancelled(f"submission {ticket.number} was cancelled at {self.env.now} ps")
        ticket.fail(cause)
        for rank, run in ticket.runs.items():
            for queue in self.queues[rank].values():
                if queue.run is run:
                    self._cut(queue, cause)
        ticket.exchange.abort(carried(cause))  # an eager message may be on its way for nobody

    def fail(self, rank: int, queue: str, cause: Exception) -> bool:
        """What a queue executes now, alone or with its peers, fails with `cause`, and its submission with it.

        False if it executes nothing now: it is idle, or waits for a semaphore or for a peer.
        """
        return self._cut(self._queue(rank, queue), cause)

    def _cut(self, queue: CardQueue, cause: Exception) -> bool:
        activities = queue.in_flight
        for running in activities:
            self.calendar.cancel(running, failed=carried(cause))
        return bool(activities)

    def _prepare(self, submission: Submission) -> Prepared:
        """The program's timeline and costs, found by its identity: comparing programs would cost more."""
        key = id(submission.program)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = Prepared(submission.program, self.cards[submission.rank])
            if len(self._prepared) > KEPT_PROGRAMS:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        return prepared

    def _check(self, programs: Sequence[Submission]) -> None:
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

    # time

    def run_until(self, ticket: Ticket) -> None:
        """Let time pass until the ticket is done; raises its cause if it failed.

        DeadlockError names every waiter when nothing can happen any more before that; the simulation may go on after a
        capacity change or a cancel.
        """
        done, step = ticket.done, self.env.step
        done.defused = True  # what fails is raised here
        while done.callbacks is not None:
            try:
                step()
            except EmptySchedule:
                raise deadlock(self.env, self.calendar, self.queues) from None
        if ticket.cause is not None:
            raise ticket.cause

    def advance_to(self, ps: int) -> None:
        """Let everything happen that happens before `ps`; the clock then stands there."""
        if type(ps) is not int or ps < self.env.now:
            raise ConfigError(f"cannot advance to {ps!r} ps: the clock stands at {self.env.now}; give a later int")
        if ps > self.env.now:
            self.env.run(until=ps)

    # changes from outside

    def set_capacity(self, rank: int, unit: str, capacity_per_s: int) -> None:
        """Change a unit from now on: cycles a second (tensor, vector, dma0 ..) or bytes (hbm, host); 0 is dead."""
        self.calendar.set_capacity(self._card(rank).resource(unit), capacity_per_s)

    def set_clock(self, rank: int, clock_hz: int) -> None:
        """Step a card's clock: all units that run at it."""
        for unit in self._card(rank).clocked:
            self.set_capacity(rank, unit, clock_hz)

    def set_link_capacity(self, source: int, target: int, bandwidth_bytes_per_s: int) -> None:
        """Change the directed links from node `source` to node `target` from now on; 0 is dead."""
        found = [n for n, link in enumerate(self.topology.links) if (link.source, link.target) == (source, target)]
        if not found:
            raise ConfigError(f"no link leads from node {source} to node {target} of the {self.topology.kind}")
        for number in found:
            self.calendar.set_capacity(self.link_resources[number], bandwidth_bytes_per_s)

    def _queue(self, rank: int, queue: str) -> CardQueue:
        self._card(rank)
        if queue not in self.queues[rank]:
            raise ConfigError(f"card {rank} has no queue {queue!r}; it has {', '.join(self.queues[rank])}")
        return self.queues[rank][queue]

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
