"""How a communication library sends: what a protocol costs a collective and a step, and its share of a bandwidth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .plan import Ints

PS_PER_S = 10**12
WHOLE_PPM = 10**6
BULK_BYTES = 1_200_000  # as NCCL changes from its protocol of low latency to its simple one on A100 and H100 nodes
Terms = Mapping[int, int]  # bandwidth in bytes a second -> bytes: their quotients add up to seconds


@dataclass(frozen=True)
class Protocol:
    """What a library's way of sending costs beside the links.

    `start_ps` once a collective (launch, first handshake; a card's dispatch is in it), `step_ps` beside the links'
    latency at every step that is not streamed, and `bandwidth_ppm`, millionths, of every link's bandwidth (flags among
    the bytes, headers and copies take the rest). `ramp_ps` is what a chunk of its pipeline costs: bytes of n members
    that flow for t alone, cut into as many chunks as is best, take sqrt(t * n / (n - 1) * ramp_ps) longer (a member's
    own share, which crosses no link, goes through the pipeline too; a transfer of one member to one other has none, and
    counts no members), spread over the steps by their share of t. `bulk_ps`, between n members 2 / n of it, is what
    the way of sending much costs more than that of sending little: a collective comes to bear it where some BULK_BYTES
    cross its busiest links. `copy_bytes_per_s` is how fast a member takes its own share from one buffer to the other
    where the collective has two (0: it costs nothing).
    """

    name: str = "plain"
    start_ps: int = 0
    step_ps: int = 0
    bandwidth_ppm: int = WHOLE_PPM
    ramp_ps: int = 0
    copy_bytes_per_s: int = 0
    bulk_ps: int = 0

    def flow_ps(self, steps: Sequence[Terms], members: int = 0) -> int:
        """Picoseconds of all steps' bytes: one ceiling of the exact sum, the ramp and the bulk."""
        total: Counter[int] = Counter()
        for terms in steps:
            for bandwidth, size in terms.items():
                total[bandwidth] += size
        alone = _picoseconds(total)
        return self._slowed(alone) + self._ramp(alone, members) + self._bulk(sum(total.values()), members)

    def flows_ps(self, steps: Sequence[Terms], members: int = 0) -> Ints:
        """Picoseconds of every step's bytes, each rounded up, and its share of the rest; int64 [steps]."""
        known: dict[tuple[tuple[int, int], ...], Fraction] = {}  # most steps are alike
        alone = []
        for terms in steps:
            key = tuple(terms.items())
            if key not in known:
                known[key] = _picoseconds(terms)
            alone.append(known[key])
        rounded = {value: self._slowed(value) for value in known.values()}
        flows = np.array([rounded[value] for value in alone], np.int64)
        if (self.ramp_ps or self.bulk_ps) and len(flows) and (total := sum(alone, Fraction(0))):
            num_bytes = sum(sum(terms.values()) for terms in steps)
            more, so_far, shares = self._ramp(total, members) + self._bulk(num_bytes, members), Fraction(0), [0]
            for value in alone:
                so_far += value
                shares.append(int(more * so_far / total))
            flows += np.diff(shares)
        return flows

    def _slowed(self, alone_ps: Fraction) -> int:
        return _ceiling(alone_ps * WHOLE_PPM / self.bandwidth_ppm)

    def _ramp(self, alone_ps: Fraction, members: int) -> int:
        in_pipeline = alone_ps * members / (members - 1) if members > 1 else alone_ps
        return math.isqrt(_ceiling(in_pipeline) * self.ramp_ps)

    def _bulk(self, num_bytes: int, members: int) -> int:
        little, much = BULK_BYTES**4, num_bytes**4
        return 2 * self.bulk_ps * much // (members * (little + much)) if members and self.bulk_ps else 0

    def once_ps(self, own_bytes: int) -> int:
        """What it costs once: the start, and the largest own share taken from one buffer to the other."""
        copy_ps = -(-own_bytes * PS_PER_S // self.copy_bytes_per_s) if self.copy_bytes_per_s else 0
        return self.start_ps + copy_ps

    def latencies(self, streamed: Ints) -> Ints:
        """What the protocol adds to the latency of every step."""
        return np.where(streamed, 0, self.step_ps)


def _picoseconds(terms: Terms) -> Fraction:
    """How long bytes take at their bandwidths, one after the other."""
    return sum((Fraction(size * PS_PER_S, bandwidth) for bandwidth, size in terms.items()), Fraction(0))


def _ceiling(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)


PLAIN = Protocol()
