"""The text form of a Program: one statement a line; assemble and disassemble are inverse to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .check import IllegalProgramError, Place, check_program
from .dtype import parse_dtype
from .errors import ConfigError, ProgramError
from .instruction import Dim, TensorType
from .operands import NAME, parse_integer, parse_name
from .program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from .registry import parse_instruction

_WAIT = re.compile(r"(\S+)([+-]\d+)\Z", re.ASCII)
_TYPE = re.compile(r"(\w+)\[([^\]]*)\]\Z")
_SECTIONS = ("queue", "semaphore", "extent", "group", "buffer", "block", "call")


def disassemble(program: Program) -> str:
    """A program as text."""
    lines = [f"program {program.name}"]
    lines += [f"queue {name}" for name in program.queues]
    lines += [f"semaphore {name}" for name in program.semaphores]
    lines += [f"extent {extent.name}{'[]' if extent.is_vector else ''}" for extent in program.extents]
    lines += [f"group {group.name} {group.size}" for group in program.groups]
    lines += [f"buffer {b.name} : {b.type} {b.space.value}" for b in program.buffers]
    for block in program.blocks:
        lines += ["", f"block {block.name}"]
        lines += [f"  param {name} : {kind}" for name, kind in block.params]
        lines += [f"  local {name} : {kind}" for name, kind in block.locals]
        lines += [f"  extent {name}[]" for name in block.extents]
        lines += [f"  {_show_issue(issue)}" for issue in block.body]
        lines += ["end"]
    lines += [""] + [_show_call(call) for call in program.calls]
    return "\n".join(lines) + "\n"


def _show_call(call: Call) -> str:
    return " ".join(["call", call.block, *call.arguments, *(["|", *call.extents] if call.extents else [])])


def _show_issue(issue: Issue) -> str:
    waits = ", ".join(f"{name}+{count}" if count >= 0 else f"{name}{count}" for name, count in issue.waits)
    return f"{issue.queue} | {issue.instruction}" + (f" | wait {waits}" if waits else "")


class _LineError(ProgramError):
    """A ProgramError that names its line."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(f"line {number}: {error}")


def assemble(text: str) -> Program:
    """The program that a text states, checked; ProgramError naming the line otherwise. `#` starts a comment."""
    found: dict[str, list[Any]] = {section: [] for section in ("program", *_SECTIONS)}
    places: dict[Place, int] = {}
    lines = _statements(text)
    for number, line in lines:
        word, _, rest = line.partition(" ")
        places[(word, len(found.get(word, ())))] = number
        try:
            if word == "block":
                found["block"].append(_parse_block(rest, ("block", len(found["block"])), number, lines, places))
            elif word in found:
                found[word].append(_parse_statement(word, rest))
            else:
                raise ProgramError(f"{word!r} starts no statement; use program, {', '.join(_SECTIONS)}")
            if len(found["program"]) > 1:
                raise ProgramError("a second `program` line")
        except _LineError:
            raise
        except (ProgramError, ConfigError) as error:
            raise _LineError(number, error) from None
    if not found["program"]:
        raise ProgramError("the text has no `program NAME` line")
    sections: dict[str, Any] = {f"{section}s": tuple(found[section]) for section in _SECTIONS}
    program = Program(found["program"][0], **sections)
    try:
        check_program(program)
    except IllegalProgramError as error:
        raise _LineError(places[error.place], error) from None
    return program


def _statements(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            yield number, line


def _parse_statement(word: str, rest: str) -> object:
    if word in ("program", "queue", "semaphore"):
        return parse_name(rest)
    if word == "extent":
        return Extent(parse_name(rest.removesuffix("[]")), rest.endswith("[]"))
    if word == "group":
        name, size = _words(rest, 2, "group NAME SIZE")
        return Group(parse_name(name), parse_integer(size))
    if word == "buffer":
        name, kind, space = _typed(rest, "buffer NAME : dtype[dims] space")
        if space not in {s.value for s in Space}:
            raise ProgramError(f"{space!r} is no space; spaces: {', '.join(s.value for s in Space)}")
        return Buffer(name, kind, Space(space))
    before, bar, after = rest.partition("|")
    block, *arguments = _words(before, None, "call BLOCK ARGUMENT...")
    extents = _words(after, None, "call BLOCK ARGUMENT... | EXTENT...") if bar else []
    return Call(parse_name(block), tuple(map(parse_name, arguments)), tuple(map(parse_name, extents)))


def _parse_block(rest: str, at: Place, start: int, lines: Iterator[tuple[int, str]], places: dict[Place, int]) -> Block:
    name = parse_name(rest)
    found: dict[str, list[Any]] = {"param": [], "local": [], "body": [], "extent": []}
    for number, line in lines:
        if line == "end":
            return Block(name, *(tuple(items) for items in found.values()))
        try:
            section, item = _parse_in_block(line)
        except (ProgramError, ConfigError) as error:
            raise _LineError(number, error) from None
        places[(*at, section, len(found[section]))] = number
        found[section].append(item)
    raise _LineError(start, ProgramError(f"block {name} has no `end`"))


def _parse_in_block(line: str) -> tuple[str, tuple[str, TensorType] | str | Issue]:
    """What a line within a block states; a bar tells an instruction from a declaration, whatever its queue's name."""
    word, _, rest = line.partition(" ")
    if "|" in line or word not in ("param", "local", "extent"):
        return "body", _parse_issue(line)
    if word == "extent":
        if not rest.endswith("[]"):
            raise ProgramError(f"{rest!r} must be a vector extent; write `extent NAME[]`")
        return word, parse_name(rest.removesuffix("[]"))
    name, kind, tail = _typed(rest, f"{word} NAME : dtype[dims]")
    if tail:
        raise ProgramError(f"{tail!r} stands after the type; write `{word} NAME : dtype[dims]`")
    return word, (name, kind)


def _parse_issue(line: str) -> Issue:
    queue, *parts = (part.strip() for part in line.split("|"))
    if not 1 <= len(parts) <= 2:
        raise ProgramError("an instruction is written `queue | mnemonic operands [| wait semaphore+count, ...]`")
    waits = _parse_waits(parts[1]) if len(parts) == 2 else ()
    return Issue(parse_name(queue), parse_instruction(parts[0]), waits)


def _parse_waits(text: str) -> tuple[tuple[str, int], ...]:
    if not text.startswith("wait "):
        raise ProgramError(f"{text!r} is not `wait semaphore+count, ...`")
    waits = []
    for item in text.removeprefix("wait ").split(","):
        match = _WAIT.match(item.strip())
        if not match:
            raise ProgramError(f"{item.strip()!r} is not semaphore+count")
        waits.append((parse_name(match[1]), parse_integer(match[2])))
    return tuple(waits)


def _typed(rest: str, form: str) -> tuple[str, TensorType, str]:
    name, colon, kind = rest.partition(" : ")
    head, bracket, tail = kind.strip().partition("]")
    match = _TYPE.match(head + bracket)
    if not colon or not match:
        raise ProgramError(f"write `{form}`, not {rest!r}")
    dims: list[Dim] = []
    for dim in (d.strip() for d in match[2].split(",")):
        dims.append(parse_name(dim) if NAME.match(dim) else parse_integer(dim))
    return parse_name(name.strip()), TensorType(parse_dtype(match[1]), tuple(dims)), tail.strip()


def _words(text: str, count: int | None, form: str) -> list[str]:
    words = text.split()
    if not words or (count is not None and len(words) != count):
        raise ProgramError(f"write `{form}`")
    return words
