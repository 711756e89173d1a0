"""Fields: a config.json read key by key, so that a key nobody asked for is known and refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..isa.errors import ConfigError, UnsupportedError

LARGEST_SIZE = 2**31 - 1  # no published dimension comes near; a larger one is a damaged file
REQUIRED = object()


class Fields:
    """The keys of one config.json, with the checks every one of them gets.

    Each read is remembered in `resolved` at the value that counts. `refuse_the_rest` then raises for what is left: the
    keys a family reads are its allow-list, and there is no second list to keep in step. `where` (a file) and the key
    stand in every error.
    """

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where
        self.resolved: dict[str, Any] = {}
        self.assumed: list[str] = []
        self._seen: set[str] = set()
        self._defaults: dict[str, Any] = {}

    def fill(self, **defaults: Any) -> None:
        """Let published defaults stand for keys that the file leaves out, and remember that they do."""
        for key, value in defaults.items():
            self.assume(key, value)
        self._defaults |= defaults

    def fault(self, key: str, wanted: str) -> ConfigError:
        """The error for a key whose value is wrong."""
        return ConfigError(f"{self.where}: {key} is {short(self.raw.get(key))}; it must be {wanted}")

    def take(self, key: str, default: Any = REQUIRED, *, record: bool = True) -> Any:
        """The value as it stands, or `default` when absent; ConfigError when absent and required."""
        self._seen.add(key)
        default = self._defaults.get(key, default)
        if key not in self.raw and default is REQUIRED:
            raise ConfigError(f"{self.where}: {key} is missing; it has no safe default, so add it")
        value = self.raw.get(key, default)
        if record:
            self.resolved[key] = value
        return value

    def assume(self, key: str, value: Any) -> None:
        """Remember that `key` was not in the file and that the family's published default stands for it."""
        if key not in self.raw:
            self.assumed.append(f"{key}={value} (not in {self.where}; the default of transformers)")

    def integer(self, key: str, default: Any = REQUIRED, minimum: int = 1, maximum: int = LARGEST_SIZE) -> int:
        """A whole number within bounds."""
        value = self.take(key, default)
        if not _is_int(value) or not minimum <= value <= maximum:
            raise self.fault(key, f"a whole number from {minimum} to {maximum}")
        return int(value)

    def integer_or_none(self, key: str, default: int | None = None, minimum: int = 1) -> int | None:
        """A whole number, or None when the key is absent or null."""
        if self.take(key, default) is None:
            return None
        return self.integer(key, default, minimum)

    def number(self, key: str, default: Any = REQUIRED, minimum: float = 0.0, maximum: float = math.inf) -> float:
        """A finite number above `minimum` and at most `maximum`."""
        value = self.take(key, default)
        if not is_number(value) or not minimum < value <= maximum:
            most = f" and at most {maximum:g}" if maximum < math.inf else ""
            raise self.fault(key, f"a finite number above {minimum:g}{most}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false; absent or null means `default`."""
        value = self.take(key, None)
        value = default if value is None else value
        self.resolved[key] = value
        if not isinstance(value, bool):
            raise self.fault(key, "true or false")
        return value

    def text(self, key: str, default: Any = REQUIRED) -> str:
        """A string."""
        value = self.take(key, default)
        if not isinstance(value, str):
            raise self.fault(key, "a string")
        return value

    def neutral(self, key: str, *harmless: Any) -> None:
        """Accept a key only at values that change nothing; any other is a mathematics this family lacks."""
        if key in self.raw and not any(_same(self.raw[key], value) for value in harmless):
            allowed = " or ".join(short(value) for value in harmless)
            raise UnsupportedError(
                f"{self.where}: {key}={short(self.raw[key])} is not supported; only {allowed} (or no such key) is"
            )
        self._seen.add(key)

    def refuse_the_rest(self, harmless: frozenset[str], known: str) -> None:
        """Raise UnsupportedError for the keys that nothing read and that are not known to leave the numbers alone."""
        left = [key for key in self.raw if key not in self._seen and key not in harmless]
        if left:
            listed = ", ".join(f"{key}={short(self.raw[key])}" for key in left[:8])
            raise UnsupportedError(
                f"{self.where}: {known} does not know {listed}; such a key may change the mathematics, so it is not "
                "ignored. Remove it if it has no effect"
            )


def short(value: Any) -> str:
    """A value for an error message, cut to a line."""
    return cut(repr(value))


def cut(text: str) -> str:
    """A text for an error message, cut to a line."""
    return text if len(text) <= 80 else text[:77] + "..."


def is_number(value: Any) -> bool:
    """A finite int or float, and not a bool (JSON's true is not a number)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def numbers(value: Any) -> tuple[float, ...] | None:
    """A list of finite numbers as a tuple, or None when it is anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(is_number(item) for item in value):
        return None
    return tuple(float(item) for item in value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
