"""Ranks as users write them: 0,1,2 or 0-3,8-11."""

from __future__ import annotations

from ..isa.errors import ConfigError

MOST_RANKS = 1 << 16


def parse_ranks(option: str, text: str) -> tuple[int, ...]:
    """The ranks that an option names, in the order given; one that is named twice stands twice."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or len(first) > 9 or len(last) > 9 or int(first) > int(last):
            raise ConfigError(f"{option} {text!r}: {part.strip()!r} is no rank; write 0,1,2 or 0-3,8-11")
        if len(ranks) + int(last) - int(first) >= MOST_RANKS:
            raise ConfigError(f"{option} {text!r} names more than {MOST_RANKS} ranks")
        ranks += range(int(first), int(last) + 1)
    return tuple(ranks)
