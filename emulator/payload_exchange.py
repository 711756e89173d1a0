"""Bytes between cards within a program: sends in order, receives, and collectives once every member has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from ..isa.errors import ProgramError
from ..isa.instruction import Array
from ..isa.link import RECV, RECV_REDUCE, SEND
from .choosing import Choose
from .payload_collectives import adder, bind_collective
from .payload_link import TRANSFERS, LinkOp


class Exchange:
    """What is under way between the cards of one run."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self._sent: dict[tuple[int, int], deque[tuple[LinkOp, Array]]] = {}
        self._here: dict[tuple[int, ...], dict[int, LinkOp]] = {}
        self._done: set[int] = set()

    def arrive(self, op: LinkOp) -> None:
        """A card has come to a link instruction: a send leaves at once, the last member runs the collective."""
        if isinstance(op.instruction, SEND):
            self._sent.setdefault((op.rank, op.peer), deque()).append((op, op.whole.copy()))
            self._done.add(op.rank)
        elif not isinstance(op.instruction, TRANSFERS):
            here = self._here.setdefault(op.ranks, {})
            here[op.rank] = op
            if len(here) == len(op.ranks):
                _meet([here[rank] for rank in op.ranks], self.choose)
                here.clear()
                self._done.update(op.ranks)

    def complete(self, op: LinkOp) -> bool:
        """Whether the card that came with `op` may go on; a receive takes what has arrived."""
        if isinstance(op.instruction, RECV | RECV_REDUCE):
            waiting = self._sent.get((op.peer, op.rank))
            if not waiting:
                return False
            _receive(op, *waiting.popleft())
            return True
        if op.rank not in self._done:
            return False
        self._done.remove(op.rank)
        return True

    def lacks(self, op: LinkOp, places: Mapping[int, LinkOp | None]) -> str:
        """Whom a waiting card waits for, and where those stand."""
        if isinstance(op.instruction, TRANSFERS):
            missing = [op.peer]
        else:
            missing = [rank for rank in op.ranks if rank not in self._here.get(op.ranks, {})]
        return ", ".join(f"card {rank} ({_place(places.get(rank))})" for rank in missing)

    def check_nothing_is_left(self) -> None:
        """ProgramError for bytes that were sent and never received."""
        for (source, target), messages in self._sent.items():
            if messages:
                op = messages[0][0]
                raise ProgramError(
                    f"card {source}, {op.where}: {op.instruction} sent what card {target} never received"
                )


def _place(op: LinkOp | None) -> str:
    return "ended" if op is None else f"in {op.where}: {op.instruction}"


def _receive(op: LinkOp, sender: LinkOp, values: Array) -> None:
    x = op.whole
    if values.shape != x.shape or sender.dtype is not op.dtype:
        raise ProgramError(
            f"{op.instruction} takes {op.dtype}{list(x.shape)} and card {sender.rank} sent {sender.dtype}"
            f"{list(values.shape)} ({sender.where}: {sender.instruction})"
        )
    if isinstance(op.instruction, RECV_REDUCE):
        assert op.dtype is not None
        total = np.ascontiguousarray(x)
        adder(op.dtype)(total.reshape(-1), values.reshape(-1))
        values = total
    if values is not x:
        x[...] = values


def _meet(ops: list[LinkOp], choose: Choose) -> None:
    """Run a collective whose members, in group order, are all here; what it binds is kept for the next time."""
    kept = ops[0].meeting
    if kept is None or any(old is not new for old, new in zip(kept[0], ops, strict=True)):
        kept = ops[0].meeting = (tuple(ops), bind_collective(ops, choose))
    kept[1]()
