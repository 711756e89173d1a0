"""Where a card's numbers come from, and how a number, its unit and its evidence are read from a card file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ..interconnect.evidence import EvidenceKind


class Evidence(BaseModel):
    """What a number rests on: its kind, the source in words (for `assumed`, the reason), and a relative error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evidence: EvidenceKind
    source: Annotated[str, Field(min_length=1)]
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


USER_SET = Evidence(evidence="assumed", source="set by the user")


_BINARY_AND_DECIMAL = {
    "B": 1,
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("kMGT", start=1)},
    "KB": 1000,
}
SUFFIXES: dict[str, dict[str, int]] = {
    "count": {},
    "bytes": _BINARY_AND_DECIMAL,
    "bytes a second": {f"{suffix}/s": factor for suffix, factor in _BINARY_AND_DECIMAL.items()},
    "hertz": {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9},
    "picoseconds": {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12},
}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)")


def parse_number(value: Any, unit: str) -> int | float:
    """A number from a number or from text such as "3.2e12", "64GiB", "1.8 GHz" or "2.5us".

    `unit` is a key of SUFFIXES and says which suffixes are legal. YAML itself reads "1.6e12" as text, so this is also
    how plain numbers of a card file arrive. Raises ValueError, which pydantic turns into the field's error.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    if isinstance(value, str):
        value = _parse_text(value, unit)
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return int(value) if value == int(value) else value


def _parse_text(text: str, unit: str) -> int | float:
    suffixes = SUFFIXES[unit]
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] and match[2] not in suffixes):
        legal = f" with an optional suffix of {', '.join(suffixes)}" if suffixes else ""
        raise ValueError(f"{text!r} is not a number of {unit}; write a number{legal}")
    digits = match[1].replace("_", "")
    if not math.isfinite(float(digits)):
        raise ValueError(f"{text!r} is not a finite number")
    number = Decimal(digits) * suffixes.get(match[2], 1)  # exact, where 2.039 * 10**12 in floats is not whole
    return int(number) if number == number.to_integral_value() else float(number)


def _reader(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_number(value, unit))


Count = Annotated[int, _reader("count"), Field(ge=0, le=1 << 53)]
Positive = Annotated[int, _reader("count"), Field(gt=0, le=1 << 53)]
Bytes = Annotated[int, _reader("bytes"), Field(ge=0, le=1 << 60)]
BytesPerSecond = Annotated[int, _reader("bytes a second"), Field(gt=0, le=1 << 60)]
Hertz = Annotated[int, _reader("hertz"), Field(gt=0, le=10**12)]
Picoseconds = Annotated[int, _reader("picoseconds"), Field(ge=0, le=10**15)]
Fraction = Annotated[float, _reader("count"), Field(gt=0, le=1)]
Rate = Annotated[float, _reader("count"), Field(gt=0, le=1 << 20)]
Amount = Annotated[float, _reader("count"), Field(ge=0)]


def is_marked(node: Any) -> bool:
    """Whether a node of a card tree is a value with its evidence, rather than a section."""
    return isinstance(node, dict) and "value" in node and bool({"evidence", "source"} & node.keys())


def split_evidence(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plain values of a card tree, and the raw evidence of each marked node by dotted path.

    A marked node is a mapping with `value` and at least one of `evidence` and `source`; it may hold one number, a
    list or a mapping, and then speaks for everything in it.
    """
    found: dict[str, Any] = {}

    def plain(node: Any, path: str) -> Any:
        if is_marked(node):
            found[path] = {key: entry for key, entry in node.items() if key != "value"}
            node = node["value"]
        if isinstance(node, dict):
            return {key: plain(entry, f"{path}.{key}" if path else str(key)) for key, entry in node.items()}
        if isinstance(node, list):
            return [plain(entry, f"{path}.{index}") for index, entry in enumerate(node)]
        return node

    return {key: plain(entry, str(key)) for key, entry in tree.items()}, found
