"""Timeline: a Program as a card's queues execute it, call by call, with every wait an absolute count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..isa.check import check_program
from ..isa.control import HALT, SIGNAL, WAIT
from ..isa.instruction import Instruction
from ..isa.operands import NameKind
from ..isa.program import Block, Issue, Program

EXTENTS = (NameKind.EXTENT, NameKind.EXTENT_OUT)


class Site(NamedTuple):
    """A place in a block: what is costed once, however often the block is called.

    An instruction that names an extent parameter has a site for each binding of those parameters, which `extents` is:
    the program's extent behind every parameter.
    """

    block: Block
    position: int
    queue: str
    instruction: Instruction
    extents: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        return f"block {self.block.name}, instruction {self.position} ({self.instruction})"


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
    ends with its first HALT.
    """

    def __init__(self, program: Program) -> None:
        check_program(program)
        self.program = program
        self.semaphores: tuple[str, ...] = (*program.queues, *program.semaphores)
        self.sites: tuple[Site, ...] = ()
        self.rows: tuple[Sequence[int], ...] = ()
        self._number_sites()
        entries = _Entries(self.semaphores)
        for call, base in enumerate(program.semaphore_bases()):
            for position, issue in enumerate(program.block[program.calls[call].block].body):
                entries.append(call, position, self.rows[call][position], issue, base)
        self.queues: dict[str, tuple[Entry, ...]] = {q: tuple(entries.of[q]) for q in program.queues}

    def _number_sites(self) -> None:
        rows: dict[tuple[str, tuple[str, ...]], Sequence[int]] = {}
        index: dict[tuple[str, int, tuple[str, ...]], int] = {}
        sites: list[Site] = []
        for call in self.program.calls:
            if (call.block, call.extents) in rows:
                continue
            block, extents, row = self.program.block[call.block], self.program.extents_of(call), []
            for position, issue in enumerate(block.body):
                bound = extents if extents and _names_one(issue.instruction, extents) else {}
                place = (call.block, position, call.extents if bound else ())
                if place not in index:
                    index[place] = len(sites)
                    sites.append(Site(block, position, issue.queue, issue.instruction, bound))
                row.append(index[place])
            rows[call.block, call.extents] = row
        self.sites = tuple(sites)
        self.rows = tuple(rows[call.block, call.extents] for call in self.program.calls)

    def site(self, call: int, position: int) -> Site:
        """The site of an instruction."""
        return self.sites[self.rows[call][position]]

    def describe(self, entry: Entry) -> str:
        """An instruction in words: `call 3 of layer, instruction 5 (matmul ...)`."""
        site = self.sites[entry.site]
        return f"call {entry.call} of {site.block.name}, instruction {entry.position} ({site.instruction})"


def _names_one(instruction: Instruction, extents: Mapping[str, str]) -> bool:
    """Whether an instruction names one of a block's extent parameters."""
    kinds = instruction.operands.items()
    return any(kind.names in EXTENTS and getattr(instruction, name) in extents for name, kind in kinds)


class _Entries:
    """Entries by queue, under construction."""

    def __init__(self, semaphores: tuple[str, ...]) -> None:
        self.index = {name: n for n, name in enumerate(semaphores)}
        self.of: dict[str, list[Entry]] = {name: [] for name in semaphores}
        self._halted: set[str] = set()
        self._seen: dict[str, dict[int, int]] = {name: {} for name in semaphores}

    def append(self, call: int, position: int, site: int, issue: Issue, base: Counter[str]) -> None:
        """Add an instruction of a call, before which `base` has been signalled."""
        queue, instruction = issue.queue, issue.instruction
        if queue in self._halted:
            return
        own, seen = self.index[queue], self._seen[queue]
        # In its own queue everything before it has ended.
        seen[own] = max(seen.get(own, 0), len(self.of[queue]))
        waits = []
        for name, count in issue.waits:
            index, need = self.index[name], base[name] + count
            if need > seen.get(index, 0):
                waits.append((index, need))
                seen[index] = need
        semaphore = None
        if isinstance(instruction, SIGNAL):
            semaphore = (self.index[instruction.semaphore], instruction.count)
        elif isinstance(instruction, WAIT):
            index = self.index[instruction.semaphore]
            semaphore = (index, base[instruction.semaphore] + instruction.count)
            seen[index] = max(seen.get(index, 0), semaphore[1])
        elif isinstance(instruction, HALT):
            self._halted.add(queue)
        self.of[queue].append(Entry(call, position, site, instruction.mnemonic, own, tuple(waits), semaphore))
