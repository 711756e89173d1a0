"""What a comparison found: rows predicted beside rows measured, with their scores; its JSON and nothing of its look."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from ...isa.instruction import Array
from .scores import Score, score
from .sizes import SIZES

JSON_KEYS = ("n", "mean_ape", "median_ape", "p90_ape", "within_5pct", "time_weighted_ape")


@dataclass(frozen=True)
class Comparison:
    """One subset of one card: times in picoseconds [rows], their weights [rows] and the columns that say what ran.

    `rests_on` says what the card's constants are: its data sheet, a fit, or another card's fit. `floor` is the mean
    relative spread of keys that were measured more than once, None where none was.
    """

    card: str
    op: str
    subset: str
    library: str
    rests_on: str
    columns: Mapping[str, Array]
    predicted_ps: Array
    measured_ps: Array
    weights: Array
    floor: float | None

    @cached_property
    def score(self) -> Score:
        """The errors of all its rows."""
        return score(self.predicted_ps, self.measured_ps, self.weights)

    def by_size(self) -> Iterator[tuple[str, Score]]:
        """(rung, score) from small to large; rungs that hold no row are left out."""
        for name, mask in SIZES[self.op].rungs(self.columns):
            if mask.any():
                yield name, score(self.predicted_ps[mask], self.measured_ps[mask], self.weights[mask])


@dataclass(frozen=True)
class FidelityReport:
    """All comparisons in order of card and subset, and what a reader must know of rows that were left out."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """The scores as a JSON list, errors as fractions."""
        entries = []
        for found in self.comparisons:
            scores = asdict(found.score)
            named = {"card": found.card, "op": found.op, "subset": found.subset}
            entries.append({**named, **{key: scores[key] for key in JSON_KEYS}})
        return json.dumps(entries, indent=1) + "\n"
