"""Which algorithms are emulated side by side: those whose plans are placed on the wires in a second or so."""

from __future__ import annotations

from ...interconnect.choices import Choice, Group, candidates

MOST_WAYS = 1 << 18  # to be found for one plan; placing so many takes about a second


def comparable(collective: str, group: Group) -> tuple[tuple[Choice, ...], tuple[str, ...]]:
    """(candidates to emulate, names of those whose plans are too large); the usual one is always there."""
    found = candidates(collective, group)
    small = tuple(
        choice for index, choice in enumerate(found) if not index or _ways(collective, group, choice) <= MOST_WAYS
    )
    return small, tuple(choice.algorithm for choice in found if choice not in small)


def _ways(collective: str, group: Group, choice: Choice) -> int:
    """Ways from card to card that placing a plan has to find: steps that repeat are placed once."""
    patterns = choice.plan(collective, len(group.ranks)).patterns
    return sum(len(pattern.sources) for pattern in patterns) * group.topology.routing.stripes
