"""What a server's token takes: its decode step, what the prompts of others add, and the host's own time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError
from ...models.checkpoint import Checkpoint, open_checkpoint
from ..fits import fits, largest_batch
from ..job import Job
from ..plan import JobPlan, Lengths
from ..prepare import prepare
from ..run import start_run, time_step
from ..scheduler import Entry, Step, StepKind
from .frameworks import Framework, framework_of, with_own_all_reduce
from .serving_rows import DENSE, PRECISIONS, ServingRow

CardOf = Callable[[str], CardSpec]  # the card of a row's `system`
Array = np.ndarray[Any, np.dtype[Any]]
PS_PER_MS = 10**9
MS_PER_S = 1000.0


@dataclass(frozen=True)
class Tpot:
    """The parts of a server's time per output token, in milliseconds; `running` sequences fit its memory.

    `decode_ms` is a step of all running sequences in the middle of their generation. `prompts_ms` is what the prompts
    of a sequence's peers add to a step in the long run, of those that are computed while it decodes. Both are emulated.
    `host_ms` is the host's own time of a step.
    """

    running: int
    decode_ms: float
    prompts_ms: float
    host_ms: float

    @property
    def in_all_ms(self) -> float:
        """The time per output token."""
        return self.decode_ms + self.prompts_ms + self.host_ms


def predicted_tpot_ms(rows: Iterable[ServingRow], card_of: CardOf) -> Array:
    """The time per output token [rows] in milliseconds; NaN for what does not fit the cards."""
    return np.array([np.nan if tpot is None else tpot.in_all_ms for _, tpot in emulated_tpots(rows, card_of)])


def emulated_tpots(rows: Iterable[ServingRow], card_of: CardOf) -> Iterator[tuple[ServingRow, Tpot | None]]:
    """Every row and the emulated parts of its time, None where it fits neither the cards nor what its model can do."""
    models: dict[str, Checkpoint] = {}
    for row in rows:
        name = DENSE[row.model_path]
        if name not in models:
            models[name] = open_checkpoint(name)
        try:
            tpot = emulated_tpot(row, card_of(row.system), models[name])
        except ConfigError:  # a layout or lengths that the model has not
            tpot = None
        yield row, tpot


def emulated_tpot(row: ServingRow, card: CardSpec, model: Checkpoint) -> Tpot | None:
    """The parts of a row's time on a card, from the programs that its server runs; None where nothing fits."""
    framework = framework_of(row.backend)
    prepared = prepare(_job(row, framework), checkpoint=model, card=_filled(card, framework))
    prepared = replace(prepared, cluster=_own_node(prepared.cluster))
    running = _running(row, prepared.plan)
    if not running:
        return None
    state = start_run(prepared)
    decode = _decodes(row, running)

    def taken_ms(kind: StepKind, entries: Iterable[Entry]) -> float:
        record = time_step(state, Step(0, kind, tuple(sorted(entries, key=lambda entry: entry.request))))
        return (record.end_ps - record.start_ps) / PS_PER_MS

    decode_ms = taken_ms("decode", decode)
    together = _together(row, running, framework)
    prompts = _prompts(row, running, together, framework)
    if framework.mixes:
        extra_ms = sum(taken_ms("mixed", (*decode[:-together], *chunk)) - decode_ms for chunk in prompts)
    else:
        extra_ms = sum(taken_ms("prefill", chunk) for chunk in prompts)
    return Tpot(
        running,
        decode_ms,
        prompts_ms=extra_ms / together * row.peers * (running - 1) / row.osl,
        host_ms=MS_PER_S * (framework.step_s + framework.sequence_s * running),
    )


_own_node = lru_cache(maxsize=64)(with_own_all_reduce)


def _job(row: ServingRow, framework: Framework) -> Job:
    precision = PRECISIONS[row.quant]
    return Job(
        DENSE[row.model_path],
        layout=f"tp={row.tp},pp={row.pp}",
        payload=False,
        fuse=framework.fuse,
        batch=row.concurrency,
        input_len=row.isl,
        cached_len=row.osl,  # a prompt of these decodes up to as many tokens as one of the server's
        output_len=0,
        chunk_tokens=framework.chunk_tokens,
        kv_dtype=row.kv_dtype,
        weights=precision.weights,
        group=precision.group,
        activations=precision.activations,
    )


def _filled(card: CardSpec, framework: Framework) -> CardSpec:
    """The card with only so much memory as the framework fills."""
    kept = int(card.hbm.capacity_bytes * (1 - framework.memory_share))
    hbm = card.hbm.model_copy(update={"reserved_bytes": max(kept, int(card.hbm.reserved_bytes))})
    return card.model_copy(update={"hbm": hbm})


def _running(row: ServingRow, plan: JobPlan) -> int:
    """How many sequences at their longest the cards hold, up to the row's concurrency."""
    at_the_end = plan.with_lengths([Lengths(0, 1, row.isl + row.osl - 1)] * row.concurrency)
    return row.concurrency if fits(at_the_end) else largest_batch(at_the_end)


def _decodes(row: ServingRow, running: int) -> tuple[Entry, ...]:
    """Every running sequence in the middle of its generation."""
    return tuple(Entry(index, row.isl + row.osl // 2, 1, True) for index in range(running))


def _together(row: ServingRow, running: int, framework: Framework) -> int:
    """How many prompts a step takes: those of a chunk where they wait for each other, else those that come a step."""
    most = max(1, min(running, _chunk(running, framework) // row.isl))
    return min(most, max(1, round(running / row.osl))) if framework.mixes else most


def _chunk(running: int, framework: Framework) -> int:
    """Prompt tokens of a step: those that decode in it count too."""
    return framework.chunk_tokens - (running - 1 if framework.mixes else 0)


def _prompts(row: ServingRow, running: int, together: int, framework: Framework) -> Iterator[tuple[Entry, ...]]:
    """The prompts of the last sequences, in chunks."""
    chunk = _chunk(running, framework)
    for start in range(0, row.isl, chunk):
        count = min(chunk, row.isl - start)
        emits = start + count == row.isl
        yield tuple(Entry(running - 1 - at, start, count, emits) for at in range(together))
