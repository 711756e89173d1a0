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
from .formats.form import Form, parse_form

MAX_UINT = (1 << 63) - 1  # counts, sizes and columns; integers with a sign run from -MAX_UINT - 1 to MAX_UINT


@dataclass(frozen=True)
class Ref:
    """A buffer, or `size` columns of its last dimension from `start` on (`size` None: all of them).

    With `at`, the name of a scalar extent, they begin at the column that it is bound to, which may differ from card to
    card. Raises ProgramError for columns that no buffer can have.
    """

    buffer: str
    start: int = 0
    size: int | None = None
    at: str | None = None

    def __post_init__(self) -> None:
        if self.at is not None and (self.size is None or self.start != 0):
            raise ProgramError(f"%{self.buffer}: columns from {self.at} on need a size, and no start beside it")
        if self.size is None and self.start != 0:
            raise ProgramError(f"%{self.buffer}: columns from {self.start} on need a size")
        if self.size is not None and (self.start < 0 or self.size < 1 or self.start + self.size > MAX_UINT):
            raise ProgramError(f"{self}: columns need 0 <= start < stop")

    def overlaps(self, other: Ref | None) -> bool:
        """Whether the two share columns of one buffer."""
        if other is None or self.buffer != other.buffer:
            return False
        if self.size is None or other.size is None or self.at != other.at:
            return True
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        if self.at is not None:
            return f"%{self.buffer}[{self.at}:+{self.size}]"
        return f"%{self.buffer}" if self.size is None else f"%{self.buffer}[{self.start}:{self.start + self.size}]"


class Role(Enum):
    """How an instruction uses a buffer: hazards and liveness follow from it."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


class NameKind(Enum):
    """What a name operand names; the program must declare it."""

    EXTENT = "vector extent"
    EXTENT_OUT = "vector extent, written"
    NUMBER = "integer or scalar extent"
    GROUP = "group"
    SEMAPHORE = "semaphore"


In = Annotated[Ref, Role.IN]
Out = Annotated[Ref, Role.OUT]
InOut = Annotated[Ref, Role.INOUT]
HostIn = Annotated[Ref, Role.IN, "host"]
HostOut = Annotated[Ref, Role.OUT, "host"]
HostInOut = Annotated[Ref, Role.INOUT, "host"]
OptionalIn = Annotated[Ref | None, Role.IN]
ExtentName = Annotated[str, NameKind.EXTENT]
ExtentOut = Annotated[str, NameKind.EXTENT_OUT]
Number = Annotated[int | str, NameKind.NUMBER]  # the same on all cards, or what an extent of that name is bound to
GroupName = Annotated[str, NameKind.GROUP]
SemaphoreName = Annotated[str, NameKind.SEMAPHORE]


class Writer:
    """Bytes under construction, with a table of the strings that they mention."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.strings: dict[str, int] = {}

    def uint(self, value: int) -> Writer:
        """An unsigned integer, seven bits a byte, low bits first."""
        if value < 0:
            raise ProgramError(f"{value} is negative and cannot be encoded as a count")
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

    def uint(self, limit: int = MAX_UINT) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift > 63:
                raise self.fail("an integer of more than 64 bits")
        if byte == 0 and shift > 7:
            raise self.fail("an integer written with more bytes than it needs")
        if value > limit:
            raise self.fail(f"{value} where at most {limit} is allowed")
        return value

    def signed(self) -> int:
        value = self.uint(2 * MAX_UINT + 1)
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
    legal: Callable[[Any], bool]
    role: Role | None = None
    names: NameKind | None = None
    optional: bool = False
    on_host: bool = False


NAME = re.compile(r"[A-Za-z_][\w./:-]*\Z", re.ASCII)
_REF = re.compile(r"%([A-Za-z_][\w./:-]*)(?:\[(\d{1,19}):(\d{1,19})\])?\Z", re.ASCII)
_COLUMNS_AT = re.compile(r"%([A-Za-z_][\w./:-]*)\[([A-Za-z_][\w./:-]*):\+(\d{1,19})\]\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,20}\Z", re.ASCII)


def is_name(value: object) -> bool:
    """Whether a value is a legal bare name."""
    return isinstance(value, str) and NAME.match(value) is not None


def is_integer(value: object) -> bool:
    """Whether a value is a Python int (no bool, no NumPy integer) of at most 64 bits."""
    return type(value) is int and -MAX_UINT - 1 <= value <= MAX_UINT


def is_number(value: object) -> bool:
    """Whether a value is a finite Python float, or an integer that a float holds exactly."""
    if type(value) is int:
        return is_integer(value) and int(float(value)) == value
    return type(value) is float and math.isfinite(value)


def parse_name(text: str) -> str:
    """A bare name: letters, digits and `_ . / : -`, not starting with a digit."""
    if not NAME.match(text):
        raise ProgramError(f"{text!r} is not a name (letters, digits, _ . / : -, no digit first)")
    return text


def parse_ref(text: str) -> Ref:
    """`%name`, `%name[start:stop]`, or `%name[extent:+size]`."""
    if match := _COLUMNS_AT.match(text):
        name, at, size = match.groups()
        return Ref(name, 0, int(size), at)
    match = _REF.match(text)
    if not match:
        raise ProgramError(f"{text!r} is not a buffer operand; write %name, %name[start:stop] or %name[extent:+size]")
    name, start, stop = match.groups()
    if start is None:
        return Ref(name)
    if int(stop) <= int(start):
        raise ProgramError(f"{text!r} takes no columns: stop must be above start")
    return Ref(name, int(start), int(stop) - int(start))


def parse_integer(text: str) -> int:
    """A whole number of at most 64 bits, in decimal digits."""
    if not _INTEGER.match(text):
        raise ProgramError(f"{text[:40]!r} is not a whole number of at most 64 bits")
    value = int(text)
    if not is_integer(value):
        raise ProgramError(f"{text!r} is not a whole number of at most 64 bits")
    return value


def _write_ref(writer: Writer, ref: Ref | None) -> None:
    if ref is None:
        writer.uint(0)
        return
    writer.uint(1 if ref.size is None else 2 if ref.at is None else 3)
    writer.name(ref.buffer)
    if ref.size is not None:
        writer.uint(ref.start) if ref.at is None else writer.name(ref.at)
        writer.uint(ref.size)


def _read_ref(optional: bool) -> Callable[[Reader], Ref | None]:
    def read(reader: Reader) -> Ref | None:
        form = reader.uint(3)
        if form == 0:
            if not optional:
                raise reader.fail("a missing operand")
            return None
        name = reader.name()
        if form == 1:
            return Ref(name)
        start, at = (reader.uint(), None) if form == 2 else (0, reader.name())
        size = reader.uint()
        if size == 0:
            raise reader.fail("an operand of no columns")
        return Ref(name, start, size, at)

    return read


def _parse_real(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ProgramError(f"{text[:40]!r} is not a number") from None
    if not math.isfinite(value):
        raise ProgramError(f"{text!r} is not a finite number")
    return value


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
        legal=lambda v: isinstance(v, str) and v in choices,
    )


def _ref(role: Role, optional: bool, on_host: bool) -> Kind:
    return Kind(
        label=f"{role.value} {'host ' if on_host else ''}buffer{' or -' if optional else ''}",
        write=_write_ref,
        read=_read_ref(optional),
        show=lambda v: "-" if v is None else str(v),
        parse=lambda text: None if optional and text == "-" else parse_ref(text),
        legal=lambda v: (optional and v is None) or _is_ref(v),
        role=role,
        optional=optional,
        on_host=on_host,
    )


def _is_ref(value: object) -> bool:
    return isinstance(value, Ref) and is_name(value.buffer) and (value.at is None or is_name(value.at))


def _write_number(writer: Writer, value: int | str) -> None:
    if isinstance(value, str):
        writer.uint(1).name(value)
    else:
        writer.uint(0).signed(value)


def _read_number(reader: Reader) -> int | str:
    return reader.name() if reader.uint(1) else reader.signed()


def _parse_number(text: str) -> int | str:
    return parse_name(text) if NAME.match(text) else parse_integer(text)


def _is_operand_number(value: object) -> bool:
    return is_name(value) or is_integer(value)


def _show_flag(value: bool) -> str:
    return "yes" if value else "no"


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_dtype(value: object) -> bool:
    return isinstance(value, DType) and DTYPES.get(value.name) == value


def _read_dtype(reader: Reader) -> DType:
    return dtype_of_code(reader.uint(len(DTYPES) - 1))


_SCALARS: dict[Any, Kind] = {
    int: Kind("integer", Writer.signed, Reader.signed, str, parse_integer, is_integer),
    float: Kind("number", Writer.real, Reader.real, lambda v: repr(float(v)), _parse_real, is_number),
    bool: Kind("yes | no", lambda w, v: w.uint(int(v)), lambda r: bool(r.uint(1)), _show_flag, _parse_flag, _is_flag),
    Form: Kind(
        "form",
        lambda w, v: w.name(str(v)),
        lambda r: parse_form(r.name()),
        str,
        parse_form,
        lambda v: isinstance(v, Form),
    ),
    DType: Kind("dtype", lambda w, v: w.uint(v.code), _read_dtype, str, _parse_dtype, _is_dtype),
}


def kind_of(hint: Any) -> Kind:
    """The operand kind that a field's annotation declares; TypeError for one that no codec knows."""
    if typing.get_origin(hint) is Annotated:
        base, mark, *where = typing.get_args(hint)
        if mark is NameKind.NUMBER:
            return Kind(mark.value, _write_number, _read_number, str, _parse_number, _is_operand_number, names=mark)
        if isinstance(mark, NameKind):
            return Kind(mark.value, Writer.name, Reader.name, str, parse_name, is_name, names=mark)
        if isinstance(mark, Role):
            return _ref(mark, optional=isinstance(base, types.UnionType), on_host=where == ["host"])
    if typing.get_origin(hint) is Literal:
        return _choice(typing.get_args(hint))
    if hint not in _SCALARS:
        raise TypeError(f"no operand kind for a field of type {hint}; use a buffer, a name, a number or Literal")
    return _SCALARS[hint]
