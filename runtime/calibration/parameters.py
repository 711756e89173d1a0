"""The constants of a kind as a fit sees them: points of a unit cube, read off the fields of emulator/tuning.py."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...emulator.spec import CardSpec
from ...emulator.tuning import Tuning
from .tables import Floats

KINDS_OF_OPS = {
    "gemm": "matmul",
    "moe": "grouped",
    "rowwise": "vector",
    "prefill": "prefill",
    "decode": "decode",
    "all_reduce": "collective",
    "all_gather": "collective",
    "reduce_scatter": "collective",
    "all_to_all": "collective",
}  # which constants a measured operation tells of


class Parameter(NamedTuple):
    """One constant: its bounds, and whether it is searched by its logarithm."""

    name: str
    low: float
    high: float
    is_log: bool

    def value(self, place: float) -> float:
        """The constant at a place in [0, 1]."""
        place = min(1.0, max(0.0, place))
        if self.is_log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)

    def place(self, value: float) -> float:
        """Where in [0, 1] a value of the constant lies."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def parameters_of(kind: str) -> tuple[Parameter, ...]:
    """The constants of a kind that have bounds on both sides, in the order of their fields."""
    part: Any = Tuning.model_fields[kind].annotation
    found = []
    for name, field in part.model_fields.items():
        bounds = {type(bound).__name__: bound for bound in field.metadata}
        if field.annotation is float and "Ge" in bounds and "Le" in bounds:
            extra = field.json_schema_extra
            is_log = isinstance(extra, dict) and bool(extra.get("log"))
            found.append(Parameter(name, float(bounds["Ge"].ge), float(bounds["Le"].le), is_log))
    return tuple(found)


def places_of(card: CardSpec, kind: str) -> Floats:
    """Where the card's constants of a kind lie: float64 [parameters]."""
    part = getattr(card.tuning, kind)
    return np.array([p.place(getattr(part, p.name)) for p in parameters_of(kind)])


def tuned(card: CardSpec, kind: str, places: Floats) -> CardSpec:
    """The card with the constants of a kind at these places."""
    values = {p.name: p.value(float(x)) for p, x in zip(parameters_of(kind), places, strict=True)}
    part = getattr(card.tuning, kind).model_copy(update=values)
    return with_fields(card, tuning=card.tuning.model_copy(update={kind: part}))


def with_fields(card: CardSpec, **fields: object) -> CardSpec:
    """The card with other values of some fields, unchecked (no copy: a card remembers its fingerprint)."""
    held = {name: getattr(card, name) for name in CardSpec.model_fields}
    return CardSpec.model_construct(**{**held, **fields})
