"""This machine: whether its own memory can hold the numbers of a job."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..isa.errors import ConfigError
from ..isa.program import Space
from .lowering.passes.offload_caches import in_host_pages
from .lowering.reach import WHOLE
from .lowering.stage import STATES
from .memory import WORKSPACE_TAG, page_bytes_of
from .plan import JobPlan

OBJECTS_BETWEEN_COLLECTIONS = 400_000


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for unreachable cycles of objects rarely: plans are many objects that live on, and in no cycles."""
    before = gc.get_threshold()
    gc.freeze()  # what has been imported stays
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def host_bytes() -> int | None:
    """The memory of this machine, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def payload_bytes(plan: JobPlan) -> int:
    """What the numbers of a job take here: weights, arenas and caches of all cards, tables and workspaces left out.

    A table's memory is touched only as far as the job reaches; kernels have work arrays of their own, for a head each.
    """
    pages, states = (plan.largest.extents[name][0] for name in (WHOLE.pages, STATES))
    cards = range(plan.layout.cards)
    feet = [plan.footprint(rank) for rank in cards]
    away = (buffer for rank in cards for buffer in plan.built(rank, plan.variants[0]).program.buffers)
    return sum(
        foot.page_bytes * pages
        + sum(size * plan.largest.extents[name][0] for name, size in foot.limited.items())
        + foot.state_bytes * states
        + sum(item.num_bytes for item in foot.static if item.tag not in (Space.TABLE.value, WORKSPACE_TAG))
        for foot in feet
    ) + sum(page_bytes_of(buffer) * pages for buffer in away if in_host_pages(buffer))


def refuse_beyond_host(plan: JobPlan) -> None:
    """ConfigError for a job whose numbers this machine cannot hold, before it tries and is stopped by the system."""
    needed, here = payload_bytes(plan), host_bytes()
    if here is not None and needed > here:
        raise ConfigError(
            f"the numbers of this job take {needed} bytes of memory and this machine has {here}; "
            "run with --no-payload for time and bytes alone, or take a smaller model or job"
        )
