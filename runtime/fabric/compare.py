"""Which algorithms are emulated side by side: those whose plans a machine walks through in a second or so."""

from __future__ import annotations

from ...interconnect.choices import Choice, Group, candidates

MOST_TRANSFERS = 1 << 21  # a plan of this many takes about a second to place


def comparable(collective: str, group: Group) -> tuple[tuple[Choice, ...], tuple[str, ...]]:
    """(candidates to emulate, names of those whose plans are too large); the usual one is always there."""
    found = candidates(collective, group)
    small = tuple(
        choice
        for index, choice in enumerate(found)
        if not index or choice.plan(collective, len(group.ranks)).moves.count <= MOST_TRANSFERS
    )
    return small, tuple(choice.algorithm for choice in found if choice not in small)
