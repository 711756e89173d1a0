"""Choices: where tokens took other experts on the cards than in the reference, and whether errors explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..isa.instruction import Array
from ..models.blocks import Router
from .drift import Outputs, drift_of
from .report_align import Flip, LayerDrift, RouterDrift
from .routes import Routes

# How far a choice score moves at most for a logit that moves by one.
_STEEPEST = {"softmax": 0.5, "sigmoid": 0.25}
# What fp32 may add to the bound below: the scores themselves are rounded.
_ROUNDING = 1e-5

Place = tuple[int, int]  # request, position


def compare_routes(
    ours: Mapping[int, Routes], theirs: Mapping[int, Routes], routers: Mapping[int, Router], places: Sequence[Place]
) -> list[RouterDrift]:
    """Each expert layer's router: how far its logits are from the reference's, and which tokens chose otherwise."""
    found = []
    for layer in sorted(set(ours) & set(theirs)):
        flips = list(_flips(layer, ours[layer], theirs[layer], routers[layer], places))
        found.append(
            RouterDrift(
                name=f"layer {layer} router",
                layer=layer,
                flips=len(flips),
                unexplained=sum(not flip.explained for flip in flips),
                largest_margin=max((flip.margin or 0.0 for flip in flips), default=None),
                first=next((flip for flip in flips if not flip.explained), flips[0] if flips else None),
                **drift_of(ours[layer].logits, theirs[layer].logits),
            )
        )
    return found


def compare_keys(mine: Outputs, other: Outputs, theirs: Outputs) -> list[LayerDrift]:
    """Each indexer's choice in `other` against the reference's: the share of a token's keys that are not the same.

    Tokens with no more keys than are chosen take them all; which these are, `mine` says. Of what is not ours, but shows
    what rounding does, at least one key of one token is taken to be another: so few are a matter of chance.
    """
    found = []
    for layer in sorted(set(mine.keys) & set(theirs.keys)):
        rows = np.flatnonzero((mine.keys[layer] >= 0).all(axis=-1))
        pairs = zip(other.keys[layer][rows], theirs.keys[layer][rows], strict=True)
        count = mine.keys[layer].shape[-1]
        apart = np.array([count - len(np.intersect1d(ours, reference)) for ours, reference in pairs] or [0])
        if other is not mine and not apart.any():
            apart[0] = 1
        found.append(
            LayerDrift(
                name=f"layer {layer} keys",
                max_abs=float(apart.max()),
                max_rel=float(apart.max()) / count,
                rms_rel=float(np.sqrt(np.mean((apart / count) ** 2))),
                cosine=float(1 - apart.mean() / count),
            )
        )
    return found


def _flips(layer: int, ours: Routes, theirs: Routes, router: Router, places: Sequence[Place]) -> Iterator[Flip]:
    """Every token that took other experts than in the reference.

    An expert that ours takes and theirs does not has the better score in ours and the worse in theirs, so the two
    scores of theirs differ by at most twice the largest error of a score; what differs by more was chosen wrongly.
    """
    mine, other = _mask(ours), _mask(theirs)
    errors = np.abs(ours.logits.astype(np.float64) - theirs.logits).max(axis=-1)
    for token in map(int, np.flatnonzero((mine != other).any(axis=-1))):
        lost, gained = (np.flatnonzero(a[token] & ~b[token]) for a, b in ((other, mine), (mine, other)))
        bound = 2 * _STEEPEST.get(router.scoring, 1.0) * float(errors[token]) + _ROUNDING
        margin, limit = _margin(theirs, token, lost, gained, router, bound)
        request, position = places[token]
        yield Flip(
            layer=layer,
            request=request,
            position=position,
            ours=tuple(map(int, gained)),
            reference=tuple(map(int, lost)),
            margin=margin,
            explained=margin <= limit,
        )


def _mask(routes: Routes) -> Array:
    """Which experts each token took, [tokens, experts] bool."""
    taken = np.zeros(routes.logits.shape, bool)
    np.put_along_axis(taken, routes.ids.astype(np.int64), True, axis=-1)
    return taken


def _margin(
    theirs: Routes, token: int, lost: Array, gained: Array, router: Router, bound: float
) -> tuple[float, float]:
    """By how much the reference preferred its own choice, and how much an error of the logits explains."""
    assert theirs.choice is not None, "a reference keeps the scores it chose by"
    scores = theirs.choice[token].astype(np.float64)
    margin = float(scores[lost].max() - scores[gained].min())
    if theirs.groups is None or margin <= bound:
        return margin, bound
    groups = np.sort(theirs.groups[token].astype(np.float64))[::-1]
    gap = float(groups[router.top_groups - 1] - groups[router.top_groups])
    allowed = np.argsort(-theirs.groups[token], kind="stable")[: router.top_groups]
    size = len(scores) // len(groups)
    outside = [expert // size for expert in gained if expert // size not in allowed]
    if outside:  # a group that is out in theirs: the worst of them must be near the last that is in
        gap = float(groups[router.top_groups - 1] - theirs.groups[token][outside].min())
    elif not np.isfinite(margin):
        return float("inf"), bound
    return gap, router.group_best * bound
