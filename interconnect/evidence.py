"""A number with its evidence: what it is worth and where it was read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

EvidenceKind = Literal["datasheet", "measured", "calibrated", "assumed"]
# From strongest to weakest: a data sheet may be optimistic, but it is the vendor's word; an assumption is only ours.
STRENGTH: tuple[EvidenceKind, ...] = ("measured", "calibrated", "datasheet", "assumed")


class Quantity(BaseModel):
    """A whole number (the unit is in the field's name) with its evidence and source; `error` is relative.

    `value` also takes `28e9` and the like, which YAML reads as text, as long as they are whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: int = Field(ge=0)
    evidence: EvidenceKind
    source: str = Field(min_length=1)
    error: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _wants_evidence(cls, raw: Any) -> Any:
        if not isinstance(raw, dict | Quantity):
            raise ValueError("every number carries its evidence: write {value: .., evidence: .., source: ..}")
        return raw

    @field_validator("value", mode="before")
    @classmethod
    def _is_whole(cls, raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError("must be a whole number")
        if isinstance(raw, int):
            return raw
        try:
            number = float(raw)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not math.isfinite(number) or number != int(number):
            raise ValueError("must be a finite whole number")
        return int(number)

    @model_validator(mode="after")
    def _calibrated_tells_its_error(self) -> Quantity:
        if self.evidence == "calibrated" and self.error is None:
            raise ValueError("evidence 'calibrated' needs its relative `error`")
        return self


def weakest(evidence: Iterable[EvidenceKind]) -> EvidenceKind:
    """The weakest of some evidence, which is what a figure made of all of it is worth; none claims nothing."""
    return max(evidence, key=STRENGTH.index, default="measured")
