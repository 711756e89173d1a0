"""The node that a card stands in where no cluster is named: its links, and a library as its constants say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..emulator.exchange_costs import alone_of
from ..emulator.spec import CardSpec, weakest_evidence
from ..interconnect.choices import Choice, candidates
from ..interconnect.cluster import ClusterSpec, usual_node
from ..interconnect.collectives.amounts import Measured, measure
from ..interconnect.collectives.flows import PlacedShape, place
from ..interconnect.collectives.plan import Ints
from ..interconnect.collectives.registry import COLLECTIVES
from ..interconnect.link import LinkSpec
from ..interconnect.specfile import validated
from ..isa.dtype import FP16, DType
from ..isa.instruction import split_even

LIBRARY, PEERS, IN_SWITCH = "library", "library_peers", "in_switch"
PEERS_STARTS = 1.55  # an all-to-all opens all peers at once; NCCL on A100 and H100
SWITCH_STARTS = 8  # sums in a switch start as slowly as so many others: their multicast is set up first; NCCL on H100
LEAST_SUMMED = 3  # members from which on a switch adds
EACH_SIZE = 16  # cards of a node up to which every group size has a row; beyond, powers of two
MOST_BYTES = 1 << 40
EARLY = 1e-4  # of a size
PS_PER_S = 10**12
PPM = 10**6


@lru_cache(maxsize=64)
def node_of(card: CardSpec, cards: int) -> ClusterSpec:
    """`cards` cards of one kind in their usual node, joined and spoken for by a library as the card's tuning says.

    A message between cards crosses two links where a switch stands between them, each with half of the card's latency.
    """
    spec = _with_library(card, cards)
    rows = [*_sums(spec), *spec.choices]
    return validated(ClusterSpec, {**_content(spec), "choices": rows}, spec.name)


def collective_times_ps(
    card: CardSpec, collective: str, ranks: int, sizes_bytes: Sequence[int], dtype: DType = FP16
) -> Ints:
    """Picoseconds of a collective alone between `ranks` cards of the card's own node, int64 [sizes].

    A size counts what nccl-tests count: the whole buffer, or all that one rank of an all-to-all sends. The times are
    those that the emulator gives the instruction, its dispatch included; ConfigError for an unknown collective.
    """
    spec = _with_library(card, max(ranks, int(card.node.cards)))
    members = tuple(range(ranks))
    in_switch = _in_switch(spec, collective, ranks, dtype)
    times = np.zeros(len(sizes_bytes), np.int64)
    for index, size in enumerate(sizes_bytes):
        whole = size * (ranks if collective == "all_to_all" else 1)
        choices = [spec.choose(collective, ranks, members, whole, dtype), *in_switch]
        times[index] = min(_time_ps(card, spec, choice, collective, ranks, size, dtype) for choice in choices)
    return times


@lru_cache(maxsize=64)
def _with_library(card: CardSpec, cards: int) -> ClusterSpec:
    """The node with the library's protocols, and all its choices but where a switch adds."""
    spec = _wired(card, cards)
    if spec.kind == "single":
        return spec
    content = _content(spec) | {
        "protocols": _protocols(card),
        "choices": list(_choices(spec.kind)),
        "switch_reduces": card.node.switch_reduces,
    }
    return validated(ClusterSpec, content, spec.name)


def _content(spec: ClusterSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ClusterSpec.model_fields}


def _wired(card: CardSpec, cards: int) -> ClusterSpec:
    bandwidth = card.evidence_of("link.bandwidth_bytes_per_s")
    ports = card.evidence_of("node.ports_to_peer")
    content = {
        "bandwidth_bytes_per_s": _number(
            card,
            int(card.link.bandwidth_bytes_per_s) * int(card.node.ports_to_peer),
            ("link.bandwidth_bytes_per_s", "node.ports_to_peer"),
            f"{bandwidth.source}; {card.node.ports_to_peer} ports to each peer: {ports.source}",
        ),
        "latency_ps": _number(
            card, int(card.link.latency_ps) // (2 if card.node.topology == "switch" else 1), ("link.latency_ps",)
        ),
    }
    link = validated(LinkSpec, content, f"the links of {card.name} (link.bandwidth_bytes_per_s x node.ports_to_peer)")
    return usual_node(card.node.topology, cards, link, int(card.node.cards))


def _number(card: CardSpec, value: float, paths: Sequence[str], source: str | None = None) -> dict[str, Any]:
    """A number made of a card's, with the weakest of their evidence and the largest of their errors."""
    said = [card.evidence_of(path) for path in paths]
    return {
        "value": round(value),
        "evidence": weakest_evidence(card, paths),
        "source": source or said[0].source,
        "error": max((found.error for found in said if found.error is not None), default=None),
    }


def _protocols(card: CardSpec) -> dict[str, Any]:
    """The library's protocols, the usual one first."""
    tuning = card.tuning.collective

    def number(value: float, *fields: str) -> dict[str, Any]:
        return _number(card, value, [f"tuning.collective.{field}" for field in fields])

    def cycles(field: str, times: float = 1) -> dict[str, Any]:
        return number(times * getattr(tuning, field) * PS_PER_S / card.clock_hz, field)

    def protocol(starts: float, share: str, in_steps: bool) -> dict[str, Any]:
        copied = ("hbm.bandwidth_bytes_per_s", "hbm.attainable_fraction")
        return {
            "start_ps": cycles("start_cycles", starts),
            "step_ps": cycles("step_cycles", in_steps),
            "bandwidth_ppm": number(getattr(tuning, share) * PPM, share),
            "ramp_ps": cycles("ramp_cycles"),
            "bulk_ps": cycles("bulk_cycles", in_steps),
            "copy_bytes_per_s": _number(card, card.hbm.attainable_bytes_per_s / 2, copied),  # read and written
        }

    found = {
        LIBRARY: protocol(1, "share", in_steps=True),
        PEERS: protocol(PEERS_STARTS, "share", in_steps=False),
    }
    if card.node.switch_reduces:
        found[IN_SWITCH] = protocol(SWITCH_STARTS, "switch_share", in_steps=False)
    return found


def _choices(kind: str) -> Iterator[dict[str, Any]]:
    """Rings through a switch, at every size, as NCCL's; an all-to-all opens all peers by a protocol of its own."""
    if kind == "switch":
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            yield {"collective": collective, "algorithm": "ring", "protocol": LIBRARY}
        yield {"collective": "all_to_all", "algorithm": "direct", "protocol": PEERS}


def _in_switch(spec: ClusterSpec, collective: str, ranks: int, dtype: DType) -> tuple[Choice, ...]:
    """Summing in the switch, where a group of the node can have all-reduces done so."""
    if collective != "all_reduce" or ranks < LEAST_SUMMED or IN_SWITCH not in spec.protocols:
        return ()
    protocol = spec.protocol(IN_SWITCH)
    found = candidates(collective, spec.group(range(ranks)), dtype)
    return tuple(Choice(one.algorithm, one.options, protocol) for one in found if one.algorithm == "in_switch")


def _sums(spec: ClusterSpec) -> Iterator[dict[str, Any]]:
    """Up to which size each group's all-reduce runs in a ring, and beyond it in the switch: a library takes the faster.

    A ring has the shorter start and more bytes, so that there is one such size. It is taken a little early, where the
    ring is still the faster one, so that times do not fall.
    """
    cards = spec.cards
    sizes = range(LEAST_SUMMED, cards + 1) if cards <= EACH_SIZE else (1 << n for n in range(2, cards.bit_length()))
    for ranks in sizes:
        for in_switch in _in_switch(spec, "all_reduce", ranks, FP16):
            ring = spec.choose("all_reduce", ranks, range(ranks), MOST_BYTES)
            if up_to := _even_bytes(_growth(spec, ring, ranks), _growth(spec, in_switch, ranks)):
                row = {"collective": "all_reduce", "from_ranks": ranks, "up_to_ranks": ranks}
                yield {**row, "algorithm": ring.algorithm, "protocol": LIBRARY, "up_to_bytes": up_to}
                yield {**row, "algorithm": in_switch.algorithm, "protocol": IN_SWITCH}


def _growth(spec: ClusterSpec, choice: Choice, ranks: int) -> tuple[float, float, float]:
    """Picoseconds of an all-reduce over the wires: of none, of a byte more, and of a root of a byte more."""
    most, half = (_measured(spec, choice, "all_reduce", ranks, size, FP16) for size in (MOST_BYTES, MOST_BYTES // 2))
    steady = replace(choice.protocol, ramp_ps=0)
    most_ps, half_ps = most.under(steady).flow_ps, half.under(steady).flow_ps
    of_none, of_a_byte = most.latency_ps + 2 * half_ps - most_ps, 2 * (most_ps - half_ps) / MOST_BYTES
    return of_none, of_a_byte, (most.flow_ps - most_ps) / MOST_BYTES**0.5


def _even_bytes(first: tuple[float, float, float], other: tuple[float, float, float]) -> int:
    """Up to how many bytes the first, which starts sooner, is the faster one; 0 where it is for ever or never."""
    sooner, a_byte, a_root = (one - two for one, two in zip(first, other, strict=True))
    if a_byte <= 0 or sooner >= 0:
        return 0
    root = ((a_root**2 - 4 * a_byte * sooner) ** 0.5 - a_root) / (2 * a_byte)
    return int(root**2 * (1 - EARLY))


def _time_ps(
    card: CardSpec, spec: ClusterSpec, choice: Choice, collective: str, ranks: int, size_bytes: int, dtype: DType
) -> int:
    """Picoseconds of one collective alone, of the whole elements in `size_bytes`."""
    whole = _measured(spec, choice, collective, ranks, size_bytes, dtype)
    alone = alone_of(whole, collective, dtype, card, card.dispatch.link_ps)
    return alone.fixed_ps + alone.alone_ps


def _measured(
    spec: ClusterSpec, choice: Choice, collective: str, ranks: int, size_bytes: int, dtype: DType
) -> Measured:
    shape = place(choice.plan(collective, ranks), tuple(range(ranks)), spec.topology()).shape
    return _bare(shape, _parts(collective, ranks, size_bytes, dtype)).under(choice.protocol)


@lru_cache(maxsize=1 << 13)
def _bare(shape: PlacedShape, parts: tuple[int, ...]) -> Measured:
    """Bytes on the wires, whatever the protocol; a fit asks for them again and again."""
    return measure(shape, parts)


@lru_cache(maxsize=1 << 13)
def _parts(collective: str, ranks: int, size_bytes: int, dtype: DType) -> tuple[int, ...]:
    count, parts = size_bytes * 8 // dtype.bits, COLLECTIVES[collective].parts(ranks)
    rows = ranks if collective == "all_to_all" else 1
    return tuple([dtype.bytes_of(share) for _, share in split_even(count, parts // rows)]) * rows
