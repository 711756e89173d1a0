"""The text form of a Program: one statement a line; assemble and disassemble are inverse to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .check import check_program
from .dtype import parse_dtype
from .errors import ConfigError, ProgramError
from .instruction import Dim, TensorType
from .operands import parse_name
from .program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from .registry import parse_instruction

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
        lines += [f"  {_show_issue(issue)}" for issue in block.body]
        lines += ["end"]
    lines += [""] + [" ".join(["call", call.block, *call.arguments]) for call in program.calls]
    return "\n".join(lines) + "\n"


def _show_issue(issue: Issue) -> str:
    waits = ", ".join(f"{name}+{count}" if count >= 0 else f"{name}{count}" for name, count in issue.waits)
    return f"{issue.queue} | {issue.instruction}" + (f" | wait {waits}" if waits else "")


def assemble(text: str) -> Program:
    """The program that a text states, checked; ProgramError naming the line otherwise. `#` starts a comment."""
    found: dict[str, list[object]] = {section: [] for section in _SECTIONS}
    name = ""
    lines = _statements(text)
    for number, line in lines:
        try:
            word, _, rest = line.partition(" ")
            if word == "program":
                name = parse_name(rest)
            elif word == "block":
                found["block"].append(_parse_block(parse_name(rest), lines))
            elif word in _SECTIONS:
                found[word].append(_parse_statement(word, rest))
            else:
                raise ProgramError(f"{word!r} starts no statement; use program, {', '.join(_SECTIONS)}")
        except (ProgramError, ConfigError) as error:
            message = str(error)
            raise ProgramError(message if message.startswith("line ") else f"line {number}: {message}") from None
    if not name:
        raise ProgramError("the text has no `program NAME` line")
    sections: dict[str, Any] = {f"{section}s": tuple(items) for section, items in found.items()}
    program = Program(name, **sections)
    check_program(program)
    return program


def _statements(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            yield number, line


def _parse_statement(word: str, rest: str) -> object:
    if word in ("queue", "semaphore"):
        return parse_name(rest)
    if word == "extent":
        return Extent(parse_name(rest.removesuffix("[]")), rest.endswith("[]"))
    if word == "group":
        name, size = _words(rest, 2, "group NAME SIZE")
        return Group(parse_name(name), _integer(size))
    if word == "buffer":
        name, kind, space = _typed(rest, "buffer NAME : dtype[dims] space")
        if space not in {s.value for s in Space}:
            raise ProgramError(f"{space!r} is no space; spaces: {', '.join(s.value for s in Space)}")
        return Buffer(name, kind, Space(space))
    block, *arguments = _words(rest, None, "call BLOCK ARGUMENT...")
    return Call(parse_name(block), tuple(parse_name(argument) for argument in arguments))


def _parse_block(name: str, lines: Iterator[tuple[int, str]]) -> Block:
    typed: dict[str, list[tuple[str, TensorType]]] = {"param": [], "local": []}
    body: list[Issue] = []
    for number, line in lines:
        try:
            word, _, rest = line.partition(" ")
            if word == "end":
                return Block(name, tuple(typed["param"]), tuple(typed["local"]), tuple(body))
            if word in typed:
                buffer, kind, _ = _typed(rest, f"{word} NAME : dtype[dims]")
                typed[word].append((buffer, kind))
            else:
                body.append(_parse_issue(line))
        except (ProgramError, ConfigError) as error:
            raise ProgramError(f"line {number}: {error}") from None
    raise ProgramError(f"block {name} has no `end`")


def _parse_issue(line: str) -> Issue:
    queue, *parts = (part.strip() for part in line.split("|"))
    if not 1 <= len(parts) <= 2:
        raise ProgramError("an instruction is written `queue | mnemonic operands [| wait semaphore+count, ...]`")
    waits: list[tuple[str, int]] = []
    if len(parts) == 2:
        if not parts[1].startswith("wait "):
            raise ProgramError(f"{parts[1]!r} is not `wait semaphore+count, ...`")
        for item in parts[1].removeprefix("wait ").split(","):
            match = re.match(r"\s*(\S+?)([+-]\d+)\s*\Z", item)
            if not match:
                raise ProgramError(f"{item.strip()!r} is not semaphore+count")
            waits.append((parse_name(match[1]), int(match[2])))
    return Issue(parse_name(queue), parse_instruction(parts[0]), tuple(waits))


def _typed(rest: str, form: str) -> tuple[str, TensorType, str]:
    name, colon, kind = rest.partition(":")
    head, bracket, tail = kind.strip().partition("]")
    match = _TYPE.match(head + bracket)
    if not colon or not match:
        raise ProgramError(f"write `{form}`, not {rest!r}")
    dims: list[Dim] = []
    for dim in filter(None, (d.strip() for d in match[2].split(","))):
        dims.append(_integer(dim) if dim[0].isdigit() or dim[0] == "-" else parse_name(dim))
    return parse_name(name.strip()), TensorType(parse_dtype(match[1]), tuple(dims)), tail.strip()


def _words(text: str, count: int | None, form: str) -> list[str]:
    words = text.split()
    if not words or (count is not None and len(words) != count):
        raise ProgramError(f"write `{form}`")
    return words


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ProgramError(f"{text!r} is not a whole number") from None
