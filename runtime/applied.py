"""What passes made of a job's programs, for reports: which, in how many places of a step, with how many launches."""

from __future__ import annotations

from collections import Counter, defaultdict

from .lowering.passes.fuse import fusion_names
from .lowering.passes.window import DEFAULT_FUSIONS
from .plan import JobPlan
from .report import PassReport


def pass_reports(plan: JobPlan) -> tuple[PassReport, ...]:
    """Every pass that changed something, over the programs of all cards, in the order in which they act."""
    places: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    parts: dict[str, dict[str, None]] = defaultdict(dict)
    for rank, cards in Counter(plan.classes).items():
        built = plan.built(rank, plan.variants[0])
        calls = Counter(call.block for call in built.program.calls)
        for change in built.rewritten:
            count = cards * calls[change.block]
            places[change.name] += count
            launches[change.name] += count * (len(change.new) - len(change.old))
            parts[change.name] |= dict.fromkeys(part.mnemonic for part in change.new)
    return tuple(
        PassReport(name=name, places=count, launches=launches[name], into=tuple(parts[name]))
        for name, count in places.items()
    )


def idle_fusions(plan: JobPlan, passes: tuple[PassReport, ...]) -> tuple[str, ...]:
    """A note for every fusion that was asked for by its name and has no place in the model."""
    acted = {item.name for item in passes} | {f"fuse {name}" for name in DEFAULT_FUSIONS}
    if plan.fuse == fusion_names():
        return ()
    return tuple(
        f"--fuse {name} changes nothing: no block of this model has a place for it"
        for name in plan.fuse
        if f"fuse {name}" not in acted
    )
