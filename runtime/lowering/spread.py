"""Attention over a context: whole on every rank, or spread over shares that go round, are gathered, or stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...isa.dma import GATHER, SCATTER
from ...isa.dtype import FP32
from ...isa.instruction import Instruction
from ...isa.link import ALL_TO_ALL
from ...isa.operands import Ref
from ...isa.partial import MERGE_PARTS
from ...isa.program import Space
from ...isa.ragged import ALL_GATHER_ROWS
from . import context as names
from .builder import BlockBuilder, buffer
from .context import Kind
from .reach import WHOLE, Reach
from .stage import Stage


@dataclass(frozen=True)
class Attend:
    """One rank's attention, whatever its kind.

    `queries` are the columns of all query operands, `cuts` how many belong to each. `whole` makes the instruction that
    attends over paged caches, `part` the one over a share, from their operands by name: dst, queries, cache, tables,
    q_lens, kv_lens, q_extent, kv_extent; and for a part before, visible, seen. `sinks` is for a merge of parts; the
    whole has them itself. `reach` says whose pages the whole reads.
    """

    queries: Ref
    cuts: tuple[int, ...]
    heads: int
    v_dim: int
    row: int
    kind: Kind
    whole: Callable[..., Instruction]
    part: Callable[..., Instruction]
    sinks: Ref | None = None
    reach: Reach = WHOLE

    def cut(self, queries: Ref) -> tuple[Ref, ...]:
        """The query operands within their columns."""
        found, at = [], queries.start
        for size in self.cuts:
            found.append(Ref(queries.buffer, at, size))
            at += size
        return tuple(found)

    @property
    def part_columns(self) -> int:
        """Columns of a part: the heads' outputs, and an LSE of each."""
        return self.heads * (self.v_dim + 1)


def attend(stage: Stage, block: BlockBuilder, how: Attend, cache: Ref, dst: Ref) -> None:
    """dst = attention of this rank's queries over all that their sequences have cached, on whatever share."""
    if stage.options.mode in ("whole", "allgather"):
        operands = over_context(stage, block, cache, how.row, "share", how.reach)
        block.emit(how.whole(dst=dst, queries=how.cut(how.queries), **operands))
    else:
        _Spread(stage, block, how).lower(cache, dst)


def over_context(
    stage: Stage, block: BlockBuilder, cache: Ref, row: int, label: str, reach: Reach = WHOLE
) -> dict[str, Any]:
    """A cache as instructions over paged sequences read it, where none has only a share: tables, lengths and extents.

    Shares that come together are laid out in order of positions; then each run of positions that this rank computes is
    a sequence of its own. `label` tells the caches of one block apart; `reach` says whose pages the cache is made of.
    """
    if stage.options.mode == "whole":
        held = {name: block.param(name, getattr(stage.inputs, name)) for name in ("q_lens", "kv_lens")}
        tables = block.param("tables", reach.named(stage.inputs.tables))
        return {"cache": cache, "tables": tables, **held, "q_extent": "q_lens", "kv_extent": "kv_lens"}
    inputs = {one.name: one for one in names.attention_inputs("allgather", stage.layout.cp, [Kind()])}
    for name in (names.share_rows(0), names.GATHERED, names.CONTEXT_PAGES, names.CONTEXT_COLUMNS, names.PIECES):
        stage.program.scalar(name)
    dtype = stage.options.kv_dtype
    share = block.local(label, dtype, names.share_rows(0), row)
    block.emit(GATHER(dst=share, src=cache, index=block.param("share_rows", inputs["share_rows"])))
    gathered = block.local(f"{label}.all", dtype, names.GATHERED, row)
    counts = block.extent("shares.extent", "shares")
    block.emit(ALL_GATHER_ROWS(dst=gathered, src=share, group=stage.group("cp"), counts=counts))
    pages = (names.CONTEXT_PAGES, stage.options.page_tokens, row)
    whole = block.param(f"{label}.context", buffer(f"context.{row}", Space.ACTIVATION, dtype, *pages))
    block.emit(SCATTER(dst=whole, src=gathered, index=block.param("context_rows", inputs["context_rows"])))
    return {
        "cache": whole,
        "tables": block.param("context_tables", inputs["context_tables"]),
        "q_lens": block.param("piece_lens", inputs["piece_lens"]),
        "kv_lens": block.param("context_lens", inputs["context_lens"]),
        "q_extent": block.extent("piece_lens.extent", "piece_lens"),
        "kv_extent": block.extent("context_lens.extent", "context_lens"),
    }


class _Spread:
    """The lowerings of one attention over shares of a context that stay apart."""

    def __init__(self, stage: Stage, block: BlockBuilder, how: Attend) -> None:
        self.stage, self.block, self.how = stage, block, how
        self.shares, self.group = stage.layout.cp, stage.group("cp")
        mode = stage.options.mode
        self.inputs = {one.name: one for one in names.attention_inputs(mode, self.shares, [how.kind])}

    def lower(self, cache: Ref, dst: Ref) -> None:
        """dst = attention by the mode of the step."""
        if self.stage.options.mode == "ring":
            self._ring(cache, dst)
        else:
            self._decode(cache, dst)

    def _input(self, name: str) -> Ref:
        return self.block.param(name, self.inputs[name])

    def _extent(self, name: str) -> str:
        return self.block.extent(f"{name}.extent", name)

    def _share(self, turn: int, rows: str) -> Ref:
        self.stage.program.scalar(rows)
        return self.block.local(f"share.{turn}", self.stage.options.kv_dtype, rows, self.how.row)

    def _own_share(self, cache: Ref) -> Ref:
        """The rows of this rank's cache that the step's sequences have, one after the other."""
        share = self._share(0, names.share_rows(0))
        self.block.emit(GATHER(dst=share, src=cache, index=self._input("share_rows")))
        return share

    def _parts(self, name: str, rows: str) -> Ref:
        return self.block.local(name, FP32, rows, self.how.part_columns)

    def _part(self, turn: int, **operands: Any) -> Instruction:
        """The part over the share that is here after some turns."""
        kind, lens = self.how.kind, names.share_lens(turn)
        return self.how.part(
            q_lens=self._input("query_lens"),
            kv_lens=self._input(lens),
            visible=self._input(names.visible(kind, turn)),
            q_extent=self._extent("query_lens"),
            kv_extent=self._extent(lens),
            seen=self._extent(names.seen(kind, turn)),
            **operands,
        )

    def _merge(self, dst: Ref, parts: Ref, count: int) -> None:
        self.block.emit(MERGE_PARTS(dst=dst, parts=parts, sinks=self.how.sinks, heads=self.how.heads, count=count))

    def _ring(self, cache: Ref, dst: Ref) -> None:
        """Shares go round: while one is attended to, the next one comes."""
        share, parts = self._own_share(cache), self._parts("parts", "tokens")
        for turn in range(self.shares):
            following = None
            if turn + 1 < self.shares:
                following = self._share(turn + 1, names.share_rows(turn + 1))
                sent, received = (self._extent(f"{way}.{turn + 1}") for way in ("sent", "received"))
                self.block.emit(ALL_TO_ALL(following, share, self.group, sent, received))
            self.block.emit(
                self._part(
                    turn,
                    dst=parts,
                    before=parts if turn else None,
                    queries=self.how.cut(self.how.queries),
                    cache=share,
                    tables=self._input(f"share_starts.{turn}"),
                )
            )
            share = following or share
        self._merge(dst, parts, 1)

    def _decode(self, cache: Ref, dst: Ref) -> None:
        """All queries come to every share, whose parts go back to where the queries came from."""
        stage, block, how = self.stage, self.block, self.how
        for name in (names.ALL_TOKENS, names.RETURNED):
            stage.program.scalar(name)
        counts, own = self._extent("all_counts"), self._extent("own_counts")
        queries = block.local("all_queries", stage.options.dtype, names.ALL_TOKENS, sum(how.cuts))
        block.emit(ALL_GATHER_ROWS(dst=queries, src=how.queries, group=self.group, counts=counts))
        sent = self._parts("sent_parts", names.ALL_TOKENS)
        tables = self._input("share_tables")
        whole = Ref("all_queries", 0, sum(how.cuts))
        block.emit(self._part(0, dst=sent, before=None, queries=how.cut(whole), cache=cache, tables=tables))
        parts = self._parts("parts", names.RETURNED)
        block.emit(ALL_TO_ALL(parts, sent, self.group, counts, own))
        self._merge(dst, parts, self.shares)
