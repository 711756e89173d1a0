"""Operands: what an instruction's fields may hold, and how each kind is written in bytes and in text."""

from __future__ import annotations

import math
import re
import struct
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from .dtype import DTYPES, DType, dtype_of_code, parse_dtype
from .errors import ConfigError, ProgramError


@dataclass(frozen=True)
class Ref:
    """A buffer, or `size` columns of its last dimension from `start` on (`size` None: all of them)."""

    buffer: str
    start: int = 0
    size: int | None = None

    def __str__(self) -> str:
        return f"%{self.buffer}" if self.size is None else f"%{self.buffer}[{self.start}:{self.start + self.size}]"


class Role(Enum):
    """How an instruction uses a buffer: hazards and liveness follow from it."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


class NameKind(Enum):
    """What a name operand names; the program must declare it."""

    EXTENT = "extent"
    GROUP = "group"
    SEMAPHORE = "semaphore"


In = Annotated[Ref, Role.IN]
Out = Annotated[Ref, Role.OUT]
InOut = Annotated[Ref, Role.INOUT]
OptionalIn = Annotated[Ref | None, Role.IN]
ExtentName = Annotated[str, NameKind.EXTENT]
GroupName = Annotated[str, NameKind.GROUP]
SemaphoreName = Annotated[str, NameKind.SEMAPHORE]


class Writer:
    """Bytes under construction, with a table of the strings that they mention."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.strings: dict[str, int] = {}

    def uint(self, value: int) -> Writer:
        """An unsigned integer, seven bits a byte, low bits first."""
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)
        return self

    def signed(self, value: int) -> Writer:
        """A signed integer, zigzag."""
        return self.uint(value << 1 if value >= 0 else (-value << 1) - 1)

    def real(self, value: float) -> Writer:
        """A 64-bit float, little-endian."""
        self.data += struct.pack("<d", value)
        return self

    def name(self, text: str) -> Writer:
        """A string, by its place in the string table."""
        return self.uint(self.strings.setdefault(text, len(self.strings)))


class Reader:
    """Bytes being read; every step checks that they are there and say something."""

    def __init__(self, data: bytes, strings: list[str], position: int = 0) -> None:
        self.data, self.strings, self.position = data, strings, position

    def fail(self, what: str) -> ProgramError:
        return ProgramError(f"not a valid program: {what} at byte {self.position}")

    def byte(self) -> int:
        if self.position >= len(self.data):
            raise self.fail("the bytes end")
        self.position += 1
        return self.data[self.position - 1]

    def uint(self, limit: int = 1 << 63) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift > 63:
                raise self.fail("an integer of more than 64 bits")
        if value > limit:
            raise self.fail(f"{value} where at most {limit} is allowed")
        return value

    def signed(self) -> int:
        value = self.uint(1 << 64)
        return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def real(self) -> float:
        raw = self.raw(8)
        value: float = struct.unpack("<d", raw)[0]
        if not math.isfinite(value):
            raise self.fail(f"a float operand that is {value}")
        return value

    def raw(self, count: int) -> bytes:
        if self.position + count > len(self.data):
            raise self.fail("the bytes end")
        self.position += count
        return self.data[self.position - count : self.position]

    def name(self) -> str:
        index = self.uint()
        if index >= len(self.strings):
            raise self.fail(f"string {index} of a table of {len(self.strings)}")
        return self.strings[index]


@dataclass(frozen=True)
class Kind:
    """One kind of operand: its codecs, and what the checker and the ISA page need to know."""

    label: str
    write: Callable[[Writer, Any], object]
    read: Callable[[Reader], Any]
    show: Callable[[Any], str]
    parse: Callable[[str], Any]
    role: Role | None = None
    names: NameKind | None = None
    optional: bool = False


NAME = re.compile(r"[A-Za-z_][\w./:-]*\Z")
_REF = re.compile(r"%([A-Za-z_][\w./:-]*)(?:\[(\d+):(\d+)\])?\Z")


def parse_name(text: str) -> str:
    """A bare name: letters, digits and `_ . / : -`, not starting with a digit."""
    if not NAME.match(text):
        raise ProgramError(f"{text!r} is not a name (letters, digits, _ . / : -, no digit first)")
    return text


def parse_ref(text: str) -> Ref:
    """`%name` or `%name[start:stop]`."""
    match = _REF.match(text)
    if not match:
        raise ProgramError(f"{text!r} is not a buffer operand; write %name or %name[start:stop]")
    name, start, stop = match.groups()
    if start is None:
        return Ref(name)
    if int(stop) <= int(start):
        raise ProgramError(f"{text!r} takes no columns: stop must be above start")
    return Ref(name, int(start), int(stop) - int(start))


def _write_ref(writer: Writer, ref: Ref | None) -> None:
    if ref is None:
        writer.uint(0)
        return
    writer.uint(1 if ref.size is None else 2)
    writer.name(ref.buffer)
    if ref.size is not None:
        writer.uint(ref.start)
        writer.uint(ref.size)


def _read_ref(optional: bool) -> Callable[[Reader], Ref | None]:
    def read(reader: Reader) -> Ref | None:
        form = reader.uint(2)
        if form == 0:
            if not optional:
                raise reader.fail("a missing operand")
            return None
        name = reader.name()
        if form == 1:
            return Ref(name)
        start, size = reader.uint(), reader.uint()
        if size == 0:
            raise reader.fail("an operand of no columns")
        return Ref(name, start, size)

    return read


def _parse_number(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            raise ProgramError(f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise ProgramError(f"{text!r} is not a finite number")
        return value

    return parse


def _parse_dtype(text: str) -> DType:
    try:
        return parse_dtype(text)
    except ConfigError as error:
        raise ProgramError(str(error)) from None


def _parse_flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ProgramError(f"{text!r} is not yes or no")
    return text == "yes"


def _choice(choices: tuple[str, ...]) -> Kind:
    def parse(text: str) -> str:
        if text not in choices:
            raise ProgramError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return Kind(
        label=" | ".join(choices),
        write=lambda w, v: w.uint(choices.index(v)),
        read=lambda r: choices[r.uint(len(choices) - 1)],
        show=str,
        parse=parse,
    )


def _ref(role: Role, optional: bool) -> Kind:
    return Kind(
        label=f"{role.value} buffer{' or -' if optional else ''}",
        write=_write_ref,
        read=_read_ref(optional),
        show=lambda v: "-" if v is None else str(v),
        parse=lambda text: None if optional and text == "-" else parse_ref(text),
        role=role,
        optional=optional,
    )


def _show_flag(value: bool) -> str:
    return "yes" if value else "no"


def _read_dtype(reader: Reader) -> DType:
    return dtype_of_code(reader.uint(len(DTYPES) - 1))


_SCALARS: dict[Any, Kind] = {
    int: Kind("integer", Writer.signed, Reader.signed, str, _parse_number(int)),
    float: Kind("number", Writer.real, Reader.real, repr, _parse_number(float)),
    bool: Kind("yes | no", lambda w, v: w.uint(int(v)), lambda r: bool(r.uint(1)), _show_flag, _parse_flag),
    DType: Kind("dtype", lambda w, v: w.uint(v.code), _read_dtype, str, _parse_dtype),
}


def kind_of(hint: Any) -> Kind:
    """The operand kind that a field's annotation declares; TypeError for one that no codec knows."""
    if typing.get_origin(hint) is Annotated:
        base, mark = typing.get_args(hint)[:2]
        if isinstance(mark, NameKind):
            return Kind(mark.value, Writer.name, Reader.name, str, parse_name, names=mark)
        return _ref(mark, optional=isinstance(base, types.UnionType))
    if typing.get_origin(hint) is Literal:
        return _choice(typing.get_args(hint))
    return _SCALARS[hint]
