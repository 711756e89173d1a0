"""The binary form of a Program: a header, a string table, sections; strict to read, and sealed by a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeVar

from .check import check_program
from .dtype import DTYPES, dtype_of_code
from .errors import ProgramError
from .instruction import TensorType
from .operands import Reader, Writer
from .program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from .registry import decode_instruction

MAGIC = b"SLTW"
VERSION = 2
_SPACES = list(Space)
T = TypeVar("T")


def encode_program(program: Program) -> bytes:
    """Bytes of a program; `decode_program` gives it back equal. ProgramError when the program is not legal."""
    check_program(program)
    return _write_program(program)


def _write_program(program: Program) -> bytes:
    body = Writer()
    body.name(program.name)
    for names in (program.queues, program.semaphores):
        _write_all(body, names, body.name)
    _write_all(body, program.extents, lambda e: body.name(e.name).uint(int(e.is_vector)))
    _write_all(body, program.groups, lambda g: body.name(g.name).uint(g.size))
    _write_all(body, program.buffers, lambda b: _write_buffer(body, b))
    _write_all(body, program.blocks, lambda b: _write_block(body, b))
    _write_all(body, program.calls, lambda c: _write_call(body, c))
    strings = Writer()
    strings.uint(len(body.strings))
    for text in body.strings:
        raw = text.encode()
        strings.uint(len(raw))
        strings.data += raw
    sealed = MAGIC + bytes([VERSION]) + bytes(strings.data) + bytes(body.data)
    return sealed + zlib.crc32(sealed).to_bytes(4, "little")


def decode_program(data: bytes) -> Program:
    """The program in these bytes, checked; ProgramError for anything that `encode_program` does not write."""
    if data[:4] != MAGIC:
        raise ProgramError(f"not a siltwin program: it starts with {data[:4]!r}, not {MAGIC!r}")
    if len(data) < 9 or data[4] != VERSION:
        raise ProgramError(
            f"program format version {data[4:5].hex() or '-'} is not readable; this siltwin reads {VERSION}"
        )
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ProgramError("the checksum does not fit: the program was cut or changed")
    reader = Reader(data[:-4], [], 5)
    reader.strings = _read_all(reader, lambda: _read_string(reader))
    program = _read_program(reader)
    if reader.position != len(reader.data):
        raise reader.fail(f"{len(reader.data) - reader.position} bytes left over")
    check_program(program)
    if _write_program(program) != data:
        raise ProgramError("not a valid program: its string table is not the one that this program writes")
    return program


def _read_program(reader: Reader) -> Program:
    return Program(
        name=reader.name(),
        queues=tuple(_read_all(reader, reader.name)),
        semaphores=tuple(_read_all(reader, reader.name)),
        extents=tuple(_read_all(reader, lambda: Extent(reader.name(), bool(reader.uint(1))))),
        groups=tuple(_read_all(reader, lambda: Group(reader.name(), reader.uint()))),
        buffers=tuple(_read_all(reader, lambda: _read_buffer(reader))),
        blocks=tuple(_read_all(reader, lambda: _read_block(reader))),
        calls=tuple(_read_all(reader, lambda: _read_call(reader))),
    )


def _write_all(writer: Writer, items: tuple[T, ...], write: Callable[[T], object]) -> None:
    writer.uint(len(items))
    for item in items:
        write(item)


def _read_all(reader: Reader, read: Callable[[], T]) -> list[T]:
    count = reader.uint(len(reader.data))  # every item takes a byte at least: a lying count ends here, not in memory
    return [read() for _ in range(count)]


def _read_string(reader: Reader) -> str:
    try:
        return reader.raw(reader.uint(len(reader.data))).decode()
    except UnicodeDecodeError:
        raise reader.fail("a string that is not UTF-8") from None


def _write_type(writer: Writer, kind: TensorType) -> None:
    writer.uint(kind.dtype.code)
    writer.uint(len(kind.shape))
    for dim in kind.shape:
        if isinstance(dim, str):
            writer.uint(1)
            writer.name(dim)
        else:
            writer.uint(0)
            writer.uint(dim)


def _read_type(reader: Reader) -> TensorType:
    dtype = dtype_of_code(reader.uint(len(DTYPES) - 1))
    rank = reader.uint(16)
    return TensorType(dtype, tuple(reader.name() if reader.uint(1) else reader.uint() for _ in range(rank)))


def _write_buffer(writer: Writer, buffer: Buffer) -> None:
    writer.name(buffer.name)
    _write_type(writer, buffer.type)
    writer.uint(_SPACES.index(buffer.space))


def _read_buffer(reader: Reader) -> Buffer:
    return Buffer(reader.name(), _read_type(reader), _SPACES[reader.uint(len(_SPACES) - 1)])


def _write_call(writer: Writer, call: Call) -> None:
    writer.name(call.block)
    for names in (call.arguments, call.extents):
        _write_all(writer, names, writer.name)


def _read_call(reader: Reader) -> Call:
    return Call(reader.name(), *(tuple(_read_all(reader, reader.name)) for _ in range(2)))


def _write_block(writer: Writer, block: Block) -> None:
    writer.name(block.name)
    for names in (block.params, block.locals):
        _write_all(writer, names, lambda item: _write_type(writer.name(item[0]), item[1]))
    _write_all(writer, block.extents, writer.name)
    _write_all(writer, block.body, lambda issue: _write_issue(writer, issue))


def _write_issue(writer: Writer, issue: Issue) -> None:
    writer.name(issue.queue)
    issue.instruction.encode(writer)
    _write_all(writer, issue.waits, lambda wait: writer.name(wait[0]).signed(wait[1]))


def _read_block(reader: Reader) -> Block:
    def typed() -> tuple[str, TensorType]:
        return reader.name(), _read_type(reader)

    def issue() -> Issue:
        queue, instruction = reader.name(), decode_instruction(reader)
        return Issue(queue, instruction, tuple(_read_all(reader, lambda: (reader.name(), reader.signed()))))

    name = reader.name()
    params, local = (tuple(_read_all(reader, typed)) for _ in range(2))
    extents = tuple(_read_all(reader, reader.name))
    return Block(name, params, local, tuple(_read_all(reader, issue)), extents)
