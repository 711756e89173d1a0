"""The columns of a program's entries, against a walk through its calls that follows every semaphore one by one."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import PLAIN

from siltwin.emulator.timeline import Entry, Timeline
from siltwin.isa.control import HALT, SIGNAL, WAIT
from siltwin.isa.errors import ProgramError
from siltwin.isa.program import Program

QUEUES = ("tensor", "vector", "dma0", "dma1", "host")


def walked(program: Program) -> dict[str, list[tuple[Any, ...]]]:
    """(call, position, waits, semaphore) of all that each queue executes."""
    names = [*program.queues, *program.semaphores]
    found: dict[str, list[tuple[Any, ...]]] = {queue: [] for queue in program.queues}
    seen: dict[str, Counter[str]] = {queue: Counter() for queue in program.queues}
    halted, total = set(), Counter[str]()
    for number, call in enumerate(program.calls):
        base = total.copy()
        for position, issue in enumerate(program.block[call.block].body):
            queue, i = issue.queue, issue.instruction
            total[queue] += 1
            total += Counter({i.semaphore: i.count}) if isinstance(i, SIGNAL) else Counter()
            if queue in halted:
                continue
            seen[queue][queue] = max(seen[queue][queue], len(found[queue]))
            waits, named = [], None
            for name, need in issue.waits:
                if base[name] + need > seen[queue][name]:
                    seen[queue][name] = base[name] + need
                    waits.append((names.index(name), base[name] + need))
            if isinstance(i, SIGNAL):
                named = (names.index(i.semaphore), i.count)
            if isinstance(i, WAIT):
                named = (names.index(i.semaphore), base[i.semaphore] + i.count)
                seen[queue][i.semaphore] = max(seen[queue][i.semaphore], named[1])
            if isinstance(i, HALT):
                halted.add(queue)
            found[queue].append((number, position, tuple(waits), named))
    return found


@st.composite
def lines(draw: Any) -> str:
    """A body with waits, WAITs and perhaps a HALT; what it waits for stands above."""
    given_above, texts, halted = dict.fromkeys((*QUEUES, "go"), 0), [], set()
    for text in draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=10)):
        queue = text.split(" ")[0]
        if queue in halted:
            continue
        if draw(st.integers(0, 3)) == 0 and given_above["go"]:
            text = f"{queue} | wait semaphore=go count={draw(st.integers(1, given_above['go']))}"
        elif draw(st.integers(0, 9)) == 0:
            text = f"{queue} | halt"
            halted.add(queue)
        waits = draw(st.lists(st.sampled_from(sorted(given_above)), max_size=2, unique=True))
        counts = [f"{name}+{draw(st.integers(0, given_above[name]))}" for name in waits]
        texts.append(text + (f" | wait {', '.join(counts)}" if counts else ""))
        given_above[queue] += 1
        given_above["go"] += "signal" in text
    return "\n".join(texts)


def test_columns_are_what_a_walk_through_the_calls_finds(rig: Any) -> None:
    one = rig()

    @settings(max_examples=60, deadline=None)
    @given(lines(), st.integers(1, 4))
    def check(body: str, calls: int) -> None:
        program = one.program(body, calls=calls)
        timeline = Timeline(program)
        made = {
            queue: [(entry.call, entry.position, entry.waits, entry.semaphore) for entry in entries]
            for queue, entries in timeline.queues.items()
        }
        assert made == walked(program)
        for entry in timeline.made:
            site = timeline.sites[entry.site]
            assert timeline.rows[entry.call][entry.position] == entry.site
            assert site.block is program.block[program.calls[entry.call].block] and site.position == entry.position
            assert site.instruction.mnemonic == entry.mnemonic and site.queue == timeline.semaphores[entry.own]

    check()


def test_a_program_without_calls_has_no_entries(rig: Any) -> None:
    program = replace(rig().program(PLAIN[0]), calls=())
    assert {queue: entries for queue, entries in Timeline(program).queues.items() if entries} == {}


def test_an_entry_says_where_it_stands_and_what_it_waits_for(rig: Any) -> None:
    timeline = Timeline(rig().program(f"{PLAIN[0]}\n{PLAIN[2]} | wait tensor+1", calls=2))
    assert timeline.queues["vector"][1] == Entry(1, 1, 1, "add", 1, ((0, 2),), None)


def test_semaphores_that_no_64_bits_could_count_are_refused(rig: Any) -> None:
    program = rig().program(f"vector | signal semaphore=go count={1 << 61}", calls=3)
    with pytest.raises(ProgramError, match="semaphore 'go' is signalled 6.92e"):
        Timeline(program)
