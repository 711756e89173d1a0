"""Plan: a job's model lowered over its layout - programs, largest extents and footprints - before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..emulator.hbm import Hbm
from ..emulator.spec import CardSpec
from ..isa.dtype import BF16, DType
from ..isa.loads import Table
from ..isa.program import Binding
from ..isa.work import Unit
from ..models.blocks import Graph
from .classes import cuts_blocks, lowest, program_classes, weight_twins
from .context import Context, Extents, mode_of
from .dispatch import kinds
from .halves import halves
from .kv_cache import PAGE_TOKENS, PagePool, PagePools
from .kv_policy import KvPolicy
from .lanes import Lanes
from .largest import largest_extents
from .latent_steps import LatentSteps
from .layer_loads import LayerLoads
from .layout import Layout
from .lowering.arena import ArenaPlan, plan_arena
from .lowering.context import Mode, chooses, has_states
from .lowering.held import Holding
from .lowering.latent_order import LatentOrder
from .lowering.lower import BuiltProgram, LoweredProgram, build, place
from .lowering.passes.cache import CodedCache
from .lowering.passes.compose import refuse_missing
from .lowering.passes.offload import Offload
from .lowering.passes.packed import Activations
from .lowering.passes.window import DEFAULT_FUSIONS
from .lowering.reach import KvPages, Reach, limited_reaches
from .lowering.stage import LoweringOptions, Sampling
from .lowering.standing import standing_extents
from .lowering.weights import WeightBuffer
from .memory import Footprint, JobMemory, footprint
from .offload import in_host_memory
from .ownership import Ownership, ownership
from .portions import Portion, portions
from .rehearsal import rehearsed_portions, steps_until_decode
from .routing import Routing, step_routing
from .scheduler import Entry, Request, Step

KEPT_SPREADS = 1 << 12  # portions of a million tokens in chunks over 16 shares, and a few
GRANULE_BYTES = 512  # what device allocators round to


@dataclass(frozen=True)
class Lengths:
    """The lengths of one sequence of a job, in tokens."""

    prompt_len: int
    max_new_tokens: int
    cached_len: int = 0


class Variant(NamedTuple):
    """What tells the programs of one rank apart: whether logits are computed, and how attention reaches the context."""

    head: bool
    mode: Mode = "whole"


@dataclass(frozen=True)
class JobPlan:
    """Model, card, layout and lengths of a job; everything else follows from them.

    `all_logits` computes the logits of every prompt position instead of the last one's; `holding` says which weights
    lie packed in device memory, `activations` how what they are multiplied by is quantised, and `calibration` holds the
    sequences that its static scales come from; `cache` says how caches hold codes (None: floats of `kv_dtype`). `fuse`
    names the fusions of its programs; `cp_prefill` is how attention reaches a context that is spread over shares where
    a step has prompt tokens. `fills` makes room for steps that compute what is cached. With `kv_pages` ideal, layers
    with windows or chunks let pages go that they read no more; `kv_policy` says how their memory is reserved. `routing`
    says what experts get where numbers do not (None: they do), and `expert_room` how many times an even share of rows
    may arrive at a card (None: as many as `routing` sends, at least twice an even share). `latent` orders latent
    attention's products. `offload` says what lives in host memory. With `overlap` a step's tokens are computed in two
    halves, one beside the other's exchanges.
    """

    graph: Graph
    layout: Layout
    card: CardSpec
    dtype: DType
    kv_dtype: DType
    sequences: tuple[Lengths, ...]
    chunk_tokens: int | None = None
    micro_batches: int = 1
    sequence_parallel: bool = False
    placements: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sampling: Sampling = Sampling()
    all_logits: bool = False
    page_tokens: int = PAGE_TOKENS
    holding: Holding = Holding()
    fuse: tuple[str, ...] = DEFAULT_FUSIONS
    activations: Activations | None = None
    cache: CodedCache | None = None
    calibration: tuple[tuple[int, ...], ...] = ()
    cp_prefill: Mode = "ring"
    fills: bool = False
    kv_pages: KvPages = "unified"
    kv_policy: KvPolicy = KvPolicy()
    routing: Routing | None = None
    expert_room: float | None = None
    latent: LatentOrder = LatentOrder()
    offload: Offload = Offload()
    overlap: bool = False
    _built: dict[tuple[Layout, int, Variant], BuiltProgram] = field(default_factory=dict, compare=False, repr=False)

    def requests(self) -> list[Request]:
        """Fresh requests of these lengths, without tokens."""
        return [
            Request(index, sequence.prompt_len, sequence.max_new_tokens, sequence.cached_len)
            for index, sequence in enumerate(self.sequences)
        ]

    @cached_property
    def asked(self) -> tuple[Request, ...]:
        """The requests as they are asked for, to read lengths of."""
        return tuple(self.requests())

    @cached_property
    def largest(self) -> Binding:
        """The largest extents that any step binds on any card."""
        return largest_extents(self)

    @cached_property
    def opening(self) -> tuple[Step, ...]:
        """Steps of every micro-batch up to its first that only decodes: later ones are never larger."""
        return steps_until_decode(self)

    @cached_property
    def rehearsed(self) -> list[Portion]:
        """What every holder computes of the steps up to the first that only decodes, and of those that fill caches."""
        return rehearsed_portions(self)

    @cached_property
    def limited_reaches(self) -> tuple[Reach, ...]:
        """The reaches of layers that have pages of their own."""
        return limited_reaches(self.graph.layers, self.kv_pages)

    @property
    def spare_pages(self) -> int:
        """Pages of the longest cached sequence: steps that compute it need the ones that it holds no more."""
        return max(PagePool(self.page_tokens).pages_for(request.cached_len) for request in self.asked)

    @cached_property
    def kept_tables(self) -> dict[object, dict[str, Table]]:
        """What ranks bind of loads that are the same in many steps."""
        return {}

    @cached_property
    def kept_loads(self) -> dict[int, LayerLoads]:
        """Loads of expert layers that are the same in many steps, by the identity of their numbers."""
        return {}

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The programs of a rank that the job's steps run."""
        modes = dict.fromkeys(mode_of(self, portion) for portion in self.rehearsed)
        return tuple(Variant(head, mode) for mode in modes for head in (True, False))

    @cached_property
    def has_states(self) -> bool:
        """Whether some layer keeps a state of fixed size for each sequence."""
        return has_states(self.graph)

    @cached_property
    def chooses(self) -> bool:
        """Whether some layer attends to tokens that it chooses among all cached ones."""
        return chooses(self.graph)

    def ownership(self, request: int) -> Ownership:
        """Which share of the context owns each position of a request."""
        if request not in self._owned:
            lengths, layout = self.sequences[request], self.layout
            most = Request(request, lengths.prompt_len, lengths.max_new_tokens, lengths.cached_len).most_kv_tokens
            cached = [(0, lengths.cached_len)] if lengths.cached_len else []
            cuts = (*cached, *self._prompt_cuts.get(request, ()))
            home = request // (layout.dp * self.micro_batches) % layout.cp
            self._owned[request] = ownership(cuts, most, layout.cp, home, self.has_states, self.page_tokens)
        return self._owned[request]

    @cached_property
    def _owned(self) -> dict[int, Ownership]:
        return {}

    @cached_property
    def _prompt_cuts(self) -> dict[int, list[tuple[int, int]]]:
        """(start, count) of the entries of every request's prompt, in order: they follow from the lengths alone."""
        cuts: dict[int, list[tuple[int, int]]] = {}
        for step in self.opening:
            for entry in step.entries:
                lengths = self.sequences[entry.request]
                if entry.start < lengths.cached_len + lengths.prompt_len:
                    cuts.setdefault(entry.request, []).append((entry.start, entry.count))
        return cuts

    def local_tokens(self, request: int, share: int, tokens: int) -> int:
        """How many of the first `tokens` tokens of a request a share holds."""
        return tokens if self.layout.cp == 1 else self.ownership(request).count(share, tokens)

    def keeps_states(self, request: int, share: int) -> bool:
        """Whether a share is the one that keeps the states of a request."""
        return self.layout.cp == 1 or self.ownership(request).home == share

    def lanes(self, requests: Sequence[Request]) -> Lanes:
        """What decides the job's steps over its requests."""
        return Lanes(requests, self.chunk_tokens, self.layout.dp, self.micro_batches)

    def routed(self, step: Step) -> Mapping[str, LayerLoads]:
        """What a step's expert layers get by the routing model; the loads last asked for are kept."""
        assert self.routing is not None, "numbers say what experts get"
        dealt = (portions(self, half) for half in halves(self, step))
        key = (step.index, tuple(tuple(portion.tokens for portion in own) for own in dealt))
        if key not in self._routed:
            self._routed.clear()
            self._routed[key] = step_routing(self, *key, self.routing)
        return self._routed[key]

    @cached_property
    def expert_choices(self) -> tuple[int, ...]:
        """How many experts a token chooses, of all layers that have experts."""
        return tuple(sorted({top_k for top_k, _ in kinds(self.graph)}))

    @cached_property
    def _routed(self) -> dict[tuple[int, tuple[tuple[int, ...], ...]], Mapping[str, LayerLoads]]:
        return {}

    def context_of(self, entries: Iterable[Entry]) -> int:
        """Cached tokens of the longest sequence of some entries of a step, rounded up to whole pages."""
        longest = max((entry.start + entry.count for entry in entries), default=1)
        return -(-max(1, longest) // self.page_tokens) * self.page_tokens

    @cached_property
    def queue_of(self) -> dict[Unit, str]:
        """The card's queue that serves each unit."""
        return {unit: self.card.queue_for(unit) for unit in Unit}

    def built(self, rank: int, variant: Variant) -> BuiltProgram:
        """A program of a rank before it is placed.

        UnsupportedError for one that needs what the card neither has nor composes.
        """
        found = self.outlined(rank, variant)
        refuse_missing(found.missing, self.card.name)
        return found

    def outlined(self, rank: int, variant: Variant) -> BuiltProgram:
        """As `built`, though instructions may be missing. Ranks of one class have one program."""
        return self._build(self.classes[rank], variant)

    def _build(self, rank: int, variant: Variant) -> BuiltProgram:
        key = (self.layout, rank, variant)
        if key not in self._built:
            options = LoweringOptions(
                self.dtype,
                self.kv_dtype if self.cache is None else BF16,
                self.page_tokens,
                self.queue_of,
                self.sampling,
                "pick" if variant.head else "none",
                self.holding,
                self.card.instructions,
                self.fuse,
                self.activations,
                variant.mode,
                self.sequence_parallel,
                self.placements,
                self.kv_pages,
                self.cache,
                self.latent,
                self.offload,
                self.overlap,
            )
            self._built[key] = build(self.graph, self.layout, rank, options)
        return self._built[key]

    def weights(self, rank: int) -> tuple[WeightBuffer, ...]:
        """What a rank's weights are made of; ranks of one class hold others in buffers of the same sizes."""
        return self._build(self.twins[rank], self.variants[0]).weights

    def lowered(self, rank: int, variant: Variant) -> LoweredProgram:
        """A program of a rank, placed for this job's largest extents: the very same for all ranks of a class."""
        rank = self.classes[rank]
        if (rank, variant) not in self._placed:
            self._placed[rank, variant] = place(self.built(rank, variant), self._arena(rank, variant))
        return self._placed[rank, variant]

    def _arena(self, rank: int, variant: Variant) -> ArenaPlan:
        if (rank, variant) not in self._arenas:
            self._arenas[rank, variant] = plan_arena(self.built(rank, variant).program, self.largest)
        return self._arenas[rank, variant]

    @cached_property
    def _arenas(self) -> dict[tuple[int, Variant], ArenaPlan]:
        return {}

    @cached_property
    def _placed(self) -> dict[tuple[int, Variant], LoweredProgram]:
        return {}

    def standing(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The extents that tell a rank from others of its class: the same object wherever they are the same."""
        layout = self.layout
        key = layout.tp_index_of(rank), layout.holder_of(rank) if layout.redundant else 0
        if key not in self._standings:
            self._standings[key] = standing_extents(self.graph, layout, *key)
        return self._standings[key]

    @cached_property
    def _standings(self) -> dict[tuple[int, int], dict[str, tuple[int, ...]]]:
        return {}

    @cached_property
    def twins(self) -> tuple[int, ...]:
        """For each rank the lowest rank that holds the very same weights."""
        return weight_twins(self.graph, self.layout)

    @cached_property
    def classes(self) -> tuple[int, ...]:
        """For each rank the lowest rank that runs the very same program, over buffers of the same sizes."""
        graph, layout = self.graph, self.layout
        firsts = (layout.rank(stage, 0) for stage in range(layout.pp))
        held = (self._build(rank, self.variants[0]).held.lowered for rank in firsts if self.holding.is_packed)
        is_cut = any(cuts_blocks(weights, graph, layout) for weights in held)
        return program_classes(graph, layout, is_cut)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each rank the lowest rank whose memory is the very same as long as lengths alone say when requests end.

        Both have buffers of the same sizes, for holders that see sequences of the same lengths in the same order.
        """
        return lowest(self.layout, lambda rank: (self._holders[self.layout.holder_of(rank)], self._held_alike[rank]))

    @cached_property
    def alike_of_holder(self) -> tuple[int, ...]:
        """As `alike` among the ranks of one holder alone, whenever its requests end."""
        return lowest(self.layout, lambda rank: (self.layout.holder_of(rank), self._held_alike[rank]))

    @cached_property
    def _held_alike(self) -> tuple[int, ...]:
        """For each rank the lowest rank of an equal footprint."""
        found: dict[int, Footprint] = {}
        for twin in sorted(set(self.classes)):
            found[twin] = replace(self.footprint(twin), rank=0)
        lowest = {twin: next(first for first in found if found[first] == own) for twin, own in found.items()}
        return tuple(lowest[twin] for twin in self.classes)

    @cached_property
    def _holders(self) -> tuple[int, ...]:
        """For each holder the lowest one that sees sequences of the same lengths in the same order."""
        layout, first = self.layout, dict[tuple[object, ...], int]()
        dealt = [self.sequences[replica :: layout.dp] for replica in range(layout.dp)]
        keys = ((holder % layout.cp, dealt[holder // layout.cp]) for holder in range(layout.holders))
        return tuple(first.setdefault(key, holder) for holder, key in enumerate(keys))

    def footprint(self, rank: int) -> Footprint:
        """What a rank must hold."""
        twin = self.classes[rank]
        if twin not in self._footprints:
            heads = [variant for variant in self.variants if variant.head]  # without one there is less of everything
            arena_bytes = max(self._arena(twin, variant).num_bytes for variant in heads)
            programs = [self.built(twin, variant).program for variant in heads]
            workspace_bytes = self.latent_steps.workspace_bytes(dict(zip(heads, programs, strict=True)))
            self._footprints[twin] = footprint(twin, programs, arena_bytes, self.largest, workspace_bytes)
        return replace(self._footprints[twin], rank=rank)

    def spread(self, portion: Portion) -> Extents:
        """What a holder binds of a context over shares, kept for whoever asks next."""
        key = portion.holder, portion.entries
        if key not in self._spreads:
            if len(self._spreads) == KEPT_SPREADS:
                self._spreads.clear()
            self._spreads[key] = Context(self, portion).extents()
        return self._spreads[key]

    @cached_property
    def _spreads(self) -> dict[tuple[int, tuple[Entry, ...]], Extents]:
        return {}

    @cached_property
    def latent_steps(self) -> LatentSteps:
        """What latent attention does in the job's steps."""
        return LatentSteps(self, self.rehearsed, self.opening)

    def weight_bytes(self, rank: int) -> dict[str, int]:
        """Bytes of a rank's weights by bucket and by element type, scales apart."""
        twin = self.classes[rank]
        if twin not in self._weight_bytes:
            total, built = Counter[str](), self.built(twin, self.variants[0])
            for weight, count in ((one, 1) for one in built.weights) if self.offload.experts else built.held.groups():
                where = "host " if self.offload.experts and in_host_memory(built.program, weight) else ""
                for kind, num_bytes in weight.bytes_by_kind().items():
                    total[f"{where}{weight.bucket} {kind}"] += count * num_bytes
            self._weight_bytes[twin] = dict(sorted(total.items()))
        return self._weight_bytes[twin]

    @cached_property
    def _weight_bytes(self) -> dict[int, dict[str, int]]:
        return {}

    @cached_property
    def _footprints(self) -> dict[int, Footprint]:
        return {}

    def memory(self, standing: Sequence[int], capacity_bytes: int | None = None) -> JobMemory:
        """Fresh HBMs of the card's capacity (or another), and the pool over them.

        `standing` says for each rank whose memory stands for its own: `alike`, or every rank for itself.
        """
        hbm = self.card.hbm
        capacity = hbm.capacity_bytes if capacity_bytes is None else capacity_bytes
        hbms = {rank: Hbm(capacity, hbm.reserved_bytes, GRANULE_BYTES) for rank in sorted(set(standing))}
        pools = PagePools(self.layout.holders, self.page_tokens, self.limited_reaches)
        each = {rank: hbms[first] for rank, first in enumerate(standing)}
        return JobMemory([self.footprint(rank) for rank in hbms], each, pools, self, self.kv_policy)

    def with_lengths(self, sequences: Sequence[Lengths]) -> JobPlan:
        """The same job over other sequences; its programs are shared, for they hold no lengths."""
        return replace(self, sequences=tuple(sequences))
