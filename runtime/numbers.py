"""The payload of a job: weights, caches and inputs as real bytes on every card, and steps executed with numbers."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ..emulator.choosing import Choose, default_choice
from ..emulator.payload import CardImage, Inspect, Payload
from ..isa.dtype import DType, decode, encode
from ..isa.instruction import Array
from ..isa.loads import Values
from ..isa.program import Binding, Buffer, Space
from ..models.blocks import Rope
from ..models.checkpoint import Checkpoint
from ..models.graph import rope_tables
from ..models.rope import rope_table
from .binding import step_bindings, step_variants
from .context import Context
from .halves import halves
from .host import refuse_beyond_host
from .input_scales import Scales, input_scales, stored_scales
from .kv_cache import PagePool, PagePools
from .layer_loads import LayerLoads, loads_of
from .lowering.experts import expert_extent, slots_extent
from .lowering.held import Piece
from .lowering.passes.offload_caches import in_host_pages
from .lowering.passes.overlap import SECOND, of_half
from .lowering.reach import WHOLE, Reach
from .lowering.stage import table_names
from .lowering.weights import WeightBuffer, layer_name
from .packed_weights import packed_arrays
from .plan import JobPlan, Variant
from .portions import Portion, portions
from .replicas import cut_table, replica_table
from .scheduler import Entry, Request, Step

IMAGES_KEPT = 6
_MASK = (1 << 64) - 1

Requests = Sequence[Request] | Mapping[int, Request]
Observe = Callable[[int, Array], None]  # (layer, -1 for the embedding; float32 [tokens, hidden] after it)
Seen = defaultdict[int, dict[int, Array]]  # by layer, and by holder and tensor-parallel index


def sample_key(seed: int, request: int, position: int) -> int:
    """The 64-bit key of one draw: a pure function of seed, request and position, whatever batch it stands in."""
    mixed = (seed * 0x9E3779B97F4A7C15 + request * 0xD1B54A32D192ED03 + position * 0x8CB92BA72F3D8DD7) & _MASK
    return mixed - (1 << 64) if mixed >> 63 else mixed


@dataclass(frozen=True)
class StepNumbers:
    """What a step computed: a token for each emitting entry, and the logits of its rows, float32 [rows, vocab].

    `routed` are the loads of its expert layers by extent.
    """

    picked: list[int]
    logits: Array
    routed: Mapping[str, LayerLoads]


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
        is_spread = plan.layout.cp > 1 or plan.limited_reaches
        if is_spread and any(sequence.cached_len for sequence in plan.sequences):
            plan = replace(plan, fills=True)
        self.plan, self.checkpoint, self.seed = plan, checkpoint, seed
        layout = plan.layout
        self.payload = Payload(choose, debug=debug, inspect=inspect, max_bound=IMAGES_KEPT * max(21, layout.cards))
        self.input_scales: Scales = {}
        if plan.activations is not None and plan.activations.scales == "static":
            self.input_scales = input_scales(plan, self._probe) if plan.calibration else stored_scales(plan)
        self._constants = {twin: self._load(twin) for twin in set(plan.twins)}
        self._resident = {rank: self._constants[plan.twins[rank]] | self._caches(rank) for rank in range(layout.cards)}
        self._arenas = {
            rank: np.zeros(max(plan.lowered(rank, variant).arena.num_bytes for variant in plan.variants), np.uint8)
            for rank in range(layout.cards)
        }
        self._images: OrderedDict[tuple[object, ...], list[CardImage]] = OrderedDict()

    def _load(self, rank: int) -> dict[str, Array]:
        """Weights and tables of one rank."""
        lowered = self.plan.lowered(rank, self.plan.variants[0])
        arrays: dict[str, Array] = {}
        for weight in self.plan.weights(rank):
            arrays |= {weight.name: self._weight(weight)} if weight.packed is None else self._packed(weight)
        for buffer in lowered.program.buffers:
            if buffer.name in self.input_scales:
                arrays[buffer.name] = np.array([[self.input_scales[buffer.name]]], np.float32)
        for layer in self.plan.graph.layers:
            cuts = lowered.program.buffer.get(f"{layer_name(layer)}.cuts")
            if cuts is not None:
                slots, count = self._shape(cuts, self.plan.largest)
                arrays[cuts.name] = cut_table(slots, self.plan.layout.ep, count)
        for name, placement in self.plan.placements.items():
            table = lowered.program.buffer.get(f"{name}.replicas")
            if table is not None:
                arrays[table.name] = replica_table(placement, *self._shape(table, self.plan.largest))
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
            for buffer in self.plan.lowered(rank, self.plan.variants[0]).program.buffers
            if buffer.space in (Space.KV, Space.STATE) or in_host_pages(buffer)
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

    def _images_for(self, holder: int, bindings: Sequence[Binding], variant: Variant) -> list[CardImage]:
        """The memory of a holder's cards at these shapes; steps of equal shapes share it, and so the bound kernels."""
        layout = self.plan.layout
        ranks = layout.ranks_of(holder)
        extents = bindings[ranks[0]].extents
        names: dict[str, None] = {}
        for rank in ranks:
            program = self.plan.lowered(rank, variant).program
            names |= dict.fromkeys([extent.name for extent in program.extents if not extent.is_vector])
            names |= dict.fromkeys(program.row_counts)
        key = (holder, variant, *(extents[name] for name in names if name in extents))
        if key not in self._images:
            shared: dict[str, Array] = {}
            self._images[key] = [self._image(rank, variant, bindings[rank], shared) for rank in ranks]
            if len(self._images) > IMAGES_KEPT * layout.holders:
                self._images.popitem(last=False)
        self._images.move_to_end(key)
        return self._images[key]

    def _image(self, rank: int, variant: Variant, binding: Binding, shared: dict[str, Array]) -> CardImage:
        lowered = self.plan.lowered(rank, variant)
        arrays = {name: array for name, array in self._resident[rank].items() if name in lowered.program.buffer}
        for buffer in lowered.program.buffers:
            if buffer.name in arrays:
                continue
            made = np.zeros(self._shape(buffer, binding), buffer.type.dtype.storage)
            is_input = buffer.space is Space.HOST and not buffer.name.startswith("host.picked")
            arrays[buffer.name] = shared.setdefault(buffer.name, made) if is_input else made
        return CardImage(
            rank=rank,
            program=lowered.program,
            arrays=arrays,
            arena=self._arenas[rank],
            offsets=lowered.arena.offsets,
            groups=self.plan.layout.groups(rank),
            binding=binding,
            rules=self.plan.card.numbers.arithmetic,
        )

    def run(self, step: Step, requests: Requests, pool: PagePools, observe: Observe | None = None) -> StepNumbers:
        """Execute a step on all cards; pages must be allocated already. `observe` sees every layer's output."""
        own, bindings = [portions(self.plan, half) for half in halves(self.plan, step)], step_bindings(self.plan, step)
        variants = step_variants(self.plan, step)
        by_holder = []
        for holder, both in enumerate(zip(*own, strict=True)):
            first = self.plan.layout.rank(0, 0, holder)
            by_holder.append(self._images_for(holder, bindings, variants[first]))
            for half, portion in enumerate(both):
                self._fill(_host_arrays(by_holder[-1], half), portion, requests, pool[holder])
        images = sorted(chain.from_iterable(by_holder), key=lambda image: image.rank)
        seen: Seen = defaultdict(dict)
        written = self.payload.run(images, self._tap(images, seen) if observe else None)
        if observe:
            order = in_order(step, [place for portion in chain(*own) for place in portion.places()])
            for layer, parts in sorted(seen.items()):
                observe(layer, np.concatenate([parts[place] for place in sorted(parts)])[order])
        picked, logits = self._results(images, own, step)
        return StepNumbers(picked, logits, self._routed(written))

    def _results(
        self, images: Sequence[CardImage], own: Sequence[Sequence[Portion]], step: Step
    ) -> tuple[list[int], Array]:
        """The tokens picked and the logits, in the order of the step's entries, of the rows on every last stage."""
        layout, wanted = self.plan.layout, list[tuple[int, int]]()
        picked = [np.zeros(0, np.int64)]
        logits = [np.zeros((0, self.plan.graph.vocab_size), np.float32)]
        for half, portion in ((half, portion) for half, parts in enumerate(own) for portion in parts):
            places = portion.wanted(self.plan.all_logits)
            if not places:
                continue
            wanted += places
            last = images[layout.rank(layout.pp - 1, 0, portion.holder)]
            picked.append(last.arrays[of_half("host.picked", half)].astype(np.int64))
            logits.append(decode(last.arrays[of_half("logits", half)], last.program.buffer["logits"].type.dtype))
        order = in_order(step, wanted)
        emitting = {(entry.request, entry.start + entry.count - 1) for entry in step.entries if entry.emits}
        tokens = np.concatenate(picked)
        return [int(tokens[row]) for row in order if wanted[row] in emitting], np.concatenate(logits)[order]

    def _routed(self, written: Mapping[int, Mapping[str, Values]]) -> dict[str, LayerLoads]:
        """The loads that every holder's ranks wrote."""
        layout, names = self.plan.layout, [layer_name(layer) for layer in self.plan.graph.layers]
        kinds = {extent(name) for name in names for extent in (expert_extent, slots_extent)}
        loads = {of_half(name, half) for name in kinds for half in range(1 + self.plan.overlap)}
        found: dict[str, dict[int, Values]] = defaultdict(dict)
        for rank, extents in written.items():
            for name in loads & extents.keys():
                counts = extents[name]
                own = found[name].setdefault(layout.holder_of(rank), counts)
                assert own == counts, f"ranks route {name} differently"
        shape = (layout.holders, layout.expert_parts, -1)
        routed = {
            name: np.array([own[holder] for holder in sorted(own)], np.int64).reshape(shape)
            for name, own in found.items()
        }
        return loads_of(routed, layout)

    def _tap(self, images: Sequence[CardImage], seen: Seen) -> Callable[[int, int], None]:
        """Called as each call ends; keeps every holder's residual stream after the embedding and every layer."""
        layout, graph = self.plan.layout, self.plan.graph
        stages, shared = layout.stage_layers(len(graph.layers)), self.plan.sequence_parallel

        def ended(rank: int, call: int) -> None:
            image = images[rank]
            blocks = [made.block.partition(".")[0] for made in image.program.calls]
            index = layout.tp_index_of(rank)
            if (index and not shared) or blocks[call] not in ("embed", "layer"):
                return
            before = blocks[:call].count("layer")
            layer = -1 if blocks[call] == "embed" else stages[layout.stage_of(rank)][before]
            x = image.arrays["x"]
            values = decode(x, image.program.buffer["x"].type.dtype).astype(np.float32, copy=True)
            seen[layer][layout.holder_of(rank) * layout.tp + index] = values

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
            self._lend(request.index, pool, True)
            for start in range(0, len(ids), most):
                entry = Entry(request.index, start, min(most, len(ids) - start), False)
                step = Step(0, "prefill", (entry,))
                self.run(step, known, pool)
                ended(step)
            self._lend(request.index, pool, False)

    def _lend(self, request: int, pools: PagePools, lend: bool) -> None:
        """Give a request spare pages in place of those that its layers let go, for as long as its cache is filled."""
        for holder in self.plan.layout.holders_of(request):
            for reach, pool in pools[holder].limited.items():
                spare = self.plan.largest.extents[reach.pages][0] - self.plan.spare_pages
                pool.lend(request, spare if lend else None)

    def _fill(self, host: dict[str, Array], portion: Portion, requests: Requests, pool: PagePool) -> None:
        """Write the inputs of a holder's portion into host memory."""
        ids: list[int] = []
        positions: list[int] = []
        for reach, pages in ((WHOLE, pool), *pool.limited.items()):
            self._fill_pages(host, portion, reach, pages)
        for index, entry in enumerate(portion.entries):
            request, own = requests[entry.request], portion.positions(index)
            ids += [request.token_at(position - request.cached_len) for position in own.tolist()]
            positions += own.tolist()
        rows = {place: row for row, place in enumerate(portion.places())}
        wanted = portion.wanted(self.plan.all_logits)
        values = {
            "ids": ids,
            "positions": positions,
            "rows": [rows[place] for place in wanted],
            "keys": [sample_key(self.seed, *place) for place in wanted],
            "states": [pool.slots.get(entry.request, 0) for entry in portion.entries],
            "q_lens": portion.counts,
            "kv_lens": [entry.start + entry.count for entry in portion.entries],
        }
        if self.plan.layout.cp > 1:
            values |= Context(self.plan, portion).inputs(pool)
        for name, numbers in values.items():
            if f"host.{name}" in host:
                host[f"host.{name}"][...] = numbers

    def _fill_pages(self, host: dict[str, Array], portion: Portion, reach: Reach, pool: PagePool) -> None:
        """Write the tables of a reach's pages, where they are read, and where each new token goes in them."""
        tables, slots = (host.get(f"host.{name}{reach.suffix}") for name in ("tables", "slots"))
        if tables is not None:
            tables[...] = 0
            for index, entry in enumerate(portion.entries):
                table = pool.tables[entry.request]
                tables[index, : len(table)] = table
        if slots is not None:
            slots[...] = [
                pool.slot(entry.request, row)
                for index, entry in enumerate(portion.entries)
                for row in self._local(entry.request, portion.share, portion.positions(index))
            ]

    def _local(self, request: int, share: int, positions: Array) -> list[int]:
        """Where positions of a request stand among those that a share holds."""
        if self.plan.layout.cp == 1:
            return [int(position) for position in positions]
        return [int(row) for row in self.plan.ownership(request).counts(share, positions)]


def in_order(step: Step, places: Sequence[tuple[int, int]]) -> list[int]:
    """The rows of (request, position) places in the order of a step's entries, then of positions."""
    entry = {entry.request: index for index, entry in enumerate(step.entries)}
    return sorted(range(len(places)), key=lambda row: (entry[places[row][0]], places[row][1]))


def _host_arrays(images: Sequence[CardImage], half: int) -> dict[str, Array]:
    """Host memory of a holder's cards for one half of a step, by the names that the first half calls it."""
    arrays = chain.from_iterable(image.arrays.items() for image in images)
    found = {name: array for name, array in arrays if name.startswith("host.") and name.endswith(SECOND) == bool(half)}
    return {name.removesuffix(SECOND): array for name, array in found.items()}
