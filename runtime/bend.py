"""Why a curve bends: what the card time of a token is made of at two points of a sweep, and which part of it grew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..emulator.span import BOUNDS, Bound
from .report_sweep import SweepPoint
from .terminal import digits, duration

WORDS: dict[Bound, str] = {
    "compute": "computing",
    "hbm": "device memory",
    "sram": "loading the cores",
    "link": "exposed communication",
    "dispatch": "dispatch",
    "dependency": "idle",
    "host": "the host link",
}
TOLD = 0.05  # parts of the change that are smaller than this share of the token's card time are left out


def why_it_bends(axis: str, points: Sequence[SweepPoint]) -> tuple[str, ...]:
    """A sentence from each point to the next, and one for the best of them; none where fewer than two ran."""
    told = [point for point in points if point.tokens and point.elapsed_ps]
    if len(told) < 2:
        return ()
    return tuple(_sentences(axis, sorted(told, key=lambda point: point.value)))


def _sentences(axis: str, points: Sequence[SweepPoint]) -> Iterator[str]:
    for one, other in pairwise(points):
        rate, cards = _ratio(other.tokens_per_s, one.tokens_per_s), _ratio(other.cards, one.cards)
        on = f" on {digits(cards)}x the cards" if cards != 1 else ""
        yield f"{axis} {one.value} to {other.value}: {digits(rate)}x the tokens/s{on}; {_change(one, other)}"
    best = max(points, key=lambda point: point.tokens_per_s_per_card or 0)
    fastest = max(points, key=lambda point: point.tokens_per_s or 0)
    yield (
        f"most tokens/s of a card at {axis}={best.value} ({digits(best.tokens_per_s_per_card or 0)}), most of all at "
        f"{axis}={fastest.value} ({digits(fastest.tokens_per_s or 0)})"
    )


def _ratio(one: float | None, other: float | None) -> float:
    return (one or 0) / (other or 1)


def card_ps_of_a_token(point: SweepPoint) -> dict[Bound, float]:
    """Picoseconds of cards that a token takes, by what held them: critical time, on every card, over all tokens."""
    assert point.bounds is not None and point.cards and point.tokens
    return {name: getattr(point.bounds, name) * point.cards / point.tokens for name in BOUNDS}


def _change(one: SweepPoint, other: SweepPoint) -> str:
    """How the card time of a token changed, and which parts of it did, the largest first."""
    before, after = card_ps_of_a_token(one), card_ps_of_a_token(other)
    total, now = sum(before.values()), sum(after.values())
    grew = sorted(((after[name] - before[name], name) for name in BOUNDS), key=lambda entry: -abs(entry[0]))
    least = TOLD * max(total, now)
    told = [(change, name) for change, name in grew if abs(change) >= least]
    parts = [f"{WORDS[name]} {'+' if change > 0 else '-'}{duration(abs(change))}" for change, name in told]
    made_of = f": {', '.join(parts)}" if parts else ", made of the same parts"
    return f"a token takes {duration(now)} of cards, {digits(now / total)}x as before{made_of}"
