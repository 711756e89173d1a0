"""What stands beside a calibrated card's file: hashes of the rows that its fit saw, and what was learned of kinds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..isa.errors import ConfigError
from .calibrated import Calibration
from .grid import Grid
from .trees import Trees, digest_of

MOST_BYTES = 1 << 28
Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def beside(card_file: Path, calibration: Calibration) -> Path:
    """The file that goes with a card's file."""
    return card_file.parent / calibration.beside


def document_of(hashes: Hashes, learned: Mapping[str, Trees | Grid]) -> bytes:
    """The bytes of such a file."""
    kinds = {kind: {"form": type(one).__name__.lower(), **one.document()} for kind, one in learned.items()}
    document = {"rows": [f"{row:016x}" for row in hashes.tolist()], "learned": kinds}
    return json.dumps(document, indent=None, separators=(",", ":")).encode()


def digest_of_rows(hashes: Hashes) -> str:
    """A digest of the set of rows that a fit saw."""
    return hashlib.sha256(np.unique(hashes).astype("<u8").tobytes()).hexdigest()[:16]


def read_rows(card_file: Path, calibration: Calibration) -> Hashes:
    """The hashes of all rows that the fit saw, ascending; ConfigError where they cannot be read or are another's."""
    path = beside(card_file, calibration)
    try:
        found = np.unique(np.array([int(row, 16) for row in _document(path)["rows"]], np.uint64))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: its rows are no hashes: {error}") from None
    if digest_of_rows(found) != calibration.seen:
        raise ConfigError(f"{path}: its rows are not those that {card_file} was fitted to; calibrate the card again")
    return found


def with_learned(calibration: Calibration, card_file: Path) -> Calibration:
    """The calibration with what was learned, read from beside the card's file; ConfigError where that is another's."""
    path = beside(card_file, calibration)
    if not any(told.learned for told in calibration.kinds.values()):
        return calibration
    held, kinds = _document(path)["learned"], dict(calibration.kinds)
    for kind, told in kinds.items():
        if told.learned:
            document = dict(held[kind]) if isinstance(held, dict) and isinstance(held.get(kind), dict) else {}
            form = Grid if document.pop("form", None) == "grid" else Trees
            if digest_of(document) != told.learned:
                raise ConfigError(f"{path}: its {kind} was not made with {card_file}; calibrate the card again")
            kinds[kind] = told.model_copy(update={"correction": form.of_document(document, path)})
    return calibration.model_copy(update={"kinds": kinds})


def _document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path}: is larger than {MOST_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; it goes with the calibrated card beside it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    if not isinstance(document, dict) or not {"rows", "learned"} <= document.keys():
        raise ConfigError(f"{path}: must hold rows and what was learned; calibrate the card again")
    return document
