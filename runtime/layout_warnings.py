"""What a report must say of a job's layout, where it does not do what one may think."""

from __future__ import annotations

from collections.abc import Iterator

from .dispatch import travels
from .plan import JobPlan


def layout_warnings(plan: JobPlan) -> list[str]:
    """Replicas that wait for one another or have nothing to do, lanes without requests, switches without effect."""
    return list(_warnings(plan))


def _warnings(plan: JobPlan) -> Iterator[str]:
    layout, sequences = plan.layout, len(plan.sequences)
    if layout.dp > sequences:
        yield f"{layout.dp - sequences} of dp={layout.dp} replicas have no sequence: they run along with nothing to do"
    if layout.dp > 1 and not travels(plan.graph, layout):
        yield (
            "replicas take their steps together, though no token travels between them: each step lasts as long as that "
            "of the slowest; run one alone to see it undisturbed"
        )
    lanes = plan.micro_batches
    if lanes > 1 and layout.pp == 1:
        yield f"--micro-batches {lanes} at pp=1: there is one stage, whose steps come one after the other"
    elif lanes > (most := -(-sequences // layout.dp)) > 1 or (lanes > 1 and most == 1 and not plan.chunk_tokens):
        yield f"--micro-batches {lanes} are more than the {most} sequences of a replica: some have no sequence"
    if plan.sequence_parallel and layout.tp == 1:
        yield "--sequence-parallel changes nothing at tp=1: there are no ranks to share the tokens"
    if plan.overlap and layout.tp == 1 and not travels(plan.graph, layout):
        yield "--overlap hides nothing: no layer of this layout exchanges anything, and weights are read for each half"
