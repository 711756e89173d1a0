"""Watch: where a number first leaves the finite range - instruction, layer, head or expert, and token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..emulator.undefined import LEFT_UNDEFINED
from ..isa.activations import GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC, QUANTISE, QUANTISE_STATIC
from ..isa.dma import SCATTER
from ..isa.dtype import decode
from ..isa.experts import GROUPED_GATED, GROUPED_MATMUL, PERMUTE
from ..isa.instruction import Array, split_even
from ..isa.operands import Ref, Role
from ..isa.products import PACKED_GROUPED_MATMUL, QUANTISED_GROUPED_MATMUL
from ..isa.work import Unit
from ..models.blocks import Moe
from .halves import halves
from .lowering.passes.overlap import SECOND, is_second, of_half
from .lowering.stage import SHARE, STATES
from .lowering.weights import layer_name
from .places import layer_of, place_of
from .plan import JobPlan
from .report import OutOfRange
from .scheduler import Step
from .watch_heads import head_of

if TYPE_CHECKING:  # kernels, which a run without numbers does without
    from ..emulator.kernels.binding import Thunk
    from ..emulator.payload import Site

# Where all these bits are set a float is infinite or NaN, by the bits of a stored element.
_NOT_FINITE: dict[str, Any] = {
    "fp32": np.uint32(0x7F800000),
    "fp16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
    "fp8_e5m2": np.uint8(0x7C),
    "fp8_e4m3": np.uint8(0x7F),
}
# The largest finite number of a type by its bits, its sign aside; and what rounds to more than the largest code.
_LARGEST: dict[str, Any] = {
    "fp16": np.uint16(0x7BFF),
    "bf16": np.uint16(0x7F7F),
    "fp8_e5m2": np.uint8(0x7B),
    "fp8_e4m3": np.uint8(0x7E),
}
_BEYOND = {"int8": 127.5, "fp8_e4m3": 464.0, "fp8_e5m2": 61440.0}
Kind = Literal["not finite", "saturated"]
SUMS = ("all_reduce", "recv_reduce")  # link instructions that make numbers instead of moving them
OnExperts = (
    GROUPED_MATMUL
    | GROUPED_GATED
    | PACKED_GROUPED_MATMUL
    | QUANTISED_GROUPED_MATMUL
    | GROUPED_QUANTISE
    | GROUPED_QUANTISE_STATIC
)
Rows = Callable[[], Any]  # which rows of an output an instruction has just written, as an index of its first axis


@dataclass(frozen=True)
class _Look:
    """What is looked at after an instruction: elements [rows, columns] of an operand, and which of them are bad."""

    kind: Kind
    ref: Ref
    elements: Array
    rows: Rows | None
    bad: Callable[[Array], Array]


@dataclass(frozen=True)
class _Event:
    """The first bad element of one operand; `token` is its row among the card's tokens, where it has one.

    `order` sorts events of a step as the model computes: stage, call, position in the block, rank.
    """

    order: tuple[int, int, int, int]
    site: Site
    ref: Ref
    column: int
    value: Literal["nan", "inf", "-inf", "saturated"]
    elements: int
    token: int | None
    expert: int | None


class Watch:
    """Looks at every float that instructions write, until the first step in which one is not finite or saturates.

    `inspect` is for a Payload; `ended` is called after every step. `found` is then the first that was not finite, and
    `saturated` the first that was cut to the largest number of its type: where the card's rules do that, and where
    inputs become codes by a scale that was found before.
    """

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self._first: dict[Kind, _Event] = {}
        self._found: dict[Kind, OutOfRange] = {}

    @property
    def found(self) -> OutOfRange | None:
        """The first number that was not finite."""
        return self._found.get("not finite")

    @property
    def saturated(self) -> OutOfRange | None:
        """The first number that was cut."""
        return self._found.get("saturated")

    def inspect(self, site: Site) -> Thunk | None:
        """The check of what an instruction writes; None where there is nothing to see."""
        looks = [*_not_finite(site), *_saturated(site)]
        if not looks:
            return None

        def thunk() -> None:
            for look in looks:
                if look.kind not in self._found:
                    written = look.elements if look.rows is None else look.elements[look.rows()]
                    if look.bad(written).any():
                        self._note(site, look)

        return thunk

    def _note(self, site: Site, look: _Look) -> None:
        """Keep an event if it came before the one that is held."""
        rank = site.image.rank
        order = (self.plan.layout.stage_of(rank), site.call, site.position, rank)
        held = self._first.get(look.kind)
        if held is not None and held.order <= order:
            return
        index = np.arange(len(look.elements)) if look.rows is None else np.arange(len(look.elements))[look.rows()]
        bad = look.bad(look.elements[index])
        at, column = (int(i) for i in np.argwhere(bad)[0])
        row = int(index[at])
        self._first[look.kind] = _Event(
            order=order,
            site=site,
            ref=look.ref,
            column=look.ref.start + column,
            value="saturated" if look.kind == "saturated" else _name(site, look, row, column),
            elements=int(bad.sum()),
            token=_token(site, look.ref, row),
            expert=self._expert(site, row),
        )

    def _expert(self, site: Site, row: int) -> int | None:
        """The expert whose row it is, for what works on experts' rows."""
        i, layer = site.instruction, layer_of(self.plan, site)
        if not isinstance(i, OnExperts) or layer is None:
            return None
        mlp, layout = self.plan.graph.layers[layer].mlp, self.plan.layout
        assert isinstance(mlp, Moe), "only experts have grouped rows"
        own = layout.experts_of(site.image.rank, mlp.experts.count)
        slot = own.first + int(np.searchsorted(np.cumsum(_counts(site, i)), row, side="right"))
        placement = self.plan.placements.get(layer_name(self.plan.graph.layers[layer]))
        return placement[slot] if placement else slot

    def ended(self, step: Step) -> None:
        """Settle what the step that has just run brought."""
        events, self._first = self._first, {}
        for kind, event in events.items():
            self._found.setdefault(kind, self._settled(event, step))

    def _settled(self, event: _Event, step: Step) -> OutOfRange:
        rank = event.site.image.rank
        layer = layer_of(self.plan, event.site)
        half = halves(self.plan, step)[is_second(event.site.instruction)]
        place = None if event.token is None else place_of(self.plan, half, rank, event.token)
        return OutOfRange(
            value=event.value,
            step=step.index,
            card=rank,
            layer=f"layer {layer}" if layer is not None else _WHERE.get(_kind(event.site), _kind(event.site)),
            instruction=str(event.site.instruction),
            head=None if layer is None else self._head(event, layer),
            expert=event.expert,
            request=None if place is None else place[0],
            position=None if place is None else place[1],
            elements=event.elements,
        )

    def _head(self, event: _Event, layer: int) -> str | None:
        attention = self.plan.graph.layers[layer].attention
        return head_of(attention, self.plan.layout, event.site, event.ref, event.column)


_WHERE = {"embed": "embedding"}


def _kind(site: Site) -> str:
    return site.block.name.partition(".")[0]


def _name(site: Site, look: _Look, row: int, column: int) -> Literal["nan", "inf", "-inf"]:
    dtype = site.memory.type_of(look.ref).dtype
    stored = np.ascontiguousarray(look.elements[row, column : column + 1]).view(dtype.storage)
    value = float(decode(stored, dtype)[0])
    return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"


def _not_finite(site: Site) -> Iterator[_Look]:
    for ref, rows in _outputs(site):
        mask = _NOT_FINITE[site.memory.type_of(ref).dtype.name]
        yield _Look("not finite", ref, _bits(site, ref, mask), rows, partial(_all_set, mask))


def _all_set(mask: Any, bits: Array) -> Array:
    found: Array = (bits & mask) == mask
    return found


def _saturated(site: Site) -> Iterator[_Look]:
    """Where the card cuts what passes a type, outputs that are its largest number; inputs beyond a given scale."""
    i, memory = site.instruction, site.memory
    if isinstance(i, QUANTISE_STATIC | GROUPED_QUANTISE_STATIC):
        code, kind, x = memory.type_of(i.dst).dtype, memory.type_of(i.x).dtype, memory.raw(i.x)
        most, scales = _BEYOND[code.name], memory.raw(i.scales)

        def beyond(rows: Array) -> Array:
            values = np.abs(decode(np.ascontiguousarray(rows), kind))
            found: Array = (values > most * scales[0, 0]) & np.isfinite(values)
            return found

        if not code.is_float or memory.rules.cast(code).saturation == "saturate":
            yield _Look("saturated", i.x, x.reshape(-1, x.shape[-1]), _rows(site), beyond)
        return
    if isinstance(i, QUANTISE | GROUPED_QUANTISE):  # a block's largest becomes the largest code by right
        return
    if isinstance(i, SCATTER) and memory.type_of(i.src).dtype is memory.type_of(i.dst).dtype:
        return
    for ref, rows in _outputs(site):
        dtype = memory.type_of(ref).dtype
        if dtype.name in _LARGEST and memory.rules.cast(dtype).saturation == "saturate":
            largest = _LARGEST[dtype.name]
            yield _Look("saturated", ref, _bits(site, ref, largest), rows, partial(_is_largest, largest))


def _is_largest(largest: Any, bits: Array) -> Array:
    sign = np.array(1 << (8 * largest.itemsize - 1), largest.dtype)
    found: Array = (bits & ~sign) == largest
    return found


def _bits(site: Site, ref: Ref, like: Any) -> Array:
    """The elements of an operand as unsigned integers, [rows, columns]."""
    view = site.memory.raw(ref)
    return view.reshape(-1, view.shape[-1]).view(like.dtype) if ref.size is None else view.view(like.dtype)


def _outputs(site: Site) -> list[tuple[Ref, Rows | None]]:
    """The float outputs of an instruction whose rows are known, each with which of them it writes (None: all)."""
    instruction, found = site.instruction, list[tuple[Ref, Rows | None]]()
    only_moves = instruction.unit is Unit.LINK and instruction.mnemonic not in SUMS
    if only_moves or getattr(instruction, "starts", None) is not None:  # seen where it was made; some rows only
        return found
    for ref, role in instruction.refs():
        dtype = site.memory.type_of(ref).dtype
        if role is Role.IN or dtype.name not in _NOT_FINITE:
            continue
        rows = _rows(site)
        if rows is None:
            if not _is_whole(site, ref):
                continue
            into_cache = role is Role.INOUT and instruction.unit is Unit.DMA
            if into_cache or (instruction.mnemonic, role) in LEFT_UNDEFINED:
                continue
        found.append((ref, rows))
    return found


def _is_whole(site: Site, ref: Ref) -> bool:
    """Whether all rows of a buffer are somebody's: not so those that wait for what routers choose."""
    first = site.block.types[ref.buffer].shape[0]
    return isinstance(first, int) or first.removesuffix(SECOND) in ("tokens", "rows", "sequences", STATES, SHARE)


def _rows(site: Site) -> Rows | None:
    """For an instruction that writes some rows of its output: which."""
    i, memory = site.instruction, site.memory
    if isinstance(i, SCATTER):
        index = memory.raw(i.index)
        return lambda: index[index >= 0]
    if isinstance(i, PERMUTE):
        slots = memory.raw(i.slots)
        return lambda: slice(0, int(slots.max(initial=-1)) + 1)
    if isinstance(i, OnExperts):
        counts = _counts(site, i)
        return lambda: slice(0, int(counts.sum()))
    return None


def _counts(site: Site, i: OnExperts) -> Array:
    """Rows of each expert that an instruction works on, as they stand in memory."""
    if isinstance(i, GROUPED_MATMUL):
        experts = site.memory.shape(i.w)[0]
    elif isinstance(i, PACKED_GROUPED_MATMUL | QUANTISED_GROUPED_MATMUL):
        experts = site.memory.shape(i.codes)[0]
    else:
        experts = i.experts
    at = site.memory.number(i.at)
    return site.memory.raw(i.counts)[at : at + experts]


def _token(site: Site, ref: Ref, row: int) -> int | None:
    """The token, among those of the card, that a row of an output belongs to; None where it is none's."""
    named, arrays = str(site.block.types[ref.buffer].shape[0]), site.memory.arrays
    first, half = named.removesuffix(SECOND), int(is_second(site.instruction))
    if isinstance(site.instruction, SCATTER):
        return _where(site.memory.raw(site.instruction.index), row)
    if first == "tokens":
        return row
    if first == SHARE:
        size, index = site.memory.group_size("tp"), site.memory.group_index("tp")
        return split_even(site.memory.scalar(of_half("tokens", half)), size)[index][0] + row
    if first == "rows" and (rows := of_half("host.rows", half)) in site.image.arrays:
        return int(site.image.arrays[rows][row])
    if first.startswith("tokens.") and (slots := of_half("expert_slots", half)) in arrays:
        return _where(arrays[slots], row)
    return None


def _where(index: Array, row: int) -> int | None:
    found = np.argwhere(index == row)
    return int(found[0][0]) if len(found) else None


def describe(found: OutOfRange) -> str:
    """Where it was, in one sentence."""
    where = [found.layer]
    where += [found.head] if found.head else []
    where += [f"expert {found.expert}"] if found.expert is not None else []
    where += [f"request {found.request}, position {found.position}"] if found.request is not None else []
    what = "number that was cut to the largest of its type" if found.value == "saturated" else found.value
    return (
        f"the first {what} arose in {', '.join(where)} (step {found.step}, card {found.card}, "
        f"{found.elements} elements): {found.instruction}"
    )
