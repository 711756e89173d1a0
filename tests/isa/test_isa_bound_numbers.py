"""Operands that an extent says: one program for cards whose shares begin in different places."""

import numpy as np
import pytest

from siltwin.isa.check import IllegalProgramError, check_program
from siltwin.isa.dma import COPY, EMBEDDING
from siltwin.isa.dtype import FP32, INT32
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import TensorType
from siltwin.isa.meaning import run_program
from siltwin.isa.operands import Ref, parse_ref
from siltwin.isa.program import Binding, Block, Buffer, Call, Extent, Issue, Program, Space
from siltwin.isa.text import assemble, disassemble

TYPES = {
    "ids": TensorType(INT32, (4,)),
    "table": TensorType(FP32, (3, 2)),
    "rows": TensorType(FP32, (4, 2)),
    "wide": TensorType(FP32, (4, 6)),
}


def program(body, extents=("first",)) -> Program:
    params = tuple(TYPES.items())
    block = Block("b", params, (), tuple(Issue("q", instruction) for instruction in body))
    buffers = tuple(Buffer(name, kind, Space.ACTIVATION) for name, kind in params)
    return Program("p", ("q",), tuple(map(Extent, extents)), (), (), buffers, (block,), (Call("b", tuple(TYPES)),))


LOOKUP = EMBEDDING(Ref("rows"), Ref("table"), Ref("ids"), "first")
SLICE = COPY(Ref("rows"), Ref("wide", 0, 2, "first"))


def run(body, first: int):
    arrays = {
        "ids": np.array([2, 3, 4, 5], np.int32),
        "table": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        "rows": np.zeros((4, 2), np.float32),
        "wide": np.arange(24, dtype=np.float32).reshape(4, 6),
    }
    run_program(program(body), arrays, Binding({"first": (first,)}, {}))
    return arrays["rows"].tolist()


def test_one_instruction_reads_what_each_card_binds():
    assert run([LOOKUP], 3) == [[0, 0], [1, 2], [3, 4], [5, 6]]
    assert run([LOOKUP], 4) == [[0, 0], [0, 0], [1, 2], [3, 4]]
    assert run([SLICE], 0) == [[0, 1], [6, 7], [12, 13], [18, 19]]
    assert run([SLICE], 4) == [[4, 5], [10, 11], [16, 17], [22, 23]]
    with pytest.raises(ProgramError, match="takes columns 5 to 7 of 6"):
        run([SLICE], 5)


def test_they_are_written_as_names_and_read_back():
    held = program([LOOKUP, SLICE])
    text = disassemble(held)
    assert "first=first" in text and "%wide[first:+2]" in text
    assert assemble(text) == held
    assert parse_ref("%wide[a:b:+2]") == Ref("wide", 0, 2, "a:b")


def test_only_scalar_extents_that_are_declared_may_say_them():
    check_program(program([LOOKUP, SLICE]))
    with pytest.raises(IllegalProgramError, match="'first' is not declared"):
        check_program(program([LOOKUP], ()))
    with pytest.raises(IllegalProgramError, match="begins at 'first', which is no declared scalar extent"):
        check_program(program([SLICE], ()))
    with pytest.raises(IllegalProgramError, match="takes columns that"):
        check_program(program([COPY(Ref("rows"), Ref("wide", 0, 7, "first"))]))
    with pytest.raises(ProgramError, match="need a size, and no start beside it"):
        Ref("wide", 1, 2, "first")


def test_columns_that_begin_at_different_extents_may_overlap():
    a, b = Ref("wide", 0, 2, "first"), Ref("wide", 2, 2)
    assert a.overlaps(b) and b.overlaps(a) and a.overlaps(Ref("wide")) and not a.overlaps(Ref("rows"))


def test_a_program_that_has_passed_is_not_checked_again(monkeypatch):
    held = program([LOOKUP])
    check_program(held)
    monkeypatch.setattr(EMBEDDING, "check", lambda self, t: pytest.fail("checked twice"))
    check_program(held)
    with pytest.raises(pytest.fail.Exception):
        check_program(program([LOOKUP]))
