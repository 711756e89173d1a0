"""Questions: the sites of a program that cost the same whatever is bound, told apart once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..isa.instruction import Instruction, TensorType
from ..isa.operands import Ref
from .calendar.solver import Ints
from .site import EXTENTS, Site


class Question(NamedTuple):
    """What is costed once a binding: a site that stands for all that ask the same.

    Sites of one `form` (a number) hold instructions that are alike up to the names of their buffers, so equal values of
    the extents that they name give them equal Work. Those of one question name the same extents of the program, in one
    queue.
    """

    form: int
    site: Site


def questions_of(sites: Sequence[Site]) -> tuple[tuple[Question, ...], Ints]:
    """The questions of a program's sites in order of the first that asks each, and the question of every site."""
    forms: dict[Hashable, int] = {}
    places: dict[tuple[str, int], int] = {}
    numbers: dict[tuple[int, str, tuple[str, ...]], int] = {}
    questions: list[Question] = []
    asked = []
    types = _Types()
    for site in sites:
        place = (site.block.name, site.position)
        form = places.get(place)
        if form is None:
            key = types.form(site.instruction, site.block.types)
            form = places[place] = forms.setdefault(key, len(forms))
        key = (form, site.queue, _named(site) if site.extents else ())
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(questions)
            questions.append(Question(form, site))
        asked.append(number)
    return tuple(questions), np.array(asked, np.int64)


def _named(site: Site) -> tuple[str, ...]:
    """The program's extents behind those that a site's instruction names."""
    instruction, extents = site.instruction, site.extents
    names = [getattr(instruction, name) for name, kind in instruction.operands.items() if kind.names in EXTENTS]
    return tuple([extents.get(name, name) for name in names])


class _Types:
    """Operand types as numbers: equal types have equal ones, and each object is compared once."""

    def __init__(self) -> None:
        self._by_object: dict[int, int] = {}
        self._by_value: dict[TensorType, int] = {}

    def _number(self, kind: TensorType) -> int:
        number = self._by_object.get(id(kind))
        if number is None:
            number = self._by_value.setdefault(kind, len(self._by_value))
            self._by_object[id(kind)] = number
        return number

    def form(self, instruction: Instruction, types: Mapping[str, TensorType]) -> Hashable:
        """What tells an instruction's Work from that of others, the names of its buffers aside.

        That is its opcode, its immediates and names, and of each buffer its type, the columns that are taken, and which
        operands lie in the same one.
        """
        places: dict[str, int] = {}
        parts: list[Hashable] = [instruction.opcode]
        for name in instruction.operands:
            value = getattr(instruction, name)
            if isinstance(value, Ref):
                place = places.setdefault(value.buffer, len(places))
                parts.append((place, self._number(types[value.buffer]), value.start, value.size, value.at))
            else:
                parts.append(value)
        return tuple(parts)
