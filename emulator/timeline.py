"""Timeline: a Program as a card's queues execute it, call by call, with every wait an absolute count."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ..isa.check import check_program
from ..isa.control import HALT, SIGNAL, WAIT
from ..isa.instruction import Instruction
from ..isa.program import Block, Issue, Program


class Site(NamedTuple):
    """A place in a block: what is costed once, however often the block is called."""

    block: Block
    position: int
    queue: str
    instruction: Instruction

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

    `sites` are the instructions of every called block; `bases[call]` is the index of a call's first. A queue ends with
    its first HALT.
    """

    def __init__(self, program: Program) -> None:
        check_program(program)
        self.program = program
        self.semaphores: tuple[str, ...] = (*program.queues, *program.semaphores)
        self.sites: tuple[Site, ...] = ()
        self.bases: tuple[int, ...] = ()
        self._number_sites()
        entries = _Entries(self.semaphores)
        for call, base in enumerate(program.semaphore_bases()):
            for position, issue in enumerate(program.block[program.calls[call].block].body):
                entries.append(call, position, self.bases[call] + position, issue, base)
        self.queues: dict[str, tuple[Entry, ...]] = {q: tuple(entries.of[q]) for q in program.queues}

    def _number_sites(self) -> None:
        first: dict[str, int] = {}
        sites: list[Site] = []
        for name in dict.fromkeys(call.block for call in self.program.calls):
            block = self.program.block[name]
            first[name] = len(sites)
            sites += [Site(block, n, issue.queue, issue.instruction) for n, issue in enumerate(block.body)]
        self.sites = tuple(sites)
        self.bases = tuple(first[call.block] for call in self.program.calls)

    def site(self, call: int, position: int) -> Site:
        """The site of an instruction."""
        return self.sites[self.bases[call] + position]

    def describe(self, entry: Entry) -> str:
        """An instruction in words: `call 3 of layer, instruction 5 (matmul ...)`."""
        site = self.sites[entry.site]
        return f"call {entry.call} of {site.block.name}, instruction {entry.position} ({site.instruction})"


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
