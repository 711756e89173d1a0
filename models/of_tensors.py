"""OfTensors: something of every tensor of a model by name, that of all experts of a layer kept once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]*)(?![0-9])")  # as str.format writes one


@dataclass(frozen=True)
class _Numbered(Generic[T]):
    """What tensors are that each of `count` experts has under its number: by name, with {} for the number."""

    count: int
    values: Mapping[str, T]


class Place(NamedTuple):
    """What the name of an expert's tensor is made of."""

    pattern: str
    expert: int


class OfTensors(Mapping[str, T]):
    """Values by name, in the order in which a model reads its tensors.

    Built as a dict is, by assignment; `add` takes what all experts of a layer have alike, so that a quarter of a
    million names cost what their patterns do.
    """

    def __init__(self, values: Mapping[str, T] | None = None) -> None:
        self._parts: dict[str, T | _Numbered[T]] = dict(values or {})
        self._owners: dict[str, _Numbered[T]] = {}

    def __setitem__(self, name: str, value: T) -> None:
        self._parts[name] = value

    def add(self, count: int, values: Mapping[str, T]) -> None:
        """Add the tensors of `count` experts, their names with {} for the number, after all others so far."""
        numbered = _Numbered(count, values)
        if values:
            self._parts[next(iter(values))] = numbered
            self._owners |= dict.fromkeys(values, numbered)

    def update(self, values: Mapping[str, T]) -> None:
        """Add tensors by name."""
        self._parts |= values

    def place(self, name: str) -> Place | None:
        """The pattern and expert of a name; None for one that no expert's number is part of."""
        for found in _NUMBER.finditer(name) if self._owners else ():
            pattern = f"{name[: found.start()]}{{}}{name[found.end() :]}"
            owner = self._owners.get(pattern)
            if owner is not None and int(found[0]) < owner.count:
                return Place(pattern, int(found[0]))
        return None

    def weighed(self) -> Iterator[tuple[T, int]]:
        """(value, how many tensors have it), of equal experts together."""
        for part in self._parts.values():
            if isinstance(part, _Numbered):
                yield from ((value, part.count) for value in part.values.values())
            else:
                yield part, 1

    def select(
        self,
        make: Callable[[str, T], U | None],
        numbers: Callable[[str, int], Iterable[int]] = lambda pattern, count: range(min(count, 1)),
    ) -> OfTensors[U]:
        """What `make` gives of every tensor; None leaves it out.

        Of `count` experts' tensors it is asked for some `numbers` first, those that tell whether it gives all the same.
        """
        found: OfTensors[U] = OfTensors()
        for name, part in self._parts.items():
            if not isinstance(part, _Numbered):
                if (made := make(name, part)) is not None:
                    found[name] = made
                continue
            answers = {
                pattern: [make(pattern.format(number), value) for number in numbers(pattern, part.count)]
                for pattern, value in part.values.items()
            }
            if all(answer == own[0] for own in answers.values() for answer in own):
                found.add(
                    part.count, {pattern: own[0] for pattern, own in answers.items() if own and own[0] is not None}
                )
                continue
            each = ((own, make(own, value)) for own, value in _each(part))
            found.update({own: made for own, made in each if made is not None})
        return found

    def __getitem__(self, name: str) -> T:
        part = self._parts.get(name)
        if part is not None and not isinstance(part, _Numbered):
            return part
        place = self.place(name)
        if place is None:
            raise KeyError(name)
        return self._owners[place.pattern].values[place.pattern]

    def __iter__(self) -> Iterator[str]:
        for name, part in self._parts.items():
            if isinstance(part, _Numbered):
                yield from (own for own, _ in _each(part))
            else:
                yield name

    def __len__(self) -> int:
        return sum(count for _, count in self.weighed())


def _each(part: _Numbered[T]) -> Iterator[tuple[str, T]]:
    """Names and values, one expert after the other."""
    return ((pattern.format(expert), value) for expert in range(part.count) for pattern, value in part.values.items())
