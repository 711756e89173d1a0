"""A bench for one instruction: written as text among typed buffers, checked, costed and executed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from siltwin.isa.dtype import decode, encode
from siltwin.isa.meaning import run_program
from siltwin.isa.program import Binding, BoundShapes, Program
from siltwin.isa.text import assemble
from siltwin.isa.work import Work

HEAD = """program bench
queue q
queue other
semaphore s
extent t
extent n
extent q_lens[]
extent kv_lens[]
extent e0[]
extent e1[]
extent e2[]
group g {size}
"""


class Bench:
    """Programs of one block; buffers are given as `name="dtype[dims]"` or `name="dtype[dims] space"`."""

    def program(self, instruction: str, size: int = 4, **buffers: str) -> Program:
        """A legal program that executes `instruction` (or several, one a line, as `queue | ...` where a bar is)."""
        lines = [HEAD.format(size=size)]
        typed = {name: (kind if not kind.endswith("]") else f"{kind} activation") for name, kind in buffers.items()}
        lines += [f"buffer {name} : {kind}" for name, kind in typed.items()]
        lines += ["block b"]
        lines += [f"param {name} : {kind.rpartition(' ')[0]}" for name, kind in typed.items()]
        lines += [line if "|" in line else f"q | {line}" for line in instruction.splitlines()]
        lines += ["end", " ".join(["call b", *buffers])]
        return assemble("\n".join(lines))

    def work(
        self,
        instruction: str,
        size: int = 4,
        index: int = 0,
        extents: Mapping[str, tuple[int, ...]] | None = None,
        **buffers: str,
    ) -> Work:
        """Work of the (first) instruction, for member `index` of the group."""
        program = self.program(instruction, size, **buffers)
        block = program.blocks[0]
        shapes = BoundShapes(block, program.group_sizes, Binding(extents or {}, {"g": index}))
        return block.body[0].instruction.work(shapes)

    def run(
        self,
        instruction: str,
        values: Mapping[str, Any],
        extents: Mapping[str, tuple[int, ...]] | None = None,
        **buffers: str,
    ) -> dict[str, np.ndarray]:
        """Execute on `values` (zeros where a buffer has none); every buffer's decoded values afterwards."""
        program = self.program(instruction, **buffers)
        binding = Binding(extents or {}, {"g": 0})
        shapes = BoundShapes(program.blocks[0], program.group_sizes, binding)
        arrays = {}
        for name, kind in program.blocks[0].params:
            shape = tuple(dim if isinstance(dim, int) else shapes.scalar(dim) for dim in kind.shape)
            given = values.get(name, np.zeros(shape, np.float32 if kind.dtype.is_float else np.int64))
            arrays[name] = encode(np.asarray(given), kind.dtype)
        run_program(program, arrays, binding)
        return {name: decode(arrays[name], kind.dtype) for name, kind in program.blocks[0].params}


@pytest.fixture(scope="session")
def bench() -> Bench:
    """The bench, without state."""
    return Bench()


@pytest.fixture(scope="session")
def torch() -> Any:
    """torch, imported by the tests that compare with it and by no other."""
    return pytest.importorskip("torch")
