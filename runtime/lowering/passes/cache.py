"""Caches in codes: what is written into a cache is quantised first, and attention reads codes and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ....isa.activations import QUANTISE
from ....isa.dma import SCATTER
from ....isa.dtype import BF16, FP32, DType
from ....isa.errors import NotYetError
from ....isa.formats.form import Form
from ....isa.instruction import Instruction, TensorType
from ....isa.latent import LATENT_ATTENTION
from ....isa.operands import Ref, Role
from ....isa.program import Block, Buffer, Call, Issue, Program, Space
from ....isa.tensor import ATTENTION
from ....isa.work import Unit
from .packed import LARGEST
from .rewrite import BlockEditor, Rewritten, with_blocks

LATENT_GROUP = 128  # elements of a latent that share a scale: 512 + 4 x 4 + 64 x 2 = 656 bytes of DeepSeek's row
INDEX_CACHE = ".index_cache"  # keys of an indexer, which stay as they are
_SCALES, _REST = "_scales", "_rest"


@dataclass(frozen=True)
class CodedCache:
    """Caches hold codes of `element`: keys and values with an fp32 scale for each head of a token (or none at all, for
    floats, with `by_head` False), latents with one for every 128 and their rotated part in bf16."""

    element: DType
    by_head: bool = True


@dataclass(frozen=True)
class _Row:
    """How the row of a cache is cut: `coded` elements in groups that share a scale (0: no scales), then `rest`."""

    coded: int
    group: int
    rest: int


class _Coding:
    """One block whose caches come to hold codes."""

    def __init__(self, program: Program, block: Block, how: CodedCache, queue_of: Mapping[Unit, str]) -> None:
        self.block, self.how, self.editor = block, how, BlockEditor(program, block, queue_of)
        self.params = dict(block.params)
        self.rows = {
            i.cache.buffer: self._row(i)
            for i in (issue.instruction for issue in block.body)
            if isinstance(i, ATTENTION | LATENT_ATTENTION)
        }
        self.done: list[Rewritten] = []

    def _row(self, i: ATTENTION | LATENT_ATTENTION) -> _Row:
        whole = int(self.params[i.cache.buffer].shape[2])
        if isinstance(i, LATENT_ATTENTION):
            return _Row(whole - i.rope_dim, LATENT_GROUP, i.rope_dim)
        if not self.how.by_head:
            return _Row(whole, 0, 0)
        if i.qk_dim != i.v_dim:
            raise NotYetError(
                f"--kv-dtype {self.how.element} with scales by head is not there yet for keys of {i.qk_dim} and values "
                f"of {i.v_dim} elements; use --kv-dtype bf16"
            )
        return _Row(whole, i.qk_dim, 0)

    def rewrite(self) -> Block:
        """The block, its caches' parameters changed and joined by those of scales and rests."""
        body: list[Issue] = []
        for issue in self.block.body:
            made = tuple(self._instead(issue.instruction))
            if made != (issue.instruction,):
                self.done.append(Rewritten("code cache", self.block.name, (issue.instruction,), made))
            body += [issue] if made == (issue.instruction,) else [self.editor.issue(part) for part in made]
        block = self.editor.done(body)
        params = dict(self.block.params)
        for name, row in self.rows.items():
            params |= {f"{name}{part}": kind for part, kind in self.parts(params[name], row).items()}
        return replace(block, params=tuple(params.items()))

    def parts(self, cache: TensorType, row: _Row) -> dict[str, TensorType]:
        """The buffers of a cache, by what their names end in."""
        pages, held = cache.shape[:2], dict[str, TensorType]()
        held[""] = TensorType(self.how.element, (*pages, row.coded))
        if row.group:
            held[_SCALES] = TensorType(FP32, (*pages, -(-row.coded // row.group)))
        if row.rest:
            held[_REST] = TensorType(BF16, (*pages, row.rest))
        return held

    def _instead(self, i: Instruction) -> Iterator[Instruction]:
        if isinstance(i, SCATTER) and i.dst.buffer in self.rows:
            yield from self._written(i, self.rows[i.dst.buffer])
        elif isinstance(i, ATTENTION | LATENT_ATTENTION):
            name, row = i.cache.buffer, self.rows[i.cache.buffer]
            scales = Ref(name + _SCALES) if row.group else None
            read = replace(i, cache_scales=scales, cache_group=row.group)
            yield replace(read, cache_rest=Ref(name + _REST)) if isinstance(read, LATENT_ATTENTION) else read
        else:
            if any(ref.buffer in self.rows for ref, _ in i.refs()):
                raise NotYetError(f"--kv-dtype {self.how.element}: {i.mnemonic} does not read codes yet; use bf16")
            yield i

    def _written(self, i: SCATTER, row: _Row) -> Iterator[Instruction]:
        if not row.group:
            yield i
            return
        tokens = self.editor.type_of(i.src).shape[0]
        codes = self.editor.local("cache_codes", self.how.element, tokens, row.coded)
        scales = self.editor.local("cache_code_scales", FP32, tokens, -(-row.coded // row.group))
        form = Form(self.how.element, "plain", 1, row.group)
        coded = Ref(i.src.buffer, i.src.start, row.coded)
        yield QUANTISE(codes, scales, coded, form, LARGEST[self.how.element.name], "nearest")
        yield SCATTER(i.dst, codes, i.index)
        yield SCATTER(Ref(i.dst.buffer + _SCALES), scales, i.index)
        if row.rest:
            rest = Ref(i.src.buffer, i.src.start + row.coded, row.rest)
            yield SCATTER(Ref(i.dst.buffer + _REST), rest, i.index)


def _reads(i: Instruction, name: str) -> bool:
    return any(ref.buffer == name and role is not Role.OUT for ref, role in i.refs())


def code_caches(
    program: Program, how: CodedCache, queue_of: Mapping[Unit, str]
) -> tuple[Program, tuple[Rewritten, ...]]:
    """The program with keys, values and latents held in codes. NotYetError for what reads them and cannot decode."""
    made = {block.name: _Coding(program, block, how, queue_of) for block in program.blocks}
    buffers, calls = dict(program.buffer), list[Call]()
    for call in program.calls:
        coding, block = made[call.block], program.block[call.block]
        bound = dict(zip((name for name, _ in block.params), call.arguments, strict=True))
        added: list[str] = []
        for name, argument in bound.items():
            is_cache = program.buffer[argument].space is Space.KV and not argument.endswith(INDEX_CACHE)
            if is_cache and name not in coding.rows:
                readers = {i.mnemonic for i in (issue.instruction for issue in block.body) if _reads(i, name)}
                raise NotYetError(
                    f"--kv-dtype {how.element}: {', '.join(sorted(readers))} do not read codes yet; use --kv-dtype bf16"
                )
        for name, row in coding.rows.items():
            parts = coding.parts(coding.params[name], row)
            buffers |= {bound[name] + part: Buffer(bound[name] + part, kind, Space.KV) for part, kind in parts.items()}
            added += [bound[name] + part for part in parts if part]
        calls.append(replace(call, arguments=(*call.arguments, *added)))
    blocks = [one.rewrite() for one in made.values()]
    done = tuple(entry for one in made.values() for entry in one.done)
    return with_blocks(replace(program, buffers=tuple(buffers.values()), calls=tuple(calls)), blocks), done
