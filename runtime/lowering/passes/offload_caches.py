"""Offload of caches: layers whose pages live in host memory, and come to a staging cache while the call before runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....isa.dma import SCATTER
from ....isa.fused_attention import ROPE_ATTENTION, ROPE_LATENT_ATTENTION
from ....isa.host_pages import HOST_LOAD_PAGES, HOST_STORE_ROWS
from ....isa.instruction import Instruction
from ....isa.operands import Ref, Role
from ....isa.program import Buffer, Call, Issue, Program, Space
from ....isa.work import Unit
from ..reach import WHOLE
from .offload import Staging, evenly
from .rewrite import Rewritten

NAME = "offload caches"
LAYER = re.compile(r"layers\.\d+\.")
INPUTS = ("tables", "q_lens", "kv_lens")  # what says which pages come


@dataclass(frozen=True)
class _Cache:
    """A cache in host memory, where it is staged, and how far back the attention that reads it looks."""

    source: Buffer
    staged: Buffer
    window: int = 0
    chunk: int = 0


_Fetches = Mapping[int, tuple[_Cache, ...]]


def in_host_pages(buffer: Buffer) -> bool:
    """Whether a buffer is a cache in host memory."""
    return buffer.space is Space.HOST and buffer.type.shape[0] == WHOLE.pages


def offload_caches(
    program: Program, share: float, queue_of: Mapping[Unit, str]
) -> tuple[Program, tuple[Rewritten, ...], Mapping[str, str]]:
    """The program with the caches of a share of its attention layers, evenly among them, in host memory.

    Layer by layer the pages that the step reads come to one of two staging caches, which have the type of the layer's
    own, so that tables, slots and attention are as they were. The call before the layer's issues these loads as soon as
    the tables are there; the layer writes new rows into the staging cache, and then they go back. Also returned are
    what was added, and of which block each new one is a copy.
    """
    fetches = _fetches(program, share)
    blocks, copies, added = dict(program.block), dict[str, str](), list[Rewritten]()
    known: dict[tuple[object, ...], str] = {}
    calls: list[Call] = []
    for index, call in enumerate(program.calls):
        made, own, extra = _Rewriting(program, call, queue_of[Unit.HOST]), fetches.get(index, ()), list[Instruction]()
        extra += made.store(own)
        extra += made.fetch(fetches.get(index + 1, ()))
        if extra:
            key = call.block, made.block.params, made.block.body
            if key not in known:
                known[key] = f"{call.block}.kv{len(known)}"
                blocks[known[key]], copies[known[key]] = replace(made.block, name=known[key]), call.block
                added.append(Rewritten(NAME, known[key], (), tuple(extra)))
            call = replace(call, block=known[key], arguments=made.arguments)
        calls.append(call)
    changed = replace(program, calls=tuple(calls), buffers=_buffers(program, fetches))
    used = {call.block for call in calls}
    return replace(changed, blocks=tuple(b for name, b in blocks.items() if name in used)), tuple(added), copies


def _fetches(program: Program, share: float) -> _Fetches:
    """The caches that come for each call whose layer is offloaded, by the call's index."""
    found: dict[int, tuple[_Cache, ...]] = {}
    staging = Staging()
    held = [[name for name in call.arguments if program.buffer[name].space is Space.KV] for call in program.calls]
    for number, index in enumerate(evenly([index for index, names in enumerate(held) if names], share)):
        assert index, "inputs are loaded before any layer"
        caches = list[_Cache]()
        for name in held[index]:
            buffer = program.buffer[name]
            staged = staging.of(number, LAYER.sub("", name), buffer)
            caches.append(_Cache(replace(buffer, space=Space.HOST), staged, *_limits(program, index, name)))
        found[index] = tuple(caches)
    return found


def _limits(program: Program, index: int, cache: str) -> tuple[int, int]:
    """Window and chunk of the attention of a call that reads a cache; 0 where it has none, or says it elsewhere."""
    call = program.calls[index]
    block = program.block[call.block]
    (param,) = (name for (name, _), bound in zip(block.params, call.arguments, strict=True) if bound == cache)
    users = [i.instruction for i in block.body if any(ref.buffer == param for ref, _ in i.instruction.refs())]
    window, chunk = ({getattr(user, limit) for user in users if hasattr(user, limit)} for limit in ("window", "chunk"))
    return (window.pop() if len(window) == 1 else 0), (chunk.pop() if len(chunk) == 1 else 0)


def _new_rows(instruction: Instruction, cache: str) -> Ref | None:
    """Where the rows that an instruction writes into a cache go; None where it writes none."""
    if all(ref.buffer != cache or role is Role.IN for ref, role in instruction.refs()):
        return None
    if isinstance(instruction, SCATTER):
        return instruction.index
    assert isinstance(instruction, ROPE_ATTENTION | ROPE_LATENT_ATTENTION), f"{instruction} writes {cache}"
    return instruction.slots


class _Rewriting:
    """One call under rewriting: its block, and what it is called with."""

    def __init__(self, program: Program, call: Call, queue: str) -> None:
        self.block, self.arguments, self._program, self._queue = (
            program.block[call.block],
            call.arguments,
            program,
            queue,
        )

    def _param(self, label: str, buffer: Buffer) -> Ref:
        """A parameter that is bound to a buffer: the one that is there, or a new one."""
        for (name, _), bound in zip(self.block.params, self.arguments, strict=True):
            if bound == buffer.name:
                return Ref(name)
        self.block = replace(self.block, params=(*self.block.params, (label, buffer.type)))
        self.arguments = (*self.arguments, buffer.name)
        return Ref(label)

    def store(self, caches: tuple[_Cache, ...]) -> list[Instruction]:
        """Read and write caches where they are staged, and store the new rows in host memory."""
        done: list[Instruction] = []
        for number, cache in enumerate(caches):
            param = self._param("", cache.source).buffer
            self.arguments = tuple(cache.staged.name if a == cache.source.name else a for a in self.arguments)
            host = self._param(f"store_to{number}", cache.source)
            body: list[Issue] = []
            for issue in self.block.body:
                body.append(issue)
                index = _new_rows(issue.instruction, param)
                if index is not None:
                    done.append(HOST_STORE_ROWS(dst=host, src=Ref(param), index=index))
                    body.append(Issue(self._queue, done[-1]))
            self.block = replace(self.block, body=tuple(body))
        return done

    def fetch(self, caches: tuple[_Cache, ...]) -> list[Instruction]:
        """Load the pages of the next call's caches once the tables are there."""
        if not caches:
            return []
        tables, q_lens, kv_lens = (self._param(f"fetch_{name}", self._program.buffer[name]) for name in INPUTS)
        loads: list[Instruction] = []
        for number, cache in enumerate(caches):
            dst, src = self._param(f"pages_to{number}", cache.staged), self._param(f"pages_of{number}", cache.source)
            limits = cache.window, cache.chunk
            loads.append(HOST_LOAD_PAGES(dst, src, tables, q_lens, kv_lens, "q_lens", "kv_lens", *limits))
        at, body = self._ready({tables, q_lens, kv_lens}), self.block.body
        issues = tuple(Issue(self._queue, load) for load in loads)
        self.block = replace(self.block, body=(*body[:at], *issues, *body[at:]))
        return loads

    def _ready(self, inputs: set[Ref]) -> int:
        """The place in the body from which on the inputs are there."""
        written = [
            at + 1
            for at, issue in enumerate(self.block.body)
            if any(ref in inputs and role is not Role.IN for ref, role in issue.instruction.refs())
        ]
        return max(written, default=0)


def _buffers(program: Program, fetches: _Fetches) -> tuple[Buffer, ...]:
    """The program's buffers, caches in host memory where they are offloaded, and the staging caches."""
    caches = [cache for own in fetches.values() for cache in own]
    sources, staged = ({b.name: b for b in own} for own in zip(*((c.source, c.staged) for c in caches), strict=True))
    return (*(sources.get(buffer.name, buffer) for buffer in program.buffers), *staged.values())
