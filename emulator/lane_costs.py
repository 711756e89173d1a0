"""Costs in lanes: what instructions whose loads differ from card to card ask, of all cards and layers at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from ..isa.activations import GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC
from ..isa.counts import LaneCounts
from ..isa.dispatch import REGROUP
from ..isa.errors import ProgramError
from ..isa.experts import COMBINE, GROUPED_GATED, GROUPED_MATMUL, PERMUTE
from ..isa.instruction import Instruction
from ..isa.link import ALL_TO_ALL
from ..isa.loads import Table, Values
from ..isa.operands import Ref
from ..isa.products import PACKED_GROUPED_MATMUL, QUANTISED_GROUPED_MATMUL
from ..isa.program import Block, BlockShapes
from ..isa.scaling import SCALE_ROUTED
from ..isa.situ import GROUPED_SITU_GATED
from ..isa.work import Work
from .calendar.solver import Ints

# Instructions whose Work is made of sums and products alone, and so comes out right where a count is an array.
IN_LANES: tuple[type[Instruction], ...] = (
    PERMUTE, GROUPED_MATMUL, PACKED_GROUPED_MATMUL, GROUPED_GATED, GROUPED_SITU_GATED, COMBINE, SCALE_ROUTED, REGROUP,
    ALL_TO_ALL, GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC, QUANTISED_GROUPED_MATMUL,
)  # fmt: skip


class Lanes(NamedTuple):
    """Cards that read the same tables, which the block's names of their extents give: one lane each, by `ranks`."""

    tables: Mapping[str, Table]
    ranks: Ints


class Columns(Sequence[Ints]):
    """An extent in lanes: an array [lanes] for each of its values."""

    def __init__(self, parts: Sequence[tuple[Table, Ints]]) -> None:
        self._parts = parts
        self._count = int(parts[0][0].values.shape[1])
        if any(table.values.shape[1] != self._count for table, _ in parts):
            raise ProgramError("tables of one extent have different numbers of values")

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Ints:
        """All values, [lanes, values]."""
        rows: Ints = np.concatenate([table.values[table.rows[ranks]] for table, ranks in self._parts]).astype(np.int64)
        return rows

    def __iter__(self) -> Iterator[Ints]:
        return iter(self[:])

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self[index : index + 1][0]
        stops = np.cumsum([len(ranks) for _, ranks in self._parts])
        taken = np.empty((len(range(*index.indices(len(self)))), int(stops[-1])), np.int64)
        for (table, ranks), stop in zip(self._parts, stops.tolist(), strict=True):
            taken[:, stop - len(ranks) : stop] = table.values[:, index].T[:, table.rows[ranks]]
        return LaneCounts(taken)


def rows_of(values: Columns | Values, lanes: int) -> Ints:
    """An extent's values in every lane, [lanes, values]."""
    if isinstance(values, Columns):
        return values.rows
    return np.broadcast_to(np.array(values, np.int64), (lanes, len(values)))


class LaneSizes(BlockShapes):
    """A block's operands where some extents are arrays of one value a lane: what Work in lanes is computed from.

    `scalars` are the extents that all lanes share, by the block's names.
    """

    def __init__(
        self, block: Block, group_sizes: Mapping[str, int], scalars: Mapping[str, Values], lanes: Sequence[Lanes]
    ) -> None:
        super().__init__(block, group_sizes)
        self._scalars, self._lanes = scalars, lanes

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Dimensions of an operand, the same in all lanes."""
        return tuple(dim if isinstance(dim, int) else self.number(dim) for dim in self.type_of(ref).shape)

    def number(self, value: int | str) -> int:
        """A number, or the value of a scalar extent."""
        if isinstance(value, int):
            return value
        (number,) = self._scalars[value]
        return int(number)

    def extent(self, name: str) -> Any:
        """The values of an extent, each an array where lanes differ."""
        if name in self._scalars:
            return self._scalars[name]
        return Columns([(lanes.tables[name], lanes.ranks) for lanes in self._lanes])


def lane_work(instruction: Instruction, sizes: LaneSizes) -> Work:
    """The Work of an instruction in lanes; ProgramError where a lane's counts do not fit."""
    given: Any = sizes
    return instruction.work(given)


def of_lane(work: Work, lane: int) -> Work:
    """One lane of a Work in lanes, as the instruction's Work of that card alone is."""
    shape: Any = work.shape
    own = (
        None
        if shape is None
        else replace(shape, **{name: _of_lane(getattr(shape, name), lane) for name in _named(shape)})
    )
    numbers = {name: _of_lane(getattr(work, name), lane) for name in _named(work) if name != "shape"}
    return replace(work, shape=own, **numbers)


def _named(value: Any) -> list[str]:
    return [field.name for field in fields(value)]


def _of_lane(value: Any, lane: int) -> Any:
    if isinstance(value, tuple):
        return tuple([_of_lane(item, lane) for item in value])
    return int(value[lane]) if isinstance(value, np.ndarray) else value
