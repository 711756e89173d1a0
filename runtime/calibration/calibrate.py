"""Calibration: from a card and measured tables to the card with fitted constants, and how well they fit."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...emulator.calibrated import Calibration, Fit, KindCalibration, Sizes, sizes_of
from ...emulator.evidence import Evidence
from ...emulator.spec import CardSpec
from .fit import Sample, fit
from .judge import NOTHING, Judge, Judged
from .learn import Learned, learn, relearn
from .parameters import KINDS_OF_OPS, with_fields
from .points import representative
from .predict import Collectives, Instructions, predictor_of
from .splits import groups_of, sampled, training_rows
from .tables import Array, MeasuredTable
from .usable import relevant, tables_of

RELEVANT_ROWS, OTHER_ROWS = 900, 600  # of a table, that a physics fit looks at
OTHER_WEIGHT = 0.1  # of a row that is none of the relevant ones
JUDGED_ROWS = 2000  # of a table's held-out rows
FEWEST = 30  # points, below which there is more to gain by measuring than by fitting
POINTS_PRIOR, ROWS_PRIOR = 3.0, 0.3  # how many rows a constant's default weighs


@dataclass(frozen=True)
class Ask:
    """What a calibration is asked: how far to fit, from how many points a kind, and which library's attention.

    With `all_rows`, what was learned, its errors known, is learned once more of every row, the held-out ones too.
    """

    fit: Fit = "physics"
    points: int = FEWEST
    seed: int = 0
    library: str = ""
    all_rows: bool = True


class KindResult(NamedTuple):
    """What was found of one kind: its errors on rows that were not seen, before and after."""

    kind: str
    used: int
    before: Judged
    after: Judged


class Calibrated(NamedTuple):
    """The calibrated card, what was found by kind, hashes of the rows of all groups it saw, and notes for the user."""

    card: CardSpec
    kinds: tuple[KindResult, ...]
    row_hashes: Array
    notes: tuple[str, ...]


def calibrate(
    card: CardSpec, tables: Sequence[MeasuredTable], ask: Ask, say: Callable[[str], None] = lambda text: None
) -> Calibrated:
    """Fit every kind that the tables tell of; kinds are independent of each other.

    Constants are fitted to rows of three quarters of the groups of like shapes; errors are those on the other quarter.
    """
    library = ask.library or card.kernels
    own, notes = tables_of(card, tables, library)
    kinds, results, seen = {}, [], []
    evidence = dict(card.evidence)
    for kind in dict.fromkeys(KINDS_OF_OPS[table.op] for table in own):
        say(f"fitting {kind}")
        of_kind = [table for table in own if KINDS_OF_OPS[table.op] == kind]
        card, told, result, hashes = _calibrate_kind(card, kind, of_kind, ask, library)
        kinds[kind] = told
        results.append(result)
        seen.append(hashes)
        source = f"siltwin calibrate: {told.fit} fit of {told.rows} rows of {told.library or 'any library'}"
        evidence[f"tuning.{kind}"] = Evidence(evidence="calibrated", source=source, error=told.usual.mean)
        notes += _advice(of_kind, kind, result)
    files = {str(table.path): table.path for table in own}
    sources = {f"{path.parent.name}/{path.name}": _digest(path.read_bytes()) for path in files.values()}
    evidence["calibration"] = Evidence(evidence="calibrated", source="siltwin calibrate")
    calibration = Calibration(seed=ask.seed, sources=sources, kinds=kinds)
    whole = with_fields(card, calibration=calibration, evidence=evidence, kernels=library)
    return Calibrated(whole, tuple(results), np.unique(np.concatenate(seen)), tuple(notes))


def _calibrate_kind(
    card: CardSpec, kind: str, tables: list[MeasuredTable], ask: Ask, library: str
) -> tuple[CardSpec, KindCalibration, KindResult, Array]:
    seen = [table.take(training_rows(table, ask.seed)) for table in tables]
    held_out = [table.take(~training_rows(table, ask.seed)) for table in tables]
    judged = [part for table in held_out for part in _parts(table, ask.seed, JUDGED_ROWS, JUDGED_ROWS)]
    chosen = (
        _points(seen, ask)
        if ask.fit == "points"
        else [part for table in seen for part in _fitted_parts(table, ask.seed)]
    )
    prior = POINTS_PRIOR if ask.fit == "points" else ROWS_PRIOR
    fitted = fit(card, kind, [_sample(table) for table in chosen], prior)
    learned = learn(fitted, kind, seen, ask.seed) if ask.fit == "full" else None
    judge = Judge(judged)
    before, after = judge.errors(card), judge.errors(_corrected(fitted, kind, learned))
    if learned is not None:
        chosen = tables if ask.all_rows else seen
        learned = relearn(learned, fitted, kind, chosen, ask.seed) if ask.all_rows else learned
    told = KindCalibration(
        fit=ask.fit if learned is not None or ask.fit != "full" else "physics",
        library=library if any(table.library for table in tables) else "",
        rows=sum(map(len, chosen)),
        errors=after.every,
        usual=after.usual,
        ranges=_ranges(chosen),
        learned=learned.digest if learned is not None else "",
        correction=learned,
    )
    result = KindResult(kind, told.rows, before, after)
    return fitted, told, result, _hashes_of_groups(tables, chosen)


def _hashes_of_groups(tables: list[MeasuredTable], chosen: list[MeasuredTable]) -> Array:
    """Hashes of the chosen rows and all others of their groups: what would be judged too kindly by them."""
    groups = list({group for table in chosen for group in groups_of(table)})
    return np.concatenate([table.row_hashes[np.isin(groups_of(table), groups)] for table in tables])


def _corrected(card: CardSpec, kind: str, learned: Learned | None) -> CardSpec:
    """The card with what was learned of one kind and nothing else calibrated."""
    if learned is None:
        return card
    told = KindCalibration(
        fit="full", library="", rows=0, errors=NOTHING, usual=NOTHING, ranges={}, learned=learned.digest,
        correction=learned,
    )  # fmt: skip
    return with_fields(card, calibration=Calibration(seed=0, sources={}, kinds={kind: told}))


def _points(tables: list[MeasuredTable], ask: Ask) -> list[MeasuredTable]:
    """The points of a kind, shared among its tables by their rows; relevant rows where there are any."""
    pools = [table.take(relevant(table)) if relevant(table).any() else table for table in tables]
    total = sum(map(len, pools))
    counts = [max(1, round(ask.points * len(pool) / total)) for pool in pools if len(pool)]
    return [pool.take(representative(pool, n, ask.seed)) for pool, n in zip(filter(len, pools), counts, strict=True)]


def _fitted_parts(table: MeasuredTable, seed: int) -> list[MeasuredTable]:
    """The rows that a physics fit looks at: many of the relevant ones, and some of all others at little weight."""
    usual, others = _parts(table, seed, RELEVANT_ROWS, OTHER_ROWS)
    return [part for part in (usual, replace(others, weights=OTHER_WEIGHT * others.weights)) if len(part)]


def _parts(table: MeasuredTable, seed: int, usual: int, others: int) -> tuple[MeasuredTable, MeasuredTable]:
    """At most so many of the relevant rows, and of all others."""
    mask = relevant(table)
    return sampled(table.take(mask), usual, seed), sampled(table.take(~mask), others, seed)


def _sample(table: MeasuredTable) -> Sample:
    return Sample(predictor_of(table), table.latency_ps, table.weights)


def _ranges(tables: list[MeasuredTable]) -> dict[str, tuple[float, float]]:
    """The least and greatest of every size that the rows' instructions have."""
    found: dict[str, list[float]] = {}
    for sizes in itertools.chain.from_iterable(map(_sizes, tables)):
        for name, value in sizes.items():
            found.setdefault(name, []).append(value)
    return {name: (min(values), max(values)) for name, values in found.items()}


def _sizes(table: MeasuredTable) -> Iterator[Sizes]:
    predictor = predictor_of(table)
    if isinstance(predictor, Collectives):
        for cards, size in zip(table.columns["num_gpus"].tolist(), predictor.sizes.tolist(), strict=True):
            yield {"cards": cards, "bytes": size}
    elif isinstance(predictor, Instructions):
        for works in predictor.works:
            yield from (sizes for _, sizes in filter(None, map(sizes_of, works)))


def _advice(tables: list[MeasuredTable], kind: str, result: KindResult) -> list[str]:
    if result.used >= FEWEST:
        return []
    ops = ", ".join(dict.fromkeys(table.op for table in tables))
    return [f"{kind}: {result.used} points are few; measure {FEWEST - result.used} more of {ops} (--suggest {FEWEST})"]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
