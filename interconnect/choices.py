"""Which algorithm and protocol a collective runs by: a table in the cluster file, and a sensible choice without one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator, model_validator

from ..isa.dtype import DType
from ..isa.errors import ConfigError
from .collectives.expand import NO_OPTIONS, check_expansion, expand
from .collectives.plan import Plan
from .collectives.protocol import PLAIN, WHOLE_PPM, Protocol
from .collectives.reducers import nearest_reducer
from .collectives.registry import ALGORITHMS, COLLECTIVES, Options, algorithms_for
from .evidence import Quantity
from .topology import Topology

SMALL_BYTES = 1 << 15  # below it latency decides
SWITCH_ADDS_BITS = 16  # narrower elements pass through a switch, which does not add them
SUMS = ("all_reduce", "reduce_scatter", "reduce")
SHAPED = ("hierarchical", "hierarchical_direct")


class ProtocolSpec(BaseModel):
    """How a library sends, as collectives.protocol.Protocol says; ramp, copy and bulk may be left out, at no cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_ps: Quantity
    step_ps: Quantity
    bandwidth_ppm: Quantity
    ramp_ps: Quantity | None = None
    copy_bytes_per_s: Quantity | None = None
    bulk_ps: Quantity | None = None

    @field_validator("bandwidth_ppm")
    @classmethod
    def _is_a_share(cls, quantity: Quantity) -> Quantity:
        if not 1 <= quantity.value <= WHOLE_PPM:
            raise ValueError(f"must be from 1 to {WHOLE_PPM} millionths")
        return quantity

    def quantities(self) -> list[Quantity]:
        """The numbers that times depend on."""
        numbers = (self.start_ps, self.step_ps, self.bandwidth_ppm, self.ramp_ps, self.copy_bytes_per_s, self.bulk_ps)
        return [number for number in numbers if number is not None]

    def protocol(self, name: str) -> Protocol:
        """The protocol as amounts take it."""
        return Protocol(
            name,
            self.start_ps.value,
            self.step_ps.value,
            self.bandwidth_ppm.value,
            self.ramp_ps.value if self.ramp_ps else 0,
            self.copy_bytes_per_s.value if self.copy_bytes_per_s else 0,
            self.bulk_ps.value if self.bulk_ps else 0,
        )


class ChoiceSpec(BaseModel):
    """One row of the table: what `collective` runs by when all that the row says holds; the first such row counts.

    `up_to_bytes`: the collective's whole buffer has at most so many. `from_ranks`, `up_to_ranks`: the group's size.
    `within`: the group stands inside one unit of that level; `beyond`: it does not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    collective: str
    algorithm: str
    protocol: str | None = None
    up_to_bytes: StrictInt | None = Field(default=None, ge=0)
    from_ranks: StrictInt = Field(default=1, ge=1)
    up_to_ranks: StrictInt | None = Field(default=None, ge=1)
    within: str | None = None
    beyond: str | None = None
    chunks: StrictInt = Field(default=0, ge=0)
    rails: StrictInt = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _exists(self) -> ChoiceSpec:
        if self.collective not in COLLECTIVES:
            raise ValueError(f"{self.collective!r} is not a collective (known: {', '.join(COLLECTIVES)})")
        if (self.collective, self.algorithm) not in ALGORITHMS:
            known = ", ".join(algorithms_for(self.collective))
            raise ValueError(f"no algorithm {self.algorithm!r} for {self.collective}; choose {known}")
        for name in ("chunks", "rails"):
            if getattr(self, name) and name not in ALGORITHMS[self.collective, self.algorithm].takes:
                raise ValueError(f"{self.algorithm} {self.collective} takes no {name}")
        return self


@dataclass(frozen=True)
class Choice:
    """An algorithm with its options, and the protocol it sends by."""

    algorithm: str
    options: Options = NO_OPTIONS
    protocol: Protocol = PLAIN

    def plan(self, collective: str, size: int, root: int = 0) -> Plan:
        """The plan of a collective over a group of this size."""
        return expand(collective, size, self.algorithm, root, self.options)


@dataclass(frozen=True)
class Group:
    """Where a group stands: its ranks in group order, on a topology whose levels have `names`, outermost first."""

    ranks: tuple[int, ...]
    topology: Topology
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """How many members stand together at each level, outermost first, where they count through it like digits.

        Levels at which all stand together, or each alone, are left out; () where members are unevenly spread.
        """
        return group_shape(self.ranks, self.topology.shape)

    def within(self, level: str) -> bool:
        """Whether all stand inside one unit of a level."""
        depth = self.names.index(level)
        inside = math.prod(self.topology.shape[depth:])
        return len({rank // inside for rank in self.ranks}) == 1


@lru_cache(maxsize=1 << 12)
def group_shape(ranks: tuple[int, ...], machine: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a group has on a machine of this shape, levels without a part in it left out; () if irregular.

    16 ranks over two nodes of a machine (4, 8) are (2, 8); three of one node and five of another are ().
    """
    sides: list[int] = []
    blocks = [list(ranks)]
    inside = math.prod(machine)
    for count in machine:
        inside //= count
        split: list[list[int]] = []
        sizes = set()
        for block in blocks:
            runs: list[list[int]] = []
            for rank in block:
                if not runs or rank // inside != runs[-1][0] // inside:
                    runs.append([])
                runs[-1].append(rank)
            if len({run[0] // inside for run in runs}) < len(runs):
                return ()
            sizes.add((len(runs), *{len(run) for run in runs}))
            split += runs
        if len(sizes) > 1 or len(shape := sizes.pop()) != 2:
            return ()
        sides.append(shape[0])
        blocks = split
    return tuple(side for side in sides if side > 1)


def candidates(collective: str, group: Group, dtype: DType | None = None) -> tuple[Choice, ...]:
    """Every algorithm that the group could run the collective by, with its usual options, save plans beyond reason."""
    shape, found = group.shape, []
    for name in algorithms_for(collective):
        takes = ALGORITHMS[collective, name].takes
        if not _has_its_switch(collective, name, group, dtype):
            continue
        options = Options(shape=shape) if "shape" in takes and len(shape) > 1 else NO_OPTIONS
        if name in SHAPED and len(shape) < 2 or name == "rings" and len(shape) > 2:
            continue
        try:
            check_expansion(collective, len(group.ranks), name, options=options)
        except ConfigError:
            continue
        found.append(Choice(name, options))
    return tuple(found)


def choose(
    table: Sequence[ChoiceSpec],
    protocols: Mapping[str, Protocol],
    collective: str,
    group: Group,
    num_bytes: int,
    dtype: DType | None = None,
) -> Choice:
    """The first row of the table that fits, or else what is usual: see `usual`."""
    for row in table:
        if row.collective == collective and _fits(row, group, num_bytes):
            shape = group.shape if "shape" in ALGORITHMS[collective, row.algorithm].takes else ()
            shape = shape if len(shape) > 1 else ()
            if row.algorithm in SHAPED and not shape or not _has_its_switch(collective, row.algorithm, group, dtype):
                continue  # such a group cannot run it
            options = Options(shape, row.chunks, row.rails)
            return Choice(row.algorithm, options, protocols[row.protocol] if row.protocol else _first(protocols))
    chosen = usual(collective, group, num_bytes)
    return Choice(chosen.algorithm, chosen.options, _first(protocols))


def _has_its_switch(collective: str, algorithm: str, group: Group, dtype: DType | None = None) -> bool:
    """Whether an algorithm needs no switch that reduces, or the group has one, which adds elements of this kind."""
    if not ALGORITHMS[collective, algorithm].uses_switch:
        return True
    if dtype is not None and collective in SUMS and dtype.bits < SWITCH_ADDS_BITS:
        return False
    return bool(group.topology.reducing) and nearest_reducer(group.ranks, group.topology) is not None


def _fits(row: ChoiceSpec, group: Group, num_bytes: int) -> bool:
    size = len(group.ranks)
    return (
        (row.up_to_bytes is None or num_bytes <= row.up_to_bytes)
        and row.from_ranks <= size <= (row.up_to_ranks or size)
        and (row.within is None or group.within(row.within))
        and (row.beyond is None or not group.within(row.beyond))
    )


def _first(protocols: Mapping[str, Protocol]) -> Protocol:
    return next(iter(protocols.values()), PLAIN)


def usual(collective: str, group: Group, num_bytes: int) -> Choice:
    """Without a row: level by level where a group spans several units evenly; direct in a full mesh, whose links all
    carry at once; halving and doubling through switches for few bytes; else the collective's usual one.
    """
    names: Any = algorithms_for(collective)
    if len(group.shape) > 1 and len(group.topology.shape) > 1 and "hierarchical" in names:
        return Choice("hierarchical", Options(shape=group.shape))
    kind, is_small = group.topology.kind, num_bytes <= SMALL_BYTES
    wanted = "direct" if kind == "full_mesh" else "halving_doubling" if kind in ("switch", "fat_tree") else ""
    if wanted in names and len(group.ranks) > 2 and (is_small or kind == "full_mesh"):
        return Choice(wanted)
    return Choice(names[0])
