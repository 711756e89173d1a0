"""Records of a CSV file of measurements, with the place of each for errors."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...isa.errors import ConfigError


def records(path: Path, wanted: Sequence[str], what: str) -> Iterator[tuple[dict[str, str], str]]:
    """(the record, its file and line) of every row of a CSV file (also .gz) that has the columns `wanted` of `what`.

    ConfigError names a file that cannot be read, or the column that it lacks.
    """
    try:
        text = "utf-8"
        with (
            gzip.open(path, "rt", encoding=text)
            if path.suffix == ".gz"
            else path.open(newline="", encoding=text) as file
        ):
            reader = csv.DictReader(file)
            missing = [name for name in wanted if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f"{path}: no column {missing[0]!r}; {what} has {', '.join(wanted)}")
            for record in reader:
                yield record, f"{path}:{reader.line_num}"
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ConfigError(f"{path}: {error}") from error
