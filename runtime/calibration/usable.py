"""Which rows a card can be fitted to: those of its own device, of one library, and of types that it computes in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError
from ..fidelity.subsets import SUBSETS
from .parameters import KINDS_OF_OPS
from .plausible import check_plausible
from .schema import TYPE_COLUMNS, operand_type
from .tables import Array, MeasuredTable, names_of_cards


def tables_of(card: CardSpec, tables: Sequence[MeasuredTable], library: str) -> tuple[list[MeasuredTable], list[str]]:
    """The tables, and in them the rows, that tell of a card with one library's attention; and what was left out."""
    notes: list[str] = []
    kept = []
    for table in _own(card, tables):
        if table.op not in KINDS_OF_OPS:
            notes.append(f"{table.path.name}: {table.op} is not fitted")
        elif table.library not in ("", library):
            notes.append(f"{table.path.name}: times kernels of {table.library}, not of {library}")
        else:
            usable = computed(card, table)
            if not usable.all():
                notes.append(f"{table.path.name}: {int((~usable).sum())} rows of types that {card.name} lacks left out")
            check_plausible(table, card)
            notes += table.told
            if usable.any():
                kept.append(table.take(usable))
    return kept, notes


def _own(card: CardSpec, tables: Sequence[MeasuredTable]) -> list[MeasuredTable]:
    """The tables of this card: by its names, or all where they lie in one folder that is named after no card."""
    own = [table for table in tables if table.card_name in (card.name, *card.aliases)]
    devices = list(dict.fromkeys(table.card_name for table in tables))
    if own or (len(devices) == 1 and devices[0] not in names_of_cards()):
        return own or list(tables)
    raise ConfigError(
        f"no table is of {card.name}: there are those of {', '.join(devices)}; name the folder after the card"
    )


def computed(card: CardSpec, table: MeasuredTable) -> Array:
    """True for rows whose products the card's tensor unit takes: bool [rows]."""
    if table.op not in TYPE_COLUMNS:
        return np.ones(len(table), bool)
    spelled = table.columns[TYPE_COLUMNS[table.op]]
    kinds = {name: operand_type(name) for name in dict.fromkeys(spelled.tolist())}
    taken = [name for name, kind in kinds.items() if kind is not None and kind.name in card.tensor.rate]
    mask: Array = np.isin(spelled, taken)
    return mask


def relevant(table: MeasuredTable) -> Array:
    """True for the rows that models of today mostly ask, which a fit looks at first: bool [rows]."""
    subset = next((subset for subset in SUBSETS if subset.op == table.op), None)
    return np.ones(len(table), bool) if subset is None else subset.keeps(table.columns)
