"""Fits what frameworks add to the kernels of a step to measured servers, and says how far it misses groups held out.

    python benchmarks/fit_serving.py FILE [--card CARD.yaml]

FILE is a table of servers as `siltwin fidelity` reads it. Each row's decode step and the prompts of its peers are
emulated on the card of its system: the shipped one, or as `siltwin fidelity --card` takes it (a calibrated card for its
own device, and its constants on the data sheets of others).
What is fitted: the host's time of a step and of each of its sequences, by framework, and the share of the peers'
prompts that falls to a token, by framework and precision. Groups are (model, framework, precision, cards): each third
of them is predicted by constants fitted to the other two, and at last the constants of all rows are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from siltwin.emulator.spec import CardSpec, load_card
from siltwin.isa.errors import ConfigError
from siltwin.runtime.fidelity.cards import stand_in
from siltwin.runtime.fidelity.frameworks import FRAMEWORKS
from siltwin.runtime.fidelity.serving import Tpot, emulated_tpots
from siltwin.runtime.fidelity.serving_rows import ServingRow, measured_serving

Array = np.ndarray[Any, np.dtype[Any]]
FOLDS = 3
ROUNDS = 30
MS_PER_S = 1000.0
LEAST_PEERS = 0.1


class Known(NamedTuple):
    """A row with its emulated parts, and the columns that constants multiply: [all constants], relative to its time."""

    row: ServingRow
    tpot: Tpot
    left: float
    columns: Array


def card_of(system: str, asked: CardSpec | None) -> CardSpec:
    """The card that stands for a system."""
    found = stand_in(system.replace("_", "-"), asked)
    if found is None:
        raise ConfigError(f"no card stands for {system}")
    return found.card


def constants(rows: Sequence[ServingRow]) -> list[str]:
    """Names of the constants: two of every framework, one of every framework and precision."""
    kinds = sorted({(row.backend, row.quant) for row in rows})
    return [
        *(f"{name} step_s" for name in FRAMEWORKS),
        *(f"{name} sequence_s" for name in FRAMEWORKS),
        *(f"{backend} {quant} peers" for backend, quant in kinds),
    ]


def known(row: ServingRow, tpot: Tpot, names: Sequence[str]) -> Known:
    """What is left of a row beside its decode step, and what each constant adds to it."""
    whole = tpot.prompts_ms / row.peers
    adds = {
        f"{row.backend} step_s": MS_PER_S,
        f"{row.backend} sequence_s": MS_PER_S * tpot.running,
        f"{row.backend} {row.quant} peers": whole,
    }
    columns = np.array([adds.get(name, 0.0) for name in names])
    return Known(row, tpot, (row.tpot_ms - tpot.decode_ms) / row.tpot_ms, columns / row.tpot_ms)


def fitted(rows: Sequence[Known], names: Sequence[str]) -> Array:
    """Constants of least mean relative error, by least squares with weights that are renewed."""
    columns, left = np.array([row.columns for row in rows]), np.array([row.left for row in rows])
    low = [LEAST_PEERS if name.endswith("peers") else 0.0 for name in names]
    high = [1.0 if name.endswith("peers") else np.inf for name in names]
    weights = np.ones(len(rows))
    for _ in range(ROUNDS):
        found = lsq_linear(columns * weights[:, None], left * weights, (low, high)).x
        weights = 1 / np.sqrt(np.maximum(errors(rows, found), 0.01))
    return np.array(found)


def errors(rows: Sequence[Known], values: Array) -> Array:
    """Relative errors [rows] by some constants."""
    return np.array([abs(row.left - row.columns @ values) for row in rows])


def folds_of(rows: Sequence[ServingRow]) -> Array:
    """Which third each row's group is in [rows]: groups of one framework and precision are dealt to all of them."""
    groups = sorted({(row.backend, row.quant, row.model_path, row.system, row.tp) for row in rows})
    place = {group: sum(other[:2] == group[:2] for other in groups[:at]) for at, group in enumerate(groups)}
    return np.array([place[row.backend, row.quant, row.model_path, row.system, row.tp] % FOLDS for row in rows])


def told(name: str, found: Array) -> str:
    """Errors as a line."""
    return f"{name:<44} {len(found):>5} rows  mean {found.mean():6.1%}  median {np.median(found):6.1%}"


def main() -> None:
    """Emulate every row, fit, and print errors and constants."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--card", type=load_card)
    asked = parser.parse_args()
    rows = measured_serving(asked.file, [])
    names, cards = constants(rows), lru_cache(partial(card_of, asked=asked.card))
    all_ = [known(row, tpot, names) for row, tpot in emulated_tpots(rows, cards) if tpot is not None]
    shipped = np.array([abs(one.tpot.in_all_ms / one.row.tpot_ms - 1) for one in all_])
    print(told("with the constants that ship", shipped))
    held = np.empty(len(all_))
    folds = folds_of([one.row for one in all_])
    for fold in range(FOLDS):
        values = fitted([one for one, own in zip(all_, folds, strict=True) if own != fold], names)
        held[folds == fold] = errors([one for one, own in zip(all_, folds, strict=True) if own == fold], values)
    print(told("groups held out", held))
    for kind in sorted({(one.row.backend, one.row.quant, one.row.system) for one in all_}):
        here = [(one.row.backend, one.row.quant, one.row.system) == kind for one in all_]
        print(told("  " + " ".join(kind), held[here]))
    values = fitted(all_, names)
    print(told("all rows", errors(all_, values)))
    for name, value in zip(names, values, strict=True):
        print(f"  {name:<28} {value:.3g}")


if __name__ == "__main__":
    main()
