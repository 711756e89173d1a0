"""The rules of a program as a whole: each has a program that breaks it; the refusal names the line and the reason."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from siltwin.isa.binary import encode_program
from siltwin.isa.check import MAX_GROUP, check_program
from siltwin.isa.dtype import FP32, INT32
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import TensorType
from siltwin.isa.operands import MAX_UINT, Ref
from siltwin.isa.program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from siltwin.isa.text import assemble
from siltwin.isa.vector import SCALE

LEGAL = """program p
queue a
queue b
semaphore s
extent t
extent lens[]
group g 2
buffer x : fp32[t, 4] activation
buffer w : fp32[4] weight
buffer h : fp32[t, 4] host
block layer
  param x : fp32[t, 4]
  param w : fp32[4]
  local y : fp32[t, 4]
  a | rmsnorm dst=%y x=%x weight=%w eps=1e-05 plus_one=no
  a | signal semaphore=s count=1
  b | add dst=%x a=%x b=%y | wait a+1, s-2, s+1
end
block load
  param x : fp32[t, 4]
  param h : fp32[t, 4]
  b | host_load dst=%x src=%h
  b | host_store dst=%h src=%x
end
call load x h
call layer x w
call layer x w
"""


def test_the_program_that_the_others_break_is_legal() -> None:
    check_program(assemble(LEGAL))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("program p", "program p q", 1, "'p q' is not a name"),
        ("queue a", "queue a\nprogram q", 3, "a second `program` line"),
        ("queue a", "queues a", 2, "'queues' starts no statement; use program, queue,"),
        ("queue a", "queue 1a", 2, "'1a' is not a name"),
        ("queue b", "queue a", 3, "queue 'a' is declared twice"),
        ("semaphore s", "semaphore a", 4, "semaphore 'a' has the name of a queue"),
        ("semaphore s", "semaphore s\nsemaphore s", 5, "semaphore 's' is declared twice"),
        ("extent t", "extent t\nextent t[]", 6, "extent 't' is declared twice"),
        ("group g 2", "group g 2\ngroup g 4", 8, "group 'g' is declared twice"),
        ("group g 2", "group g 0", 7, "group g has 0 ranks; a group has 1 to"),
        ("group g 2", "group g -2", 7, "group g has -2 ranks"),
        ("group g 2", f"group g {MAX_GROUP + 1}", 7, f"group g has {MAX_GROUP + 1} ranks"),
        ("group g 2", "group g two", 7, "'two' is not a whole number"),
        ("group g 2", "group g", 7, "write `group NAME SIZE`"),
        ("buffer w : fp32[4] weight", "buffer x : fp32[4] weight", 9, "buffer 'x' is declared twice"),
        ("buffer w : fp32[4] weight", "buffer w : fp32[4] attic", 9, "'attic' is no space; spaces: weight, table"),
        ("buffer w : fp32[4] weight", "buffer w fp32[4] weight", 9, "write `buffer NAME : dtype"),
        ("buffer w : fp32[4] weight", "buffer w : fp33[4] weight", 9, "unknown dtype 'fp33'"),
        ("buffer w : fp32[4] weight", "buffer w : fp32[] weight", 9, "'' is not a whole number"),
        ("buffer w : fp32[4] weight", "buffer w : fp32[4,] weight", 9, "'' is not a whole number"),
        ("buffer w : fp32[4] weight", "buffer w : fp32[-4] weight", 9, "dimension -4 is not an integer from 0"),
        ("buffer w : fp32[4] weight", "buffer w : fp32[u] weight", 9, "'u' is no declared scalar extent; declared: t"),
        ("buffer w : fp32[4] weight", "buffer w : fp32[lens] weight", 9, "'lens' is no declared scalar extent"),
        (
            "buffer w : fp32[4] weight",
            f"buffer w : fp32[{'1,' * 16}1] weight",
            9,
            "17 dimensions; a buffer has 1 to 16",
        ),
        ("block load", "block layer", 19, "block 'layer' is declared twice"),
        ("  param w : fp32[4]", "  param x : fp32[4]", 13, "buffer of block layer 'x' is declared twice"),
        ("  local y : fp32[t, 4]", "  local x : fp32[t, 4]", 14, "buffer of block layer 'x' is declared twice"),
        ("  local y : fp32[t, 4]", "  local y : fp32[u, 4]", 14, "block layer: y: dimension 'u'"),
        ("  local y : fp32[t, 4]", "  local y : fp32[t, 4] host", 14, "'host' stands after the type"),
        ("  a | rmsnorm", "  c | rmsnorm", 15, "block layer, instruction 0: no queue 'c'; the program has a, b"),
        ("  a | rmsnorm", "  a rmsnorm", 15, "an instruction is written `queue | mnemonic operands"),
        ("x=%x weight", "x=%z weight", 15, "block layer: no buffer 'z'; it has x, w, y"),
        ("x=%x weight", "x=%x[2:5] weight", 15, r"%x\[2:5\] takes columns that fp32\[t, 4\] does not have"),
        ("x=%x weight", "x=%h weight", 15, "no buffer 'h'"),
        ("count=1", "count=0", 16, "a signal must add at least 1"),
        ("signal semaphore=s", "signal semaphore=u", 16, "signal: semaphore 'u' is not declared"),
        ("signal semaphore=s", "signal semaphore=b", 16, "'b' is a queue, whose semaphore counts its instructions"),
        ("signal semaphore=s count=1", "barrier group=s", 16, "barrier: group 's' is not declared"),
        ("wait a+1", "wait u+1", 17, "waits for 'u', which is neither a queue nor a semaphore"),
        ("wait a+1", "wait a+3", 17, r"waits for a\+3, and the instructions above it only give \+2"),
        ("wait a+1", "wait b+1", 17, r"waits for b\+1, and the instructions above it only give \+0"),
        ("wait a+1", "wait s+2", 17, r"waits for s\+2, and the instructions above it only give \+1"),
        ("wait a+1", "wait a1", 17, r"'a1' is not semaphore\+count"),
        ("wait a+1", "wait a+1,", 17, r"'' is not semaphore\+count"),
        ("wait a+1", "wait a+9223372036854775808", 17, "not a whole number of at most 64 bits"),
        ("| wait a", "| hold a", 17, r"is not `wait semaphore\+count"),
        ("signal semaphore=s count=1", "wait semaphore=a count=2", 16, r"waits for a\+2, .* only give \+1"),
        ("  a | rmsnorm", "  a | halt\n  a | rmsnorm", 16, "queue 'a' has halted above: this is never issued"),
        ("b=%y", "b=%w", 17, "they must have one shape"),
        ("dst=%y x=%x", "dst=%x x=%y", 15, "%y is a local that is read before anything writes it"),
        ("host_load dst=%x src=%h", "host_load dst=%h src=%x", 23, "%h lies in host memory for one instruction"),
        ("call load x h", "call load h x", 25, "x must lie in device memory, and h is of space host"),
        ("call load x h", "call load x x", 25, "h must lie in host memory, and x is of space activation"),
        ("call load x h", "call store x h", 25, "no such block; the program has layer, load"),
        ("call load x h", "call load x", 25, "1 arguments for 2 parameters"),
        ("call load x h", "call load x g", 25, "h='g' is no buffer of the program"),
        ("call load x h", "call load x 9", 25, "'9' is not a name"),
        ("call load x h", "call load x w", 25, r"h is declared fp32\[t, 4\] and w is fp32\[4\]"),
        ("call load x h", "call", 25, "write `call BLOCK ARGUMENT...`"),
        ("x : fp32[t, 4] activation", "x : fp32[t, 4] table", 26, "the block writes x, and x is of space table"),
        ("x : fp32[t, 4] activation", "x : fp32[t, 4] weight", 26, "the block writes x, and x is of space weight"),
        ("end\nblock load", "block load", 18, "an instruction is written"),
    ],
)
def test_a_broken_rule_is_refused_with_its_line(old: str, new: str, line: int, message: str) -> None:
    assert old in LEGAL
    with pytest.raises(ProgramError, match=message) as refusal:
        assemble(LEGAL.replace(old, new, 1))
    assert str(refusal.value).startswith(f"line {line}: "), str(refusal.value)


def test_a_text_that_lacks_its_frame_is_refused() -> None:
    with pytest.raises(ProgramError, match="the text has no `program NAME` line"):
        assemble("queue a\n")
    with pytest.raises(ProgramError, match="line 2: block b has no `end`"):
        assemble("program p\nblock b\n  param x : fp32[1]\n")


def test_host_load_may_fill_a_weight_and_nothing_else_may() -> None:
    weights = LEGAL.replace("call load x h\n", "").replace("block load", "buffer v : fp32[t, 4] weight\nblock load")
    check_program(assemble(weights + "call load v h\n"))
    with pytest.raises(ProgramError, match="the block writes x, and v is of space weight"):
        assemble(weights + "call layer v w\n")


def test_one_buffer_for_two_parameters_is_refused_only_where_it_is_written() -> None:
    text = """program p
queue q
buffer x : fp32[4] activation
buffer y : fp32[4] activation
block b
  param a : fp32[4]
  param b : fp32[4]
  param c : fp32[4]
  q | add dst=%a a=%b b=%c
end
"""
    check_program(assemble(text + "call b y x x\n"))
    for call in ("call b x x y", "call b x y x"):
        with pytest.raises(ProgramError, match="a and [bc] are both x, and the block writes one of them"):
            assemble(text + call)


def test_a_local_may_be_received_before_it_is_read() -> None:
    text = LEGAL.replace("a | rmsnorm dst=%y x=%x", "a | broadcast x=%y group=g root=0\n  a | rmsnorm dst=%x x=%y")
    check_program(assemble(text))
    with pytest.raises(ProgramError, match="%y is a local that is read before anything writes it"):
        assemble(text.replace("broadcast x=%y group=g root=0", "all_reduce x=%y group=g"))


def test_a_local_does_not_lie_in_host_memory() -> None:
    text = LEGAL.replace("  param h : fp32[t, 4]", "  local h : fp32[t, 4]").replace("call load x h", "call load x")
    with pytest.raises(ProgramError, match="line 22: .*%h is a local, which lies on the device"):
        assemble(text)


X = TensorType(FP32, (4,))


def program(**changes: Any) -> Program:
    """A program built in Python, where types are not read from a text but may be anything."""
    instruction = changes.pop("instruction", SCALE(Ref("x"), Ref("x"), 2.0))
    waits = changes.pop("waits", ())
    block = Block("b", (("x", changes.pop("type", X)),), (), (Issue("q", instruction, waits),))
    whole: dict[str, Any] = {
        "name": "p",
        "queues": ("q",),
        "extents": (Extent("t"),),
        "groups": (Group("g", 2),),
        "semaphores": ("s",),
        "buffers": (Buffer("x", X, Space.ACTIVATION),),
        "blocks": (block,),
        "calls": (Call("b", ("x",)),),
    }
    return Program(**(whole | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "'' is not a legal program name"),
        ({"name": "a b"}, "'a b' is not a legal program name"),
        ({"queues": ("q", "c d")}, "'c d' is not a legal queue name"),
        ({"semaphores": ("\u00e9",)}, "is not a legal semaphore name"),
        ({"groups": (Group("g", True),)}, "group g has True ranks"),
        ({"groups": (Group("g", np.int64(2)),)}, "group g has .* ranks"),
        ({"type": TensorType(FP32, ())}, "0 dimensions; a buffer has 1 to 16"),
        ({"type": TensorType(FP32, (np.int64(4),))}, "dimension .*4.* is not an integer from 0"),
        ({"type": TensorType(FP32, (4.0,))}, "dimension 4.0 is not an integer from 0"),
        ({"type": TensorType(FP32, (MAX_UINT + 1,))}, "is not an integer from 0 to"),
        ({"waits": (("s", 0.5),)}, "waits for 's' and 0.5, which is no integer"),
        ({"waits": (("s", -1 << 64),)}, "which is no integer of 64 bits"),
        ({"instruction": SCALE("x", Ref("x"), 2.0)}, "scale: dst is 'x', must be: out buffer"),
        ({"instruction": SCALE(None, Ref("x"), 2.0)}, "scale: dst is None, must be: out buffer"),
        ({"instruction": SCALE(Ref("x y"), Ref("x"), 2.0)}, "scale: dst is .*must be: out buffer"),
        ({"instruction": SCALE(Ref("x"), Ref("x"), float("nan"))}, "scale: factor is nan, must be: number"),
        ({"instruction": SCALE(Ref("x"), Ref("x"), np.float32(2))}, "scale: factor is .*must be: number"),
        ({"instruction": SCALE(Ref("x"), Ref("x"), True)}, "scale: factor is True, must be: number"),
    ],
)
def test_values_of_the_wrong_type_are_refused_and_not_encoded(changes: dict[str, Any], message: str) -> None:
    encode_program(program())
    for refuse in (check_program, encode_program):
        with pytest.raises(ProgramError, match=message):
            refuse(program(**changes))


def test_an_argument_of_another_dtype_is_refused() -> None:
    wrong = Buffer("x", TensorType(INT32, (4,)), Space.ACTIVATION)
    with pytest.raises(ProgramError, match=r"call 0 of b: x is declared fp32\[4\] and x is int32\[4\]"):
        check_program(replace(program(), buffers=(wrong,)))
