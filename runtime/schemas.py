"""The JSON schema of every report, by name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .card_check import CardCheckReport
from .catalogue import CardDetail, CardsReport, ModelsReport
from .fabric.show import ClusterDetail, ClustersReport
from .report import OomReport, Report
from .report_align import AlignReport
from .report_coverage import CoverageReport
from .report_limits import LimitsReport
from .report_plan import PlanReport
from .report_sweep import SweepReport

DOCUMENTS: dict[str, type[BaseModel]] = {
    "report": Report,
    "oom": OomReport,
    "limits": LimitsReport,
    "plan": PlanReport,
    "sweep": SweepReport,
    "align": AlignReport,
    "coverage": CoverageReport,
    "cards": CardsReport,
    "card": CardDetail,
    "card-check": CardCheckReport,
    "models": ModelsReport,
    "clusters": ClustersReport,
    "cluster": ClusterDetail,
}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema of what `--json` writes; `oom` is the part of a report that tells of an out-of-memory."""
    return DOCUMENTS[name].model_json_schema(mode="serialization")
