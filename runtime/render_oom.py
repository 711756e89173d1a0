"""What an out-of-memory ran into, and what would fit, as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from .report import Fits, OomReport
from .terminal import duration, exact_size, percent, plain, size, table

NONE_FITS = "none fits"


def oom_parts(oom: OomReport) -> Iterator[RenderableType]:
    """What an out-of-memory ran into, and what would fit."""
    where = f"card {oom.card}"
    where += f", step {oom.step}" if oom.step is not None else ""
    where += f" ({oom.step_kind})" if oom.step_kind else ""
    where += f", request {oom.request}" if oom.request is not None else ""
    yield Text(f"OUT OF MEMORY: {where}, at {duration(oom.time_ps)}", style="bold red")
    asked, missing = exact_size(oom.requested_bytes), exact_size(oom.missing_bytes)
    yield Text(plain(f"{oom.owner} asked for {asked} of {oom.tag}; {missing} more would hold it."))
    if oom.instruction:
        yield Text(plain(f"Instruction: {oom.instruction}"))
    yield Text(
        f"Capacity {size(oom.capacity_bytes)}, reserved {size(oom.reserved_bytes)}, free {exact_size(oom.free_bytes)}, "
        f"largest hole {exact_size(oom.largest_hole_bytes)}."
    )
    held = sorted(oom.by_tag.items(), key=lambda entry: -entry[1])
    yield ""
    yield table(
        "Live bytes by tag",
        ("tag", "bytes", "of capacity"),
        [(tag, exact_size(b), percent(b, oom.capacity_bytes)) for tag, b in held],
    )
    yield ""
    rows = [
        (live.owner, live.tag, exact_size(live.num_bytes), duration(live.allocated_ps)) for live in oom.largest_live
    ]
    yield table("Largest live allocations", ("owner", "<tag", "bytes", "since"), rows)
    yield ""
    yield fits_table(oom.fits)


def fits_table(fits: Fits) -> Group:
    """What would fit; each row changes one thing of the job and leaves the rest."""
    rows = [
        ("largest batch", f"{fits.largest_batch:,} sequences" if fits.largest_batch else NONE_FITS),
        ("largest context", f"{fits.largest_context:,} tokens a sequence" if fits.largest_context else NONE_FITS),
        ("smallest HBM a card", exact_size(fits.smallest_hbm_bytes) if fits.smallest_hbm_bytes else NONE_FITS),
        ("smallest tp", str(fits.smallest_tp) if fits.smallest_tp else NONE_FITS),
    ]
    return table("What would fit", ("changing only", "<to"), rows)
