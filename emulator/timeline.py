"""Timeline: a Program as a card's queues execute it, call by call, with every wait an absolute count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..isa.check import check_program
from ..isa.instruction import Instruction
from ..isa.program import Block, Program
from .calendar.solver import Ints
from .entries import NONE, entries_of
from .questions import Question, questions_of
from .site import EXTENTS, NO_EXTENTS, Site


class Entry(NamedTuple):
    """One instruction in its queue; semaphores are indices into `Timeline.semaphores`, counts since submission.

    `own` is the semaphore of its queue. `semaphore` is (semaphore, count) of a WAIT, which waits for it, or of a
    SIGNAL, which adds it. Waits that an earlier entry of the queue has already seen satisfied are left out.
    """

    call: int
    position: int
    site: int
    mnemonic: str
    own: int
    waits: tuple[tuple[int, int], ...]
    semaphore: tuple[int, int] | None


class Timeline:
    """What each queue of a card executes of one program, in order. ProgramError for a program that is not legal.

    `sites` are the instructions of every called block; `rows[call]` holds the indices of a call's, by position. A queue
    ends with its first HALT. `entries` are the columns of all that queues execute. `questions` are what sites ask of
    a card, each once, and `asked` the number of every site's.
    """

    def __init__(self, program: Program) -> None:
        check_program(program)
        self.program = program
        self.semaphores: tuple[str, ...] = (*program.queues, *program.semaphores)
        self.sites, self.rows = _numbered(program)
        self.entries = entries_of(program, self.semaphores, self.rows)
        self.questions: tuple[Question, ...]
        self.questions, self.asked = questions_of(self.sites)

    @cached_property
    def made(self) -> list[Entry]:
        """Every row of the columns as an Entry."""
        e, waits = self.entries, [(index, need) for index, need in self.entries.asked.tolist()]
        columns = (e.call, e.position, e.site, e.own, e.semaphore, e.counts, e.first_wait, e.first_wait + e.wait_count)
        mnemonics = [site.instruction.mnemonic for site in self.sites]
        return [
            Entry(
                call, position, site, mnemonics[site], own, tuple(waits[first:stop]),
                None if semaphore == NONE else (semaphore, count),
            )
            for call, position, site, own, semaphore, count, first, stop in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]  # fmt: skip

    @cached_property
    def queues(self) -> dict[str, tuple[Entry, ...]]:
        """What each queue executes, entry by entry."""
        parts = zip(self.program.queues, self.entries.parts.tolist(), strict=True)
        return {name: tuple(self.made[first:stop]) for name, (first, stop) in parts}

    def describe(self, entry: Entry) -> str:
        """An instruction in words: `call 3 of layer, instruction 5 (matmul ...)`."""
        site = self.sites[entry.site]
        return f"call {entry.call} of {site.block.name}, instruction {entry.position} ({site.instruction})"


def _numbered(program: Program) -> tuple[tuple[Site, ...], tuple[Ints, ...]]:
    """All sites in order of their first call, and those of every call by position."""
    sites: list[Site] = []
    rows: dict[tuple[str, tuple[str, ...]], Ints] = {}
    naming: dict[str, list[int]] = {}
    first: dict[str, Ints] = {}
    for call in program.calls:
        if (call.block, call.extents) in rows:
            continue
        block, extents = program.block[call.block], program.extents_of(call)
        if call.block not in first:
            naming[call.block] = _naming(block, extents) if extents else []
            row = first[call.block] = np.arange(len(sites), len(sites) + len(block.body))
            new: Iterable[int] = range(len(block.body))
        else:
            row, new = first[call.block].copy(), naming[call.block]
            row[naming[call.block]] = np.arange(len(sites), len(sites) + len(naming[call.block]))
        rows[call.block, call.extents] = row
        names, body = set(naming[call.block]), block.body
        sites += [
            Site(block, at, body[at].queue, body[at].instruction, extents if at in names else NO_EXTENTS) for at in new
        ]
    return tuple(sites), tuple(rows[call.block, call.extents] for call in program.calls)


def _naming(block: Block, extents: Mapping[str, str]) -> list[int]:
    """The positions of a block's instructions that name one of its extent parameters."""
    return [position for position, issue in enumerate(block.body) if _names_one(issue.instruction, extents)]


def _names_one(instruction: Instruction, extents: Mapping[str, str]) -> bool:
    kinds = instruction.operands.items()
    return any(kind.names in EXTENTS and getattr(instruction, name) in extents for name, kind in kinds)
