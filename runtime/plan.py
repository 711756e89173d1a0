"""Plan: a job's model lowered over its layout - programs, largest extents and footprints - before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..emulator.hbm import Hbm
from ..emulator.spec import CardSpec
from ..isa.dtype import DType
from ..isa.instruction import split_even
from ..isa.program import Binding
from ..isa.work import Unit
from ..models.blocks import DecoderLayer, Graph, Moe
from .dispatch import room_extents
from .kv_cache import PAGE_TOKENS, PagePool, PagePools
from .lanes import Lanes
from .layout import AXES, Layout
from .lowering.arena import plan_arena
from .lowering.held import Holding
from .lowering.lower import BuiltProgram, LoweredProgram, build, place
from .lowering.passes.compose import refuse_missing
from .lowering.passes.packed import Activations
from .lowering.passes.rewrite import CONTEXT
from .lowering.stage import STATES, LoweringOptions, Sampling
from .memory import Footprint, JobMemory, footprint
from .routing import routed_extents
from .scheduler import Entry, Request, Step

GRANULE_BYTES = 512  # what device allocators round to


@dataclass(frozen=True)
class Lengths:
    """The lengths of one sequence of a job, in tokens."""

    prompt_len: int
    max_new_tokens: int
    cached_len: int = 0


@dataclass(frozen=True)
class JobPlan:
    """Model, card, layout and lengths of a job; everything else follows from them.

    `all_logits` computes the logits of every prompt position instead of the last one's; `holding` says which weights
    lie packed in device memory, `activations` how what they are multiplied by is quantised, and `calibration` holds the
    sequences that its static scales come from. `fuse` names the fusions of its programs.
    """

    graph: Graph
    layout: Layout
    card: CardSpec
    dtype: DType
    kv_dtype: DType
    sequences: tuple[Lengths, ...]
    chunk_tokens: int | None = None
    micro_batches: int = 1
    sampling: Sampling = Sampling()
    all_logits: bool = False
    page_tokens: int = PAGE_TOKENS
    holding: Holding = Holding()
    fuse: tuple[str, ...] = ()
    activations: Activations | None = None
    calibration: tuple[tuple[int, ...], ...] = ()
    _built: dict[tuple[Layout, int, bool], BuiltProgram] = field(default_factory=dict, compare=False, repr=False)

    def requests(self) -> list[Request]:
        """Fresh requests of these lengths, without tokens."""
        return [
            Request(index, sequence.prompt_len, sequence.max_new_tokens, sequence.cached_len)
            for index, sequence in enumerate(self.sequences)
        ]

    @cached_property
    def largest(self) -> Binding:
        """The largest extents that any step binds on any card."""
        tokens = rows = 1
        for step in self._steps_until_decode():
            for replica in range(self.layout.dp):
                own = [entry for entry in step.entries if entry.request % self.layout.dp == replica]
                tokens, rows = max(tokens, sum(entry.count for entry in own)), max(rows, self.rows_of(own))
        pool, pages = PagePool(self.page_tokens), [0] * self.layout.dp
        for request in self.requests():
            pages[request.index % self.layout.dp] += pool.pages_for(request.most_kv_tokens)
        held = -(-len(self.sequences) // self.layout.dp)
        longest = max(pool.pages_for(request.most_kv_tokens) for request in self.requests())
        routed = routed_extents(self.graph, tokens) | room_extents(self.graph, self.layout, tokens)
        extents = routed | {
            "tokens": (tokens,),
            "sequences": (-(-held // self.micro_batches),),
            "rows": (rows,),
            "pages": (max(pages),),
            "table_pages": (longest,),
            CONTEXT: (longest * self.page_tokens,),
            "positions": (self.graph.max_position_embeddings,),
            STATES: (held,),
        }
        return Binding(extents, dict.fromkeys(AXES, 0))

    def lanes(self, requests: Sequence[Request]) -> Lanes:
        """What decides the job's steps over its requests."""
        return Lanes(requests, self.chunk_tokens, self.layout.dp, self.micro_batches)

    def _steps_until_decode(self) -> list[Step]:
        """Steps of every micro-batch up to its first that only decodes: later ones are never larger."""
        steps: list[Step] = []
        for scheduler in self.lanes(self.requests()).schedulers:
            while (step := scheduler.next_step()) is not None:
                steps.append(step)
                if step.kind == "decode":
                    break
                scheduler.complete(step, None)
        return steps

    def rows_of(self, entries: Iterable[Entry]) -> int:
        """Positions whose logits are computed of some entries of a step."""
        return sum(entry.count if self.all_logits else entry.emits for entry in entries)

    def context_of(self, entries: Iterable[Entry]) -> int:
        """Cached tokens of the longest sequence of some entries of a step, rounded up to whole pages."""
        longest = max((entry.start + entry.count for entry in entries), default=1)
        return -(-max(1, longest) // self.page_tokens) * self.page_tokens

    @cached_property
    def queue_of(self) -> dict[Unit, str]:
        """The card's queue that serves each unit."""
        return {unit: self.card.queue_for(unit) for unit in Unit}

    def built(self, rank: int, head: bool) -> BuiltProgram:
        """The program of a rank, with or without the output head, before it is placed.

        UnsupportedError for one that needs what the card neither has nor composes.
        """
        found = self.outlined(rank, head)
        refuse_missing(found.missing, self.card.name)
        return found

    def outlined(self, rank: int, head: bool) -> BuiltProgram:
        """As `built`, though instructions may be missing."""
        key = (self.layout, rank := self.twins[rank], head)
        if key not in self._built:
            options = LoweringOptions(
                self.dtype,
                self.kv_dtype,
                self.page_tokens,
                self.queue_of,
                self.sampling,
                "pick" if head else "none",
                self.holding,
                self.card.instructions,
                self.fuse,
                self.activations,
            )
            self._built[key] = build(self.graph, self.layout, rank, options)
        return self._built[key]

    def lowered(self, rank: int, head: bool) -> LoweredProgram:
        """The program of a rank, placed for this job's largest extents."""
        rank = self.twins[rank]
        if (rank, head) not in self._placed:
            self._placed[rank, head] = place(self.built(rank, head), self.largest)
        return self._placed[rank, head]

    @cached_property
    def _placed(self) -> dict[tuple[int, bool], LoweredProgram]:
        return {}

    @cached_property
    def twins(self) -> tuple[int, ...]:
        """For each rank the lowest rank that runs the same program over the same weights, on other tokens perhaps."""
        layout = self.layout
        return self._lowest(
            lambda rank: (
                layout.stage_of(rank),
                layout.tp_index_of(rank),
                *(layout.experts_of(rank, count) for count in self._expert_counts),
            )
        )

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each rank the lowest rank that needs the very same memory: buffers of the same sizes, for one holder."""
        return self._lowest(lambda rank: (self.layout.holder_of(rank), self._sizes[rank]))

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """For each rank the lowest rank that holds buffers of the very same sizes.

        Tensor-parallel peers of a stage do, save for a larger share of an uneven vocabulary, of the experts or of their
        latents, for biases that only the first of them adds, and for scales of blocks that a cut divides.
        """
        layout = self.layout
        shares = [size for _, size in split_even(self.graph.vocab_size, layout.tp)]
        biased = any(self._first_adds(layer) for layer in self.graph.layers)
        slices_biased = any(isinstance(layer.mlp, Moe) and layer.mlp.experts.down_bias for layer in self.graph.layers)

        latents = [split_even(width, layout.tp) for width in sorted(self._latent_widths())]

        def key(rank: int) -> tuple[object, ...]:
            index = layout.tp_index_of(rank)
            own = [layout.experts_of(rank, count) for count in self._expert_counts]
            first_slice = slices_biased and all(not share.slice_ for share in own)
            experts = tuple(share.count for share in own) + tuple(split[index][1] for split in latents)
            cut = (index, *(share.slice_ for share in own)) if self.holding.is_packed else ()
            return layout.stage_of(rank), shares[index], biased and index == 0, first_slice, experts, cut

        return self._lowest(key)

    def _lowest(self, key: Callable[[int], tuple[object, ...]]) -> tuple[int, ...]:
        """For each rank the lowest rank of the same key."""
        first: dict[tuple[object, ...], int] = {}
        return tuple(first.setdefault(key(rank), rank) for rank in range(self.layout.cards))

    @cached_property
    def _expert_counts(self) -> list[int]:
        return sorted({layer.mlp.experts.count for layer in self.graph.layers if isinstance(layer.mlp, Moe)})

    def _latent_widths(self) -> set[int]:
        """Widths of latents whose way up is cut evenly, whether tp divides them or not."""
        moes = (layer.mlp for layer in self.graph.layers if isinstance(layer.mlp, Moe))
        return {moe.latent.up.in_features for moe in moes if moe.latent is not None}

    def _first_adds(self, layer: DecoderLayer) -> bool:
        """Whether only the first tensor-parallel rank holds some bias of the layer, because partial sums are added."""
        if isinstance(layer.mlp, Moe):
            return bool(layer.attention.out.biases)
        return bool(layer.attention.out.biases or layer.mlp.down.biases)

    def footprint(self, rank: int) -> Footprint:
        """What a rank must hold."""
        twin = self._sizes[rank]
        if twin not in self._footprints:
            variants = [self.built(twin, head).program for head in (True, False)]
            arena_bytes = max(plan_arena(program, self.largest).num_bytes for program in variants)
            self._footprints[twin] = footprint(twin, variants, arena_bytes, self.largest)
        return replace(self._footprints[twin], rank=rank)

    def weight_bytes(self, rank: int) -> dict[str, int]:
        """Bytes of a rank's weights by bucket and by element type, scales apart."""
        total: Counter[str] = Counter()
        for weight in self.built(self._sizes[rank], True).weights:
            for kind, num_bytes in weight.bytes_by_kind().items():
                total[f"{weight.bucket} {kind}"] += num_bytes
        return dict(sorted(total.items()))

    @cached_property
    def _footprints(self) -> dict[int, Footprint]:
        return {}

    def memory(self, ranks: Iterable[int], capacity_bytes: int | None = None) -> JobMemory:
        """Fresh HBMs of the card's capacity (or another) for some ranks, and the pool over them."""
        hbm = self.card.hbm
        capacity = hbm.capacity_bytes if capacity_bytes is None else capacity_bytes
        hbms = {rank: Hbm(capacity, hbm.reserved_bytes, GRANULE_BYTES) for rank in ranks}
        pools = PagePools(self.layout.holders, self.page_tokens)
        return JobMemory([self.footprint(rank) for rank in hbms], hbms, pools, self.layout)

    def with_lengths(self, sequences: Sequence[Lengths]) -> JobPlan:
        """The same job over other sequences; its programs are shared, for they hold no lengths."""
        return replace(self, sequences=tuple(sequences))
