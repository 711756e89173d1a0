"""The payload of a job: weights, caches and inputs as real bytes on every card, and steps executed with numbers."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..emulator.choosing import Choose, default_choice
from ..emulator.payload import CardImage, Inspect, Payload
from ..isa.dtype import DType, decode, encode
from ..isa.instruction import Array
from ..isa.program import Binding, Buffer, Space
from ..models.blocks import Rope
from ..models.checkpoint import Checkpoint
from ..models.graph import rope_tables
from ..models.rope import rope_table
from .binding import entries_by_holder, step_bindings
from .calibration import Scales, input_scales
from .host import refuse_beyond_host
from .kv_cache import PagePool, PagePools
from .lowering.experts import expert_extent
from .lowering.held import Piece
from .lowering.passes.rewrite import CONTEXT, needs_context
from .lowering.stage import table_names
from .lowering.weights import WeightBuffer, layer_name
from .packed_weights import packed_arrays
from .plan import JobPlan
from .routing import Counts
from .scheduler import Entry, Request, Step

IMAGES_KEPT = 6
_MASK = (1 << 64) - 1

Requests = Sequence[Request] | Mapping[int, Request]
Observe = Callable[[int, Array], None]  # (layer, -1 for the embedding; float32 [tokens, hidden] after it)
Seen = defaultdict[int, dict[int, Array]]  # by layer and holder


def sample_key(seed: int, request: int, position: int) -> int:
    """The 64-bit key of one draw: a pure function of seed, request and position, whatever batch it stands in."""
    mixed = (seed * 0x9E3779B97F4A7C15 + request * 0xD1B54A32D192ED03 + position * 0x8CB92BA72F3D8DD7) & _MASK
    return mixed - (1 << 64) if mixed >> 63 else mixed


@dataclass(frozen=True)
class StepNumbers:
    """What a step computed: a token for each emitting entry, and the logits of its rows, float32 [rows, vocab].

    `routed` are the loads of its expert layers by extent, one holder after the other.
    """

    picked: list[int]
    logits: Array
    routed: Mapping[str, Counts]


class Numbers:
    """The arithmetic of a job on all its cards; it knows no time."""

    def __init__(
        self,
        plan: JobPlan,
        checkpoint: Checkpoint,
        seed: int = 0,
        debug: bool = False,
        choose: Choose = default_choice,
        inspect: Inspect | None = None,
    ) -> None:
        refuse_beyond_host(plan)
        self.plan, self.checkpoint, self.seed = plan, checkpoint, seed
        layout = plan.layout
        self.payload = Payload(choose, debug=debug, inspect=inspect, max_bound=IMAGES_KEPT * max(21, layout.cards))
        self._scales: Scales = {}
        if plan.activations is not None and plan.activations.scales == "static":
            self._scales = input_scales(plan, self._probe)
        self._constants = {twin: self._load(twin) for twin in set(plan.twins)}
        self._resident = {rank: self._constants[plan.twins[rank]] | self._caches(rank) for rank in range(layout.cards)}
        self._arenas = {
            rank: np.zeros(max(plan.lowered(rank, head).arena.num_bytes for head in (True, False)), np.uint8)
            for rank in range(layout.cards)
        }
        self._images: OrderedDict[tuple[int, ...], list[CardImage]] = OrderedDict()

    def _load(self, rank: int) -> dict[str, Array]:
        """Weights and tables of one rank."""
        lowered = self.plan.lowered(rank, True)
        arrays: dict[str, Array] = {}
        for weight in lowered.weights:
            arrays |= {weight.name: self._weight(weight)} if weight.packed is None else self._packed(weight)
        for buffer in lowered.program.buffers:
            if buffer.name in self._scales:
                arrays[buffer.name] = np.array([[self._scales[buffer.name]]], np.float32)
        for index, rope in enumerate(rope_tables(self.plan.graph)):
            arrays |= self._rope_table(rope, table_names(index), lowered.program.buffer)
        return arrays

    def _probe(self, plan: JobPlan, inspect: Inspect) -> Numbers:
        """The same numbers of another plan, watched."""
        return Numbers(plan, self.checkpoint, self.seed, choose=self.payload.choose, inspect=inspect)

    def _caches(self, rank: int) -> dict[str, Array]:
        """What one rank keeps of the sequences of its holder."""
        return {
            buffer.name: np.zeros(self._shape(buffer, self.plan.largest), buffer.type.dtype.storage)
            for buffer in self.plan.lowered(rank, True).program.buffers
            if buffer.space in (Space.KV, Space.STATE)
        }

    def _weight(self, weight: WeightBuffer) -> Array:
        dtype = weight.type.dtype
        shape = tuple(dim for dim in weight.type.shape if isinstance(dim, int))
        parts = [self._piece(piece, dtype) for piece in weight.pieces]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(shape)

    def _piece(self, piece: Piece, dtype: DType) -> Array:
        if piece.axis is None:
            return self.checkpoint.load(piece.tensor, dtype)
        if piece.expert is None:
            return self.checkpoint.load(piece.tensor, dtype, piece.start, piece.stop, piece.axis)
        whole = self.checkpoint.load(piece.tensor, dtype, piece.expert, piece.expert + 1)[0]
        whole = whole.T if piece.transposed else whole
        index = (slice(None),) * (piece.axis if whole.ndim > 1 else 0)
        return np.ascontiguousarray(whole[(*index, slice(piece.start, piece.stop, piece.step))])

    def _packed(self, weight: WeightBuffer) -> dict[str, Array]:
        """The buffers of a packed weight, whatever the layout cuts of it."""
        return {f"{weight.name}.{part}": array for part, array in packed_arrays(self.checkpoint, weight).items()}

    def _rope_table(self, rope: Rope, names: tuple[str, str], buffers: Mapping[str, Buffer]) -> dict[str, Array]:
        """Cosines and sines, where a layer of this rank turns by them.

        Only positions that the job reaches are computed, the rest of the table stays unset.
        """
        if names[0] not in buffers:
            return {}
        declared, tables = buffers[names[0]], dict[str, Array]()
        reached = max(request.most_kv_tokens for request in self.plan.requests())
        for name, values in zip(names, rope_table(rope, reached), strict=True):
            table = np.empty(self._shape(declared, self.plan.largest), declared.type.dtype.storage)
            table[:reached] = encode(values, declared.type.dtype)
            tables[name] = table
        return tables

    @staticmethod
    def _shape(buffer: Buffer, binding: Binding) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else binding.extents[dim][0] for dim in buffer.type.shape)

    def _images_for(self, holder: int, bindings: Sequence[Binding]) -> list[CardImage]:
        """The memory of a holder's cards at these shapes; steps of equal shapes share it, and so the bound kernels."""
        layout = self.plan.layout
        ranks = layout.ranks_of(holder)
        extents = bindings[ranks[0]].extents
        shapes = ["tokens", "sequences", "rows"]
        if any(needs_context(self.plan.lowered(rank, extents["rows"][0] > 0).program) for rank in ranks):
            shapes.append(CONTEXT)
        key = (holder, *(extents[name][0] for name in shapes))
        if key not in self._images:
            shared: dict[str, Array] = {}
            self._images[key] = [self._image(rank, extents["rows"][0] > 0, bindings[rank], shared) for rank in ranks]
            if len(self._images) > IMAGES_KEPT * layout.holders:
                self._images.popitem(last=False)
        self._images.move_to_end(key)
        return self._images[key]

    def _image(self, rank: int, head: bool, binding: Binding, shared: dict[str, Array]) -> CardImage:
        lowered = self.plan.lowered(rank, head)
        arrays = {name: array for name, array in self._resident[rank].items() if name in lowered.program.buffer}
        for buffer in lowered.program.buffers:
            if buffer.name in arrays:
                continue
            made = np.zeros(self._shape(buffer, binding), buffer.type.dtype.storage)
            is_input = buffer.space is Space.HOST and buffer.name != "host.picked"
            arrays[buffer.name] = shared.setdefault(buffer.name, made) if is_input else made
        return CardImage(
            rank=rank,
            program=lowered.program,
            arrays=arrays,
            arena=self._arenas[rank],
            offsets=lowered.arena.offsets,
            groups=self.plan.layout.groups(rank),
            binding=binding,
        )

    def run(self, step: Step, requests: Requests, pool: PagePools, observe: Observe | None = None) -> StepNumbers:
        """Execute a step on all cards; pages must be allocated already. `observe` sees every layer's output."""
        shares = entries_by_holder(self.plan.layout, step)
        bindings = step_bindings(self.plan, step)
        by_holder = [self._images_for(holder, bindings) for holder in range(len(shares))]
        for holder, (images, entries) in enumerate(zip(by_holder, shares, strict=True)):
            host = {name: array for image in images for name, array in image.arrays.items() if name.startswith("host.")}
            self._fill(host, entries, requests, pool[holder])
        images = sorted(chain.from_iterable(by_holder), key=lambda image: image.rank)
        seen: Seen = defaultdict(dict)
        written = self.payload.run(images, self._tap(images, seen) if observe else None)
        if observe:
            for layer, parts in sorted(seen.items()):
                observe(layer, np.concatenate([parts[holder] for holder in sorted(parts)]))
        picked, logits = self._results(images, shares)
        return StepNumbers(picked, logits, self._routed(written))

    def _results(self, images: Sequence[CardImage], shares: Sequence[Sequence[Entry]]) -> tuple[list[int], Array]:
        """The tokens picked and the logits, of each holder's rows on its last stage."""
        layout = self.plan.layout
        picked: list[int] = []
        logits = [np.zeros((0, self.plan.graph.vocab_size), np.float32)]
        for holder, entries in enumerate(shares):
            if not self.plan.rows_of(entries):
                continue
            last = images[layout.rank(layout.pp - 1, 0, holder)]
            tokens = last.arrays["host.picked"]
            picked += [int(tokens[row]) for row in self._emitting_rows(entries)]
            logits.append(decode(last.arrays["logits"], last.program.buffer["logits"].type.dtype))
        return picked, np.concatenate(logits) if len(logits) > 2 else logits[-1]

    def _routed(self, written: Mapping[int, Mapping[str, Counts]]) -> dict[str, Counts]:
        """The loads that every holder's ranks wrote, one holder after the other."""
        layout, loads = self.plan.layout, {expert_extent(layer_name(layer)) for layer in self.plan.graph.layers}
        found: dict[str, dict[int, Counts]] = defaultdict(dict)
        for rank, extents in written.items():
            for name in loads & extents.keys():
                counts = extents[name]
                own = found[name].setdefault(layout.holder_of(rank), counts)
                assert own == counts, f"ranks route {name} differently"
        return {name: tuple(chain.from_iterable(own[holder] for holder in sorted(own))) for name, own in found.items()}

    def _tap(self, images: Sequence[CardImage], seen: Seen) -> Callable[[int, int], None]:
        """Called as each call ends; keeps every holder's residual stream after the embedding and every layer."""
        layout, graph = self.plan.layout, self.plan.graph
        stages = layout.stage_layers(len(graph.layers))

        def ended(rank: int, call: int) -> None:
            image = images[rank]
            blocks = [made.block.partition(".")[0] for made in image.program.calls]
            if layout.tp_index_of(rank) or blocks[call] not in ("embed", "layer"):
                return
            before = blocks[:call].count("layer")
            layer = -1 if blocks[call] == "embed" else stages[layout.stage_of(rank)][before]
            x = image.arrays["x"]
            values = decode(x, image.program.buffer["x"].type.dtype).astype(np.float32, copy=True)
            seen[layer][layout.holder_of(rank)] = values

        return ended

    def fill_cache(
        self,
        cached: Sequence[tuple[int, ...]],
        requests: Sequence[Request],
        pool: PagePools,
        ended: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """Compute what stands in each request's cache before the job begins: untimed steps over its cached tokens.

        `ended` is called after each of them.
        """
        for request, ids in zip(requests, cached, strict=True):
            before = Request(request.index, len(ids), 1, prompt=ids)
            known = {request.index: before}
            most = self.plan.largest.extents["tokens"][0]
            for start in range(0, len(ids), most):
                entry = Entry(request.index, start, min(most, len(ids) - start), False)
                step = Step(0, "prefill", (entry,))
                self.run(step, known, pool)
                ended(step)

    def _emitting_rows(self, entries: Sequence[Entry]) -> list[int]:
        """Row of the logits that each emitting entry's token is picked from."""
        rows: list[int] = []
        row = 0
        for entry in entries:
            row += entry.count if self.plan.all_logits else int(entry.emits)
            if entry.emits:
                rows.append(row - 1)
        return rows

    def _fill(self, host: dict[str, Array], entries: Sequence[Entry], requests: Requests, pool: PagePool) -> None:
        """Write the inputs of a holder's entries into host memory."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        keys: list[int] = []
        tables = host["host.tables"]
        tables[...] = 0
        for index, entry in enumerate(entries):
            request = requests[entry.request]
            span = range(entry.start, entry.start + entry.count)
            ids += [request.token_at(position - request.cached_len) for position in span]
            positions += span
            slots += [pool.slot(entry.request, position) for position in span]
            table = pool.tables[entry.request]
            tables[index, : len(table)] = table
            picked = span if self.plan.all_logits else span[-1:] if entry.emits else ()
            rows += [len(positions) - entry.count + position - entry.start for position in picked]
            keys += [sample_key(self.seed, entry.request, position) for position in picked]
        values = {
            "ids": ids,
            "positions": positions,
            "slots": slots,
            "rows": rows,
            "keys": keys,
            "states": [pool.slots.get(entry.request, 0) for entry in entries],
            "q_lens": [entry.count for entry in entries],
            "kv_lens": [entry.start + entry.count for entry in entries],
        }
        for name, numbers in values.items():
            if f"host.{name}" in host:
                host[f"host.{name}"][...] = numbers
