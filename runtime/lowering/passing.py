"""Recurrent layers over shares of a context: a state goes round the ring, each share goes on where the last ended."""

from __future__ import annotations

from collections.abc import Callable

from ...isa.dma import GATHER, SCATTER
from ...isa.instruction import Instruction
from ...isa.link import ALL_TO_ALL
from ...isa.operands import Ref
from ...isa.program import Buffer
from . import context as names
from .builder import BlockBuilder
from .stage import Stage

Recurrent = Callable[..., Instruction]  # from state, slots, q_lens, kv_lens, starts, q_extent and kv_extent


def recur(stage: Stage, block: BlockBuilder, label: str, kept: Buffer, make: Recurrent) -> None:
    """Every sequence through a recurrent instruction, from the state that `kept` holds of it, and into that.

    Where a context is spread over shares, sequences whose new tokens stand on several of them start from a copy of
    their state that comes round the ring, a turn a share, and ends at home again; the others stay where they are.
    """
    if stage.options.mode in ("whole", "decode"):
        lengths = {name: block.param(name, getattr(stage.inputs, name)) for name in ("q_lens", "kv_lens")}
        slots = block.param("states", stage.inputs.states)
        state = block.param(label, kept)
        block.emit(make(state=state, slots=slots, q_extent="q_lens", kv_extent="kv_lens", starts=None, **lengths))
    else:
        _Passing(stage, block, label, kept, make).lower()


class _Passing:
    """The turns of one recurrent instruction."""

    def __init__(self, stage: Stage, block: BlockBuilder, label: str, kept: Buffer, make: Recurrent) -> None:
        self.stage, self.block, self.label, self.kept, self.make = stage, block, label, kept, make
        self.shares, self.group = stage.layout.cp, stage.group("cp")
        self.inputs = {one.name: one for one in names.state_inputs(self.shares)}
        for turn in range(self.shares):
            stage.program.scalar(names.hop(turn))
        stage.program.scalar(names.HERE)

    def lower(self) -> None:
        """Sequences that are whole here, then a turn after the other."""
        kept, home = self.block.param(self.label, self.kept), self._input("home_slots")
        self._step(names.HERE, kept)
        state = self._carried("out", self.shares - 1)
        self.block.emit(GATHER(dst=state, src=kept, index=home))
        for turn in range(self.shares):
            arriving = self._carried(str(turn), turn)
            sent, taken = (self._extent(f"{way}.{turn}") for way in ("passed", "taken"))
            self.block.emit(ALL_TO_ALL(arriving, state, self.group, sent, taken))
            self._step(turn, arriving)
            state = arriving
        self.block.emit(SCATTER(dst=kept, src=state, index=home))

    def _carried(self, name: str, turn: int) -> Ref:
        """Room for the states that come at a turn."""
        row = self.kept.type.shape[1]
        return self.block.local(f"{self.label}.{name}", self.kept.type.dtype, names.hop(turn), row)

    def _step(self, turn: int | str, state: Ref) -> None:
        self.block.emit(
            self.make(
                state=state,
                slots=self._input(f"slots.{turn}"),
                q_lens=self._input(f"q_lens.{turn}"),
                kv_lens=self._input(f"kv_lens.{turn}"),
                starts=self._input(f"starts.{turn}"),
                q_extent=self._extent(f"q_lens.{turn}"),
                kv_extent=self._extent(f"kv_lens.{turn}"),
            )
        )

    def _input(self, name: str) -> Ref:
        return self.block.param(name, self.inputs[name])

    def _extent(self, name: str) -> str:
        return self.block.extent(f"{name}.extent", name)
