"""What every report that stands alone begins with, and what its making took: versions, the job's model and cards."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from pydantic import Field

from ..interconnect.evidence import EvidenceKind
from .report_base import Count, Part, PerSecond, Seconds

SCHEMA_VERSION: Literal[1] = 1


@cache
def siltwin_version() -> str:
    """The version of siltwin that is installed; "unknown" for a source tree that never was."""
    try:
        return version("siltwin")
    except PackageNotFoundError:
        return "unknown"


class Document(Part):
    """What every report that stands alone begins with."""

    schema_version: Literal[1] = SCHEMA_VERSION
    siltwin_version: str = Field(default_factory=siltwin_version)

    def to_json(self) -> str:
        """The report as JSON text that ends in a newline."""
        return self.model_dump_json(indent=1) + "\n"


class ModelPart(Part):
    """The model that ran; `source` says where its weights came from, `total_params` counts tied weights once."""

    name: str
    family: str
    total_params: Count
    dtype: str
    kv_dtype: str
    kv_pages: str = "unified"
    kv_policy: str = "paged"
    source: str
    num_layers: Count


class CardPart(Part):
    """The card that was emulated, and the weakest evidence among the numbers it was described by.

    `set_by_user` holds the numbers that the user put in place of the card's own, by dotted path.
    """

    name: str
    description: str
    weakest_evidence: EvidenceKind
    set_by_user: dict[str, str] = {}


class ClusterPart(Part):
    """How the cards are joined; cards that the layout leaves over are counted.

    `placement` is the cluster's card that each rank stands on, by rank.
    """

    name: str
    kind: str
    cards_used: Count
    cards_unused: Count = 0
    placement: tuple[Count, ...] = ()


class LayoutPart(Part):
    """Degrees of every parallel axis; `cards` = pp * dp * cp * tp."""

    tp: int
    pp: int
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    edp: int = 1
    cards: int


class JobDocument(Document):
    """What every report about a job on cards begins with: the model, and where it stands."""

    model: ModelPart
    card: CardPart
    cluster: ClusterPart
    layout: LayoutPart


class HostReport(Part):
    """What the emulation took on the machine that ran it: the only part that differs between equal runs."""

    wall_s: Seconds
    load_s: Seconds | None = None
    run_s: Seconds | None = None
    output_tokens_per_s: PerSecond | None = None
