"""Card: one accelerator alive in simulated time: its resources in the calendar, and what programs ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ..isa.control import HALT, SIGNAL, WAIT
from ..isa.errors import ConfigError, ProgramError
from ..isa.instruction import Instruction
from ..isa.work import CollectiveShape, TransferShape, Unit
from .calendar.activity import Demand
from .calendar.resources import ResourceTable
from .costs import Cost
from .questions import Question
from .site import Site
from .span import Bound
from .spec import CardSpec
from .timeline import Timeline
from .units.rates import UnitDemand, capacities
from .wires import RECV_REDUCE, Message, Ports, message_of


class Action(Enum):
    """What a queue does with an instruction."""

    FLOW = auto()  # one activity on this card
    WAIT = auto()
    SIGNAL = auto()
    HALT = auto()
    COLLECTIVE = auto()
    SEND = auto()
    RECEIVE = auto()


class Op(NamedTuple):
    """An instruction bound to a card: its action, what it demands of the card's own resources, and its bound alone.

    `busy` are the units it keeps busy. `runs_alone`: it demands all that in an activity of its own, where a collective
    or transfer has a message, and shares its group's activity; `peer` is a transfer's other end, as an index in the
    group. A receive that adds an eager message does so alone.
    """

    action: Action
    demand: Demand
    bound: Bound
    cost: Cost
    busy: tuple[str, ...]
    runs_alone: bool
    message: Message | None = None
    group: str = ""
    peer: int = -1


@lru_cache(maxsize=64)
def engines_of(spec: CardSpec) -> Mapping[str, str]:
    """The copy engine of every queue that may use one."""
    copying = [queue.name for queue in spec.queues if Unit.DMA in queue.units]
    return MappingProxyType({name: f"dma{number % spec.dma.engines}" for number, name in enumerate(copying)})


@lru_cache(maxsize=64)
def unit_resources(spec: CardSpec) -> Mapping[str, tuple[str, int, bool]]:
    """Kind, capacity a second and whether it serves one at a time, of each unit of a card."""
    capacity, engine_of, found = capacities(spec), engines_of(spec), dict[str, tuple[str, int, bool]]()
    engines = tuple(f"dma{number}" for number in range(spec.dma.engines))
    used = [{*(unit.value for unit in queue.units), engine_of.get(queue.name, "")} for queue in spec.queues]
    for unit in ("tensor", "vector", *engines, "host", "hbm"):
        kinds = [queue.kind for queue, units in zip(spec.queues, used, strict=True) if unit in units]
        exclusive = unit not in ("host", "hbm") and len(kinds) > 1 and all(kind == "unit" for kind in kinds)
        kind = unit if unit in ("host", "hbm") else "unit"
        found[unit] = kind, capacity["dma" if unit in engines else unit], exclusive
    return MappingProxyType(found)


class Card:
    """A card's resources, named by unit: tensor, vector, dma0 and on, host, hbm.

    Copy engines are dealt in turn to the queues that may use one. A unit that several queues of kind "unit" may use
    serves one activity at a time; streams share it.
    """

    def __init__(self, calendar: ResourceTable, rank: int, spec: CardSpec) -> None:
        self.rank, self.spec = rank, spec
        self.engine_of = engines_of(spec)
        self.resources: dict[str, int] = {}
        for unit, (kind, per_s, exclusive) in unit_resources(spec).items():
            self.resources[unit] = calendar.add_resource(f"card {rank} {unit}", per_s, kind, exclusive)

    def of_spec(self, spec: CardSpec) -> Card:
        """The same resources, for whose programs another spec says what they ask of them."""
        card = copy(self)
        card.spec = spec
        return card

    @property
    def clocked(self) -> tuple[str, ...]:
        """The units that run at the card's clock."""
        return tuple(unit for unit in self.resources if unit not in ("host", "hbm"))

    @property
    def ports(self) -> Ports:
        """Where messages touch this card: HBM, and the unit that adds what arrives (the first engine, if inline)."""
        reducer = "dma0" if self.spec.link.reduces_on == "dma" else "vector"
        return Ports(self.resources["hbm"], self.resources[reducer])

    def resource(self, unit: str) -> int:
        """The calendar's index of a unit."""
        if unit not in self.resources:
            raise ConfigError(f"card {self.rank} has no unit {unit!r}; it has {', '.join(self.resources)}")
        return self.resources[unit]

    def check(self, timeline: Timeline) -> None:
        """Raise ProgramError for a queue that this card lacks, or an instruction that its queue has no unit for.

        Instructions of control run in every queue.
        """
        program, units = timeline.program, {queue.name: queue.units for queue in self.spec.queues}
        for name in program.queues:
            if name not in units:
                raise ProgramError(
                    f"program {program.name} has a queue {name!r}; {self.spec.name} has {', '.join(units)}"
                )
        for _, site in timeline.questions:
            unit = type(site.instruction).unit
            if unit is not Unit.CONTROL and unit not in units[site.queue]:
                fitting = " or ".join(name for name, listed in units.items() if unit in listed)
                raise ProgramError(
                    f"program {program.name}, {site}: the queue {site.queue} of {self.spec.name} does not use the "
                    f"{unit.value} unit; choose {fitting}"
                )

    def ops(self, questions: Sequence[Question], costs: Sequence[Cost], known: Sequence[Op]) -> list[Op]:
        """The operation of every question; one whose cost is what it was in `known` is taken from there."""
        made: dict[tuple[int, str, type[Instruction]], Op] = {}
        ops = []
        for number, ((_, site), cost) in enumerate(zip(questions, costs, strict=True)):
            if known and known[number].cost is cost:
                ops.append(known[number])
                continue
            key = (id(cost), site.queue, type(site.instruction))
            op = made.get(key)
            if op is None:
                op = made[key] = self._op(site, cost)
            ops.append(op)
        return ops

    def _op(self, site: Site, cost: Cost) -> Op:
        instruction, work = site.instruction, cost.work
        demand = self._demand(site.queue, cost.demand)
        bound: Bound = cost.demand.bound
        if isinstance(work.shape, TransferShape | CollectiveShape):
            return self._link_op(demand, cost, work.shape)
        if isinstance(instruction, WAIT):
            return Op(Action.WAIT, demand, "dependency", cost, (), False)
        if isinstance(instruction, SIGNAL | HALT):
            action = Action.SIGNAL if isinstance(instruction, SIGNAL) else Action.HALT
            return Op(action, demand, "dispatch", cost, (), False)
        if work.unit is Unit.HOST and bound == "link":
            bound = "host"
        return Op(Action.FLOW, demand, bound, cost, self._busy(self._unit_of(site), demand), True)

    def _link_op(self, demand: Demand, cost: Cost, shape: TransferShape | CollectiveShape) -> Op:
        message = message_of(cost.work)
        if isinstance(shape, CollectiveShape):
            return Op(Action.COLLECTIVE, demand, "link", cost, ("link",), False, message, shape.group)
        action = Action.SEND if shape.sends else Action.RECEIVE
        adds = not shape.sends and message.kind == RECV_REDUCE and shape.num_bytes <= self.spec.link.eager_bytes
        busy = self._busy("link", demand) if adds else ("link",)
        return Op(action, demand, "link", cost, busy, adds, message, shape.group, shape.peer)

    def _unit_of(self, site: Site) -> str:
        """The unit an instruction occupies: dma0 for a copy on the queue of that engine."""
        unit = type(site.instruction).unit
        return self.engine_of[site.queue] if unit is Unit.DMA else unit.value

    def _busy(self, unit: str, demand: Demand) -> tuple[str, ...]:
        asked = {index for index, _ in demand.amounts}
        return tuple(dict.fromkeys([unit, *(name for name, index in self.resources.items() if index in asked)]))

    def _demand(self, queue: str, asked: UnitDemand) -> Demand:
        units = {"dma": self.engine_of.get(queue, "dma0")}
        amounts = tuple((self.resources[units.get(kind, kind)], amount) for kind, amount in asked.amounts)
        return Demand(asked.fixed_ps, asked.alone_ps, amounts)
