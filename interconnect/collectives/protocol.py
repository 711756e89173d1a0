"""How a communication library sends: what a protocol costs a collective and a step, and its share of a bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .plan import Ints

PS_PER_S = 10**12
Terms = Mapping[int, int]  # bandwidth in bytes a second -> bytes: their quotients add up to seconds


@dataclass(frozen=True)
class Protocol:
    """`start_ps` once a collective (launch, first handshake), `step_ps` beside the links' latency at every step that
    is not streamed, and `bandwidth_permille` of every link's bandwidth (flags among the bytes take the rest).
    """

    name: str = "plain"
    start_ps: int = 0
    step_ps: int = 0
    bandwidth_permille: int = 1000

    def flow_ps(self, steps: Sequence[Terms]) -> int:
        """Picoseconds of all steps' bytes, one ceiling of the exact sum."""
        total: Counter[int] = Counter()
        for terms in steps:
            for bandwidth, size in terms.items():
                total[bandwidth] += size
        return self._ceiling(total)

    def flows_ps(self, steps: Sequence[Terms]) -> Ints:
        """Picoseconds of every step's bytes, each rounded up; int64 [steps]."""
        known: dict[tuple[tuple[int, int], ...], int] = {}  # most steps are alike
        flows = []
        for terms in steps:
            key = tuple(terms.items())
            if key not in known:
                known[key] = self._ceiling(terms)
            flows.append(known[key])
        return np.array(flows, np.int64)

    def _ceiling(self, terms: Terms) -> int:
        seconds = sum((Fraction(size, bandwidth) for bandwidth, size in terms.items()), Fraction(0))
        exact = seconds * PS_PER_S * 1000 / self.bandwidth_permille
        return -(-exact.numerator // exact.denominator)

    def latencies(self, streamed: Ints) -> Ints:
        """What the protocol adds to the latency of every step."""
        return np.where(streamed, 0, self.step_ps)


PLAIN = Protocol()
