"""Where every call of a program finds the semaphores, counted call by call."""

from collections import Counter

from siltwin.isa.program import Program


def semaphore_bases(program: Program) -> list[Counter[str]]:
    """For each call, what the calls before it add to every semaphore."""
    bases: list[Counter[str]] = []
    total: Counter[str] = Counter()
    for call in program.calls:
        bases.append(total.copy())
        total.update(program.block[call.block].signals)
    return bases
