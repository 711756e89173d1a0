"""Constants of kernels that no data sheet states, by kind of operation: what a calibration fits, and nothing else."""

from __future__ import annotations

from .card_parts import CardPart
from .evidence import Evidence

UNTOLD = Evidence(evidence="assumed", source="siltwin's own default for kernels that nobody has measured")


class MatmulTuning(CardPart):
    """Matrix products."""


class GroupedTuning(CardPart):
    """Matrix products of several groups of rows, as experts have them."""


class PrefillTuning(CardPart):
    """Attention of many new tokens."""


class DecodeTuning(CardPart):
    """Attention of one or a few new tokens over a cache."""


class VectorTuning(CardPart):
    """Row-wise instructions."""


class CollectiveTuning(CardPart):
    """Collectives over the links."""


class Tuning(CardPart):
    """The constants of every kind; each has a default, and a card file states those that it knows better."""

    matmul: MatmulTuning = MatmulTuning()
    grouped: GroupedTuning = GroupedTuning()
    prefill: PrefillTuning = PrefillTuning()
    decode: DecodeTuning = DecodeTuning()
    vector: VectorTuning = VectorTuning()
    collective: CollectiveTuning = CollectiveTuning()
