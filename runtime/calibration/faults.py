"""How faults of a measured table are told: by file, line and reason."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...isa.errors import ConfigError

SHOWN = 3  # faults named in an error


def refuse(path: Path, faults: Iterable[tuple[int, str]]) -> None:
    """ConfigError that names the file, the first faulty lines with what is wrong, and how many there are."""
    found = list(faults)
    if found:
        shown = "; ".join(f"line {line}: {why}" for line, why in found[:SHOWN])
        more = f"; and {len(found) - SHOWN} more lines" if len(found) > SHOWN else ""
        raise ConfigError(f"{path}: {shown}{more}")
