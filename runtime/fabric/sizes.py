"""Message sizes as users write them: one, a list, or a range that grows by a factor."""

from __future__ import annotations

import re

from ...isa.errors import ConfigError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\Z", re.ASCII)
UNITS = {"": 1, "b": 1}
UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
UNITS |= {f"{prefix}{end}": 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("ib", "i", "")}
FORM = "write 1KiB:1GiB (a range), 64MiB, or 1KiB,1MiB"
MOST_BYTES = 1 << 44
MOST_SIZES = 256


def parse_size(text: str, option: str = "--sizes", form: str = FORM) -> int:
    """`64MiB` in bytes: KiB, MiB, GiB and TiB are powers of 1024, as are K, M and G; KB, MB and GB of 1000.

    ConfigError for what is no whole number of bytes from 1 to 16 TiB.
    """
    found = SIZE.match(text.strip())
    unit = UNITS.get(found[2].lower()) if found else None
    if not found or unit is None:
        raise ConfigError(f"{option}: {text.strip()!r} is no size; {form}, in B, KiB, MiB, GiB, KB, MB or GB")
    whole, _, fraction = found[1].partition(".")
    num_bytes, rest = divmod(int(whole + fraction) * unit, int(10 ** len(fraction)))
    if rest or not 1 <= num_bytes <= MOST_BYTES:
        raise ConfigError(f"{option}: {text.strip()!r} must be a whole number of bytes from 1 to {MOST_BYTES}; {form}")
    return num_bytes


def parse_sizes(text: str, factor: float = 2.0) -> tuple[int, ...]:
    """The sizes that `text` lists, ascending and each once; `LOW:HIGH` grows by `factor` and ends at or below HIGH.

    ConfigError for an empty list, a range that runs backwards, a factor not above 1, or more than 256 sizes.
    """
    if not 1 < factor <= 1 << 20:
        raise ConfigError(f"--factor={factor:g} must be above 1 (2 doubles the size from row to row) and at most 2**20")
    sizes: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        low, colon, high = part.partition(":")
        sizes |= set(_range(part, parse_size(low), parse_size(high), factor)) if colon else {parse_size(part)}
    if not sizes:
        raise ConfigError(f"--sizes {text!r} names no size; {FORM}")
    if len(sizes) > MOST_SIZES:
        raise ConfigError(f"--sizes {text!r} are {len(sizes)} sizes; at most {MOST_SIZES}: raise --factor")
    return tuple(sorted(sizes))


def _range(part: str, low: int, high: int, factor: float) -> list[int]:
    if low > high:
        raise ConfigError(f"--sizes {part!r} runs from {low} down to {high} bytes; write the smaller one first")
    sizes, size = [low], low
    while (size := max(size + 1, int(size * factor))) <= high:
        sizes.append(size)
        if len(sizes) > MOST_SIZES:
            raise ConfigError(f"--sizes {part!r} with --factor {factor:g} is more than {MOST_SIZES} sizes; raise it")
    return sizes
