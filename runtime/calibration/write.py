"""Writing what a calibration gives: the card's file and what stands beside it, or a folder of tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ...emulator.calibration_file import beside, digest_of_rows, document_of
from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError
from ..files import check_outputs, write_file
from .calibrate import Calibrated
from .card_file import card_yaml
from .parameters import with_fields


def check_card_file(output: str) -> None:
    """Refuse, before the work, a card file that could not be written or would not be read as one."""
    if Path(output).suffix.lower() not in (".yaml", ".yml"):
        raise ConfigError(f"-o {output}: a card's file must end in .yaml")
    check_outputs(None, output)


def write_card(output: str, card: CardSpec) -> None:
    """A card without a calibration of its own, as a file."""
    text = card_yaml(card)
    write_file(output, lambda stream: stream.write(text.encode()))


def write_calibrated(output: str, found: Calibrated) -> None:
    """The card's file, and beside it the rows that were seen and what was learned of them."""
    assert found.card.calibration is not None
    path = Path(output)
    told = {"beside": f"{path.stem}.calibration.json", "seen": digest_of_rows(found.row_hashes)}
    calibration = found.card.calibration.model_copy(update=told)
    learned = {kind: told.correction for kind, told in calibration.kinds.items() if told.correction is not None}
    content = document_of(found.row_hashes, learned)
    write_file(str(beside(path, calibration)), lambda stream: stream.write(content))
    write_card(output, with_fields(found.card, calibration=calibration))


def write_tables(output: str, card: CardSpec, tables: Mapping[str, str]) -> tuple[str, ...]:
    """Tables as text by file name, into a folder of `output` that is named after the card; returns the files' names."""
    folder = Path(output) / card.name.replace("-", "_")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {str(folder)!r}: {error.strerror}") from None
    for name in tables:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} is there already, and may hold times; give another folder")
    for name, text in tables.items():
        write_file(str(folder / name), partial(_write, text))
    return tuple(str(folder / name) for name in tables)


def _write(text: str, stream: BinaryIO) -> None:
    stream.write(text.encode())
