"""Instructions of control: waits and signals on semaphores, and halt."""

from __future__ import annotations

from .instruction import Instruction, Memory, Shapes, Sizes, require
from .operands import SemaphoreName
from .work import Unit, Work


class WAIT(Instruction, opcode=0x50, unit=Unit.CONTROL):
    """Hold the queue until the semaphore has grown by `count` since this call of the block began.

    Semaphores only grow and a wait consumes nothing. `count` 0 means: all that earlier calls of the program signal.
    """

    semaphore: SemaphoreName
    count: int

    def check(self, t: Shapes) -> None:
        pass

    def work(self, s: Sizes) -> Work:
        return Work(Unit.CONTROL)

    def execute(self, m: Memory) -> None:
        pass


class SIGNAL(Instruction, opcode=0x51, unit=Unit.CONTROL):
    """Add `count` to the semaphore once all before it in its queue has ended."""

    semaphore: SemaphoreName
    count: int

    def check(self, t: Shapes) -> None:
        require(self.count > 0, self, "a signal must add at least 1")

    def work(self, s: Sizes) -> Work:
        return Work(Unit.CONTROL)

    def execute(self, m: Memory) -> None:
        pass


class HALT(Instruction, opcode=0x52, unit=Unit.CONTROL):
    """End the program on this queue: later instructions of the program in the same queue are not issued."""

    def check(self, t: Shapes) -> None:
        pass

    def work(self, s: Sizes) -> Work:
        return Work(Unit.CONTROL)

    def execute(self, m: Memory) -> None:
        pass
