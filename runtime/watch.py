"""Watch: where a number first leaves the finite range - instruction, layer, head or expert, and token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..emulator.kernels.binding import Thunk
from ..emulator.payload import Site
from ..emulator.payload_binding import LEFT_UNDEFINED
from ..isa.activations import GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC
from ..isa.dma import SCATTER
from ..isa.dtype import decode
from ..isa.experts import GROUPED_GATED, GROUPED_MATMUL, PERMUTE
from ..isa.instruction import Array, split_even
from ..isa.operands import Ref, Role
from ..isa.products import PACKED_GROUPED_MATMUL, QUANTISED_GROUPED_MATMUL
from ..isa.work import Unit
from ..models.blocks import Moe
from .lowering.stage import SHARE, STATES
from .lowering.weights import layer_name
from .places import layer_of, place_of
from .plan import JobPlan
from .report import NotFinite
from .scheduler import Step
from .watch_heads import head_of

# Where all these bits are set a float is infinite or NaN, by the bits of a stored element.
_NOT_FINITE: dict[str, Any] = {
    "fp32": np.uint32(0x7F800000),
    "fp16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
    "fp8_e5m2": np.uint8(0x7C),
    "fp8_e4m3": np.uint8(0x7F),
}
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
class _Event:
    """The first bad element of one output; `token` is its row among the card's tokens, where it has one.

    `order` sorts events of a step as the model computes: stage, call, position in the block, rank.
    """

    order: tuple[int, int, int, int]
    site: Site
    ref: Ref
    column: int
    value: float
    elements: int
    token: int | None
    expert: int | None


class Watch:
    """Looks at every float that instructions write, until the first step in which one is not finite.

    `inspect` is for a Payload; `ended` is called after every step, and `found` then says what came first.
    """

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.found: NotFinite | None = None
        self._first: _Event | None = None

    def inspect(self, site: Site) -> Thunk | None:
        """The check of what an instruction writes; None where it writes no floats."""
        checks = [self._check(site, ref, rows) for ref, rows in _outputs(site)]
        if len(checks) < 2:
            return checks[0] if checks else None

        def thunk() -> None:
            for check in checks:
                check()

        return thunk

    def _check(self, site: Site, ref: Ref, rows: Rows | None) -> Thunk:
        mask = _NOT_FINITE[site.memory.type_of(ref).dtype.name]
        view = site.memory.raw(ref)
        bits = view.reshape(-1, view.shape[-1]).view(mask.dtype) if ref.size is None else view.view(mask.dtype)

        def check() -> None:
            if self.found is not None:
                return
            written = bits if rows is None else bits[rows()]
            if ((written & mask) == mask).any():
                self._note(site, ref, bits, mask, rows)

        return check

    def _note(self, site: Site, ref: Ref, bits: Array, mask: Any, rows: Rows | None) -> None:
        """Keep an event if it came before the one that is held."""
        rank = site.image.rank
        order = (self.plan.layout.stage_of(rank), site.call, site.position, rank)
        if self._first is not None and self._first.order <= order:
            return
        index = np.arange(len(bits)) if rows is None else np.arange(len(bits))[rows()]
        bad = (bits[index] & mask) == mask
        at, column = (int(i) for i in np.argwhere(bad)[0])
        row = int(index[at])
        dtype = site.memory.type_of(ref).dtype
        stored = np.ascontiguousarray(bits[row, column : column + 1]).view(dtype.storage)
        self._first = _Event(
            order=order,
            site=site,
            ref=ref,
            column=ref.start + column,
            value=float(decode(stored, dtype)[0]),
            elements=int(bad.sum()),
            token=_token(site, ref, row),
            expert=self._expert(site, row),
        )

    def _expert(self, site: Site, row: int) -> int | None:
        """The expert whose row it is, for what works on experts' rows."""
        i, layer = site.instruction, layer_of(self.plan, site)
        if not isinstance(i, GROUPED_MATMUL | GROUPED_GATED) or layer is None:
            return None
        mlp, layout = self.plan.graph.layers[layer].mlp, self.plan.layout
        assert isinstance(mlp, Moe), "only experts have grouped rows"
        own = layout.experts_of(site.image.rank, mlp.experts.count)
        slot = own.first + int(np.searchsorted(np.cumsum(_counts(site, i)), row, side="right"))
        placement = self.plan.placements.get(layer_name(self.plan.graph.layers[layer]))
        return placement[slot] if placement else slot

    def ended(self, step: Step) -> None:
        """Settle what the step that has just run brought."""
        event, self._first = self._first, None
        if event is None or self.found is not None:
            return
        rank = event.site.image.rank
        layer = layer_of(self.plan, event.site)
        place = None if event.token is None else place_of(self.plan, step, rank, event.token)
        self.found = NotFinite(
            value="nan" if np.isnan(event.value) else "inf" if event.value > 0 else "-inf",
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
    return isinstance(first, int) or first in ("tokens", "rows", "sequences", STATES, SHARE)


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
    return site.memory.raw(i.counts)[i.at : i.at + experts]


def _token(site: Site, ref: Ref, row: int) -> int | None:
    """The token, among those of the card, that a row of an output belongs to; None where it is none's."""
    first, arrays = str(site.block.types[ref.buffer].shape[0]), site.memory.arrays
    if isinstance(site.instruction, SCATTER):
        return _where(site.memory.raw(site.instruction.index), row)
    if first == "tokens":
        return row
    if first == SHARE:
        size, index = site.memory.group_size("tp"), site.memory.group_index("tp")
        return split_even(site.memory.scalar("tokens"), size)[index][0] + row
    if first == "rows" and "host.rows" in site.image.arrays:
        return int(site.image.arrays["host.rows"][row])
    if first.startswith("tokens.") and "expert_slots" in arrays:
        return _where(arrays["expert_slots"], row)
    return None


def _where(index: Array, row: int) -> int | None:
    found = np.argwhere(index == row)
    return int(found[0][0]) if len(found) else None


def describe(found: NotFinite) -> str:
    """Where it was, in one sentence."""
    where = [found.layer]
    where += [found.head] if found.head else []
    where += [f"expert {found.expert}"] if found.expert is not None else []
    where += [f"request {found.request}, position {found.position}"] if found.request is not None else []
    return (
        f"the first {found.value} arose in {', '.join(where)} (step {found.step}, card {found.card}, "
        f"{found.elements} elements): {found.instruction}"
    )
