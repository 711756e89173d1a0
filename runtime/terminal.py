"""How values are written on a terminal: times, bytes, counts, tables and text that somebody else wrote."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

NONE = "-"
TIME_UNITS = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3), ("ps", 1))
BYTE_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
KEPT_CONTROLS = "\n\t\u200c\u200d"  # line ends, tabs, and the joiners that scripts and emoji are written with


class _PipeConsole(Console):
    """A console that leaves it to the caller what a broken pipe means, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console_for(file: TextIO) -> Console:
    """A console on a stream: colours only on a terminal, 80 columns where there is none, nothing guessed from text."""
    return _PipeConsole(file=file, markup=False, highlight=False, emoji=False)


def plain(text: str) -> str:
    """Text with control characters made visible, so that a model or a file cannot command the terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in KEPT_CONTROLS or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else ascii(char)[1:-1]
        for char in text
    )


def digits(value: float) -> str:
    """About four significant digits, never in powers of ten between 0.001 and a million."""
    size = abs(value)
    if value == int(value) and size < 1e6:
        return f"{int(value):,}"
    if not 1e-3 <= size < 1e6:
        return f"{value:.3g}"
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 1 else 4}f}"


def duration(picoseconds: int | float | None) -> str:
    """A length of time in the largest unit that leaves a whole part."""
    if picoseconds is None:
        return NONE
    name, size = next((unit for unit in TIME_UNITS if picoseconds >= unit[1]), TIME_UNITS[-1])
    return f"{digits(picoseconds / size)} {name}"


def seconds(value: float | None) -> str:
    """Seconds of simulated time, as `duration`."""
    return NONE if value is None else duration(value * 1e12)


def byte_unit(num_bytes: int) -> tuple[str, int]:
    """The largest unit (name, bytes) that leaves a whole part."""
    return next((unit for unit in BYTE_UNITS if num_bytes >= unit[1]), BYTE_UNITS[-1])


def in_unit(num_bytes: int | None, unit: tuple[str, int]) -> str:
    """A number of bytes in a given unit, without its name."""
    return NONE if num_bytes is None else digits(num_bytes / unit[1])


def size(num_bytes: int | None) -> str:
    """A number of bytes in a unit of its own."""
    if num_bytes is None:
        return NONE
    unit = byte_unit(num_bytes)
    return f"{in_unit(num_bytes, unit)} {unit[0]}"


def exact_size(num_bytes: int | None) -> str:
    """A number of bytes to the byte, with its size in a readable unit."""
    if num_bytes is None:
        return NONE
    return f"{num_bytes:,} B" + (f" ({size(num_bytes)})" if num_bytes >= 1024 else "")


def percent(part: float, whole: float) -> str:
    """A share in percent; nothing where there is no whole."""
    return NONE if not whole else f"{100 * part / whole:.1f} %"


def number(value: float | None) -> str:
    """A plain number, or a dash."""
    return NONE if value is None else digits(value)


def scientific(value: float | None) -> str:
    """An error in powers of ten; null is what was not a finite number."""
    return "not finite" if value is None else f"{value:.2e}"


def ranges(ranks: Sequence[int]) -> str:
    """Ranks in order, as `0-2,5`."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Group:
    """A title over a table without lines.

    The first column and those named with a leading `<` are words and may wrap; all others are numbers and may not.
    With a leading `|` a column is words that may not, such as names to be copied.
    """
    made = Table(box=None, header_style="dim", padding=(0, 1, 0, 1))
    for index, column in enumerate(columns):
        words = index == 0 or column.startswith(("<", "|"))
        wraps = words and not column.startswith("|")
        justify: Literal["left", "right"] = "left" if words else "right"
        made.add_column(column.lstrip("<|"), justify=justify, no_wrap=not wraps, overflow="fold")
    for row in rows:
        made.add_row(*(Text(plain(str(cell))) for cell in row))
    return Group(Text(title, style="bold"), made)


def bullets(title: str, lines: Sequence[str], style: str = "") -> list[RenderableType]:
    """A title and an indented paragraph for each line, or nothing at all."""
    if not lines:
        return []
    listed = Table(box=None, show_header=False, padding=(0, 0, 0, 1))
    for line in lines:
        listed.add_row(Text("-", style=style), Text(plain(line), style=style))
    return [Text(title, style=f"bold {style}".strip()), listed]
