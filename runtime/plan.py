"""Plan: a job's model lowered over its layout - programs, largest extents and footprints - before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..emulator.hbm import Hbm
from ..emulator.spec import CardSpec
from ..isa.dtype import DType
from ..isa.program import Binding
from ..isa.work import Unit
from ..models.blocks import Graph
from .kv_cache import PAGE_TOKENS, PagePool
from .layout import Layout
from .lowering.decoder import LoweringOptions, Sampling
from .lowering.lower import LoweredProgram, lower
from .memory import Footprint, JobMemory, footprint
from .scheduler import Request, Scheduler, Step


@dataclass(frozen=True)
class Lengths:
    """The lengths of one sequence of a job, in tokens."""

    prompt_len: int
    max_new_tokens: int
    cached_len: int = 0


@dataclass(frozen=True)
class JobPlan:
    """Model, card, layout and lengths of a job; everything else follows from them.

    `all_logits` computes the logits of every prompt position instead of the last one's.
    """

    graph: Graph
    layout: Layout
    card: CardSpec
    dtype: DType
    kv_dtype: DType
    sequences: tuple[Lengths, ...]
    chunk_tokens: int | None = None
    sampling: Sampling = Sampling()
    all_logits: bool = False
    page_tokens: int = PAGE_TOKENS

    def requests(self) -> list[Request]:
        """Fresh requests of these lengths, without tokens."""
        return [
            Request(index, sequence.prompt_len, sequence.max_new_tokens, sequence.cached_len)
            for index, sequence in enumerate(self.sequences)
        ]

    @cached_property
    def largest(self) -> Binding:
        """The largest extents that any step binds."""
        tokens = rows = 1
        for step in self._steps_until_decode():
            tokens, rows = max(tokens, step.tokens), max(rows, self.rows_of(step))
        requests = self.requests()
        pool = PagePool(self.page_tokens)
        pages = [pool.pages_for(request.most_kv_tokens) for request in requests]
        extents = {
            "tokens": tokens,
            "sequences": len(requests),
            "rows": rows,
            "pages": sum(pages),
            "table_pages": max(pages),
            "positions": self.graph.max_position_embeddings,
        }
        return Binding({name: (value,) for name, value in extents.items()}, {"tp": 0, "pp": 0})

    def _steps_until_decode(self) -> list[Step]:
        """Steps up to the first that only decodes: later ones are never larger."""
        scheduler = Scheduler(self.requests(), self.chunk_tokens)
        steps: list[Step] = []
        while (step := scheduler.next_step()) is not None:
            steps.append(step)
            if step.kind == "decode":
                break
            scheduler.complete(step, None)
        return steps

    def rows_of(self, step: Step) -> int:
        """Positions whose logits a step computes."""
        return step.tokens if self.all_logits else sum(entry.emits for entry in step.entries)

    @cached_property
    def queue_of(self) -> dict[Unit, str]:
        """The card's queue that serves each unit."""
        return {unit: self.card.queue_for(unit) for unit in Unit}

    def lowered(self, rank: int, head: bool) -> LoweredProgram:
        """The program of a rank, with or without the output head."""
        key = (self.layout.stage_of(rank), self.layout.tp_index_of(rank), head)
        if key not in self._programs:
            options = LoweringOptions(
                self.dtype,
                self.kv_dtype,
                self.page_tokens,
                self.queue_of,
                self.sampling,
                "pick" if head else "none",
            )
            self._programs[key] = lower(self.graph, self.layout, rank, options, self.largest)
        return self._programs[key]

    @cached_property
    def _programs(self) -> dict[tuple[int, int, bool], LoweredProgram]:
        return {}

    @cached_property
    def footprints(self) -> tuple[Footprint, ...]:
        """What every rank must hold."""
        return tuple(
            footprint(rank, [self.lowered(rank, head) for head in (True, False)], self.largest)
            for rank in range(self.layout.cards)
        )

    def memory(self, capacity_bytes: int | None = None) -> JobMemory:
        """Fresh HBMs of the card's capacity (or another), one a rank, and the pool over them."""
        hbm = self.card.hbm
        capacity = hbm.capacity_bytes if capacity_bytes is None else capacity_bytes
        hbms = {rank: Hbm(capacity, hbm.reserved_bytes) for rank in range(self.layout.cards)}
        return JobMemory(self.footprints, hbms, PagePool(self.page_tokens))

    def with_lengths(self, sequences: Sequence[Lengths]) -> JobPlan:
        """The same job over other sequences."""
        return replace(self, sequences=tuple(sequences))
