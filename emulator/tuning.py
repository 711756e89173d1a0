"""Constants of kernels that no data sheet states, by kind of operation: what a calibration fits, and nothing else."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

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
    """How a communication library sends in a card's own node; a named cluster states protocols of its own.

    `start_cycles` of the card's clock pass before a collective's first byte, `peers_start_cycles` where messages go
    from peer to peer (all-to-all, send), and `step_cycles` at every step beside the links' latency. Bytes get `share`
    of the links' bandwidth, `switch_share` where the switch adds them. A chunk of the pipeline costs `ramp_cycles`: as
    `ramp_ps` of a protocol. The defaults lie between what NCCL takes on A100 and on H100 nodes.
    """

    start_cycles: Annotated[float, Field(ge=0, le=40_000)] = 9_600
    peers_start_cycles: Annotated[float, Field(ge=0, le=60_000)] = 15_000
    step_cycles: Annotated[float, Field(ge=0, le=5_000)] = 630
    share: Annotated[float, Field(ge=0.05, le=1)] = 0.79
    switch_share: Annotated[float, Field(ge=0.05, le=1)] = 0.62
    ramp_cycles: Annotated[float, Field(ge=0, le=200_000)] = 24_000


class Tuning(CardPart):
    """The constants of every kind; each has a default, and a card file states those that it knows better."""

    matmul: MatmulTuning = MatmulTuning()
    grouped: GroupedTuning = GroupedTuning()
    prefill: PrefillTuning = PrefillTuning()
    decode: DecodeTuning = DecodeTuning()
    vector: VectorTuning = VectorTuning()
    collective: CollectiveTuning = CollectiveTuning()
