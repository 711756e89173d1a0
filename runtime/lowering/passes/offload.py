"""Offload: experts live in host memory, and come into a staging area in HBM while the call before theirs runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....isa.dma import HOST_LOAD
from ....isa.instruction import TensorType
from ....isa.operands import Ref
from ....isa.program import Block, Buffer, Call, Issue, Program, Space
from ....isa.work import Unit
from .rewrite import Rewritten

EXPERTS = re.compile(r"layers\.\d+\.experts\.(.+)")
NAME = "offload experts"
SLOTS = 2  # staging areas: one is filled while what lies in the other is read
STAGING = "staging"  # how the names of staging areas begin


@dataclass(frozen=True)
class Offload:
    """What lives in host memory: experts of a share of the layers that have any, and caches likewise."""

    experts: float = 0.0
    caches: float = 0.0


def evenly(layers: Sequence[int], share: float) -> list[int]:
    """A share of some layers, evenly among them."""
    return [layer for at, layer in enumerate(layers) if int((at + 1) * share) > int(at * share)]


class Staging:
    """Staging areas in turn: each has a buffer of every part and type that comes to it."""

    def __init__(self) -> None:
        self._types: defaultdict[tuple[int, str], list[TensorType]] = defaultdict(list)

    def of(self, number: int, part: str, buffer: Buffer) -> Buffer:
        """Where a buffer goes that is this part of what is fetched as the so-manieth."""
        slot = number % SLOTS
        types = self._types[slot, part]
        if buffer.type not in types:
            types.append(buffer.type)
        kind = types.index(buffer.type)
        return replace(buffer, name=f"{STAGING}{slot}{f'.{kind}' if kind else ''}.{part}")


@dataclass(frozen=True)
class _Fetch:
    """What a call's experts need beforehand: buffers in host memory, and where each goes."""

    sources: tuple[Buffer, ...]
    staged: tuple[Buffer, ...]

    @property
    def types(self) -> tuple[object, ...]:
        """What makes the loads of two calls instructions of one block."""
        return tuple(buffer.type for buffer in self.staged)


def offload_experts(
    program: Program, share: float, queue_of: Mapping[Unit, str]
) -> tuple[Program, tuple[Rewritten, ...], Mapping[str, str]]:
    """The program with a share of its expert layers, evenly among them, in host memory.

    Layer by layer their matrices go to one of two staging areas, by loads that the call before the layer's issues
    first: they run beside it, and what comes after it waits for them. Also returned are what was added, and of which
    block each new one is a copy.
    """
    fetches = _fetches(program, share)
    blocks, added, copies = dict(program.block), list[Rewritten](), dict[str, str]()
    known: dict[tuple[str, tuple[object, ...]], str] = {}
    calls: list[Call] = []
    for index, call in enumerate(program.calls):
        call = _staged(call, fetches.get(index))
        coming = fetches.get(index + 1)
        if coming is not None:
            key = call.block, coming.types
            if key not in known:
                known[key] = f"{call.block}.fetch{len(known)}"
                copy = _fetching(program.block[call.block], known[key], coming, queue_of[Unit.HOST])
                blocks[copy.name], copies[copy.name] = copy, call.block
                loads = tuple(issue.instruction for issue in copy.body[: len(coming.staged)])
                added.append(Rewritten(NAME, copy.name, (), loads))
            pairs = zip(coming.staged, coming.sources, strict=True)
            call = replace(
                call, block=known[key], arguments=(*call.arguments, *(part.name for pair in pairs for part in pair))
            )
        calls.append(call)
    made = replace(program, calls=tuple(calls), buffers=_buffers(program, fetches))
    used = {call.block for call in calls}
    return replace(made, blocks=tuple(b for name, b in blocks.items() if name in used)), tuple(added), copies


def _fetches(program: Program, share: float) -> dict[int, _Fetch]:
    """What to load for each call whose experts are offloaded, by the call's index."""
    found: dict[int, _Fetch] = {}
    staging = Staging()
    with_experts = [index for index, call in enumerate(program.calls) if any(map(EXPERTS.fullmatch, call.arguments))]
    for number, index in enumerate(evenly(with_experts, share)):
        assert index, "inputs are loaded before any layer"
        sources, staged = list[Buffer](), list[Buffer]()
        for name in program.calls[index].arguments:
            part, buffer = EXPERTS.fullmatch(name), program.buffer[name]
            if part is None or buffer.space not in (Space.WEIGHT, Space.SCALE):
                continue
            sources.append(replace(buffer, space=Space.HOST))
            staged.append(staging.of(number, part[1], buffer))
        found[index] = _Fetch(tuple(sources), tuple(staged))
    return found


def _staged(call: Call, fetch: _Fetch | None) -> Call:
    """A call whose experts are read where they were staged."""
    if fetch is None:
        return call
    places = {source.name: staged.name for source, staged in zip(fetch.sources, fetch.staged, strict=True)}
    return replace(call, arguments=tuple(places.get(name, name) for name in call.arguments))


def _fetching(block: Block, name: str, fetch: _Fetch, queue: str) -> Block:
    """A block that first loads what the next call needs."""
    params, loads = list(block.params), list[Issue]()
    for number, staged in enumerate(fetch.staged):
        to, of = f"fetch_to{number}", f"fetch_of{number}"
        params += [(to, staged.type), (of, staged.type)]
        loads.append(Issue(queue, HOST_LOAD(dst=Ref(to), src=Ref(of))))
    return replace(block, name=name, params=tuple(params), body=(*loads, *block.body))


def _buffers(program: Program, fetches: Mapping[int, _Fetch]) -> tuple[Buffer, ...]:
    """The program's buffers, experts in host memory where they are offloaded, and the staging areas."""
    sources = {buffer.name: buffer for fetch in fetches.values() for buffer in fetch.sources}
    staged = {buffer.name: buffer for fetch in fetches.values() for buffer in fetch.staged}
    return (*(sources.get(buffer.name, buffer) for buffer in program.buffers), *staged.values())
