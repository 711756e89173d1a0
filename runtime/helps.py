"""What would help a job that is short of memory: its budget with one thing changed at a time, computed each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..isa.errors import SiltwinError
from ..models.blocks import Moe
from ..models.checkpoint import Checkpoint
from .budget import Budget, loads
from .budget_lines import by_tag, lines_of
from .budgeted import budgeted
from .fits import longest_of
from .job import Job
from .layout import Layout
from .offload import has_caches
from .plan import JobPlan, Lengths
from .report_limits import Growth, Help


def helps_of(job: Job, budget: Budget, checkpoint: Checkpoint) -> tuple[Help, ...]:
    """Every change that may help, most saved bytes first; those that are refused say why, at the end.

    A job with alerts of memory is to stay within them.
    """
    before = budget.need_bytes(budget.plan)
    found = [_help(replace(job, **change), text, before, checkpoint) for text, change in _changes(job, budget.plan)]
    return tuple(sorted(found, key=lambda help_: (help_.need_bytes is None, help_.need_bytes or 0)))


def _changes(job: Job, plan: JobPlan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes of a job that leave its model and its sequences as they are: (as it is written, what it sets)."""
    layout = plan.layout
    if plan.kv_dtype.bits > 8:
        yield "--kv-dtype fp8", {"kv_dtype": "fp8"}
        yield "--kv-dtype int8", {"kv_dtype": "int8"}
    if plan.kv_pages == "unified" and any(_is_limited(layer.attention) for layer in plan.graph.layers):
        yield "--kv-pages ideal", {"kv_pages": "ideal"}
    if plan.kv_policy.name != "paged":
        yield "--kv-policy paged", {"kv_policy": "paged", "kv_granule": None}
    if not plan.holding.is_packed:
        yield "--weights fp8", {"weights": "fp8"}
        yield "--weights int4", {"weights": "int4"}
    if layout.redundant:
        yield "--redundant-experts 0", {"redundant_experts": 0, "expert_loads": None}
    for text in _offloads(plan):
        both = text if job.offload is None else f"{job.offload},{text}"
        yield f"--offload {both}", {"offload": both}
    if any(sequence.prompt_len > 1024 for sequence in plan.sequences) and (job.chunk_tokens or 1 << 30) > 1024:
        yield "--chunk-tokens 1024", {"chunk_tokens": 1024}
    if layout.tp > 1 and not plan.sequence_parallel:
        yield "--sequence-parallel", {"sequence_parallel": True}
    for wider in _layouts(plan):
        text = ",".join(part for part in str(wider).split(",") if not part.endswith("=1"))
        yield f"--layout {text}", {"layout": text}


def _offloads(plan: JobPlan) -> Iterator[str]:
    """What may yet move to host memory."""
    if not plan.offload.experts and any(isinstance(layer.mlp, Moe) for layer in plan.graph.layers):
        yield "experts=1"
    if not plan.offload.caches and has_caches(plan.graph):
        yield "kv=1"


def _layouts(plan: JobPlan) -> Iterator[Layout]:
    """Twice as much of one axis: on twice as many cards, or on the cards that there are, at the cost of dp or edp."""
    layout = plan.layout
    for axis in ("tp", "pp", "cp"):
        if axis == "pp" and layout.split:
            continue
        wider = _twice(layout, axis)
        yield wider
        if layout.dp % 2 == 0:
            yield replace(wider, dp=layout.dp // 2)
    if len(plan.sequences) > layout.dp:
        yield _twice(layout, "dp")
    if layout.ep > 1:
        yield _twice(layout, "ep")
        yield _twice(_twice(layout, "dp"), "ep")


def _twice(layout: Layout, axis: str) -> Layout:
    return layout.with_tp(2 * layout.tp) if axis == "tp" else replace(layout, **{axis: 2 * getattr(layout, axis)})


def _is_limited(attention: object) -> bool:
    return bool(getattr(attention, "window", 0) or getattr(attention, "chunk", 0))


def _help(job: Job, text: str, before: int, checkpoint: Checkpoint) -> Help:
    try:
        planned = budgeted(job, checkpoint)
        return Help(
            change=text,
            cards=planned.layout.cards,
            need_bytes=planned.need_bytes,
            saves_bytes=before - planned.need_bytes,
            largest_batch=planned.batch,
            largest_context=planned.context,
        )
    except SiltwinError as error:
        return Help(change=text, refused=str(error))


def growths(budget: Budget) -> tuple[Growth, ...]:
    """What the first card's memory grows by, tag by tag: with one more sequence, and with one more page of each."""
    plan, before = budget.plan, _first_card(budget)
    another = [*plan.sequences, *[longest_of(plan.sequences)] * plan.layout.dp]
    longer = [_longer(one, plan.page_tokens) for one in plan.sequences]
    found = []
    for text, sequences in (
        ("one more sequence on each replica", another),
        (f"{plan.page_tokens} more tokens of each sequence", longer),
    ):
        after = _first_card(Budget(plan.with_lengths(sequences)))
        grown = {tag: after.get(tag, 0) - before.get(tag, 0) for tag in {**after, **before}}
        found.append(Growth(by=text, tags={tag: size for tag, size in grown.items() if size}))
    return tuple(found)


def _first_card(budget: Budget) -> Mapping[str, int]:
    return by_tag(lines_of(budget.plan, budget.profile_of[0], loads(budget.plan)[0]))


def _longer(one: Lengths, tokens: int) -> Lengths:
    """A sequence that begins with more tokens: in its prompt, or else in its cache."""
    if one.prompt_len and not one.cached_len:
        return replace(one, prompt_len=one.prompt_len + tokens)
    return replace(one, cached_len=one.cached_len + tokens)
