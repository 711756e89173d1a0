"""Legal layouts: every mesh that a model may take on so many cards or on a part of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..models.blocks import Graph, Moe
from .layout import Layout, legal_tp


def divisors(number: int) -> list[int]:
    """The whole numbers that divide a number, in order."""
    return [one for one in range(1, number + 1) if number % one == 0]


def legal_layouts(graph: Graph, cards: int, *, cp: bool = True, redundant: int = 0) -> Iterator[Layout]:
    """Products of tp, pp, dp, cp and ep that divide `cards`; etp follows.

    `cp` says whether contexts may be spread. With `redundant` slots experts must be dealt out.
    """
    experts = [layer.mlp.experts.count for layer in graph.layers if isinstance(layer.mlp, Moe)]
    fewest = min(experts, default=0)
    whole, apart = set(legal_tp(graph)), set(legal_tp(graph, etp=1))
    for tp in divisors(cards):
        if tp not in whole | apart:
            continue
        for pp, shares, dp in _meshes(cards // tp, len(graph.layers), cp):
            for ep in divisors(tp * shares * dp):
                has_room = ep <= max(1, fewest + redundant) and redundant <= fewest * (ep - 1)
                if has_room and tp in (whole if ep == 1 else apart):
                    yield Layout(tp=tp, pp=pp, dp=dp, cp=shares, ep=ep, redundant=redundant)


def _meshes(cards: int, layers: int, cp: bool) -> Iterator[tuple[int, int, int]]:
    """(pp, cp, dp) whose products divide a number of cards."""
    for pp in divisors(cards):
        if pp > layers:
            break
        for shares in divisors(cards // pp) if cp else (1,):
            for dp in divisors(cards // pp // shares):
                yield pp, shares, dp
