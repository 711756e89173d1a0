"""The ISA page: docs/isa.md, generated from the declarations, so that it cannot differ from them."""

from __future__ import annotations

import inspect

from .dtype import ALIASES, DTYPES
from .instruction import Instruction
from .registry import INSTRUCTIONS, MODULES

_HEAD = """# The instruction set

Generated from the declarations in `isa/` by `python -m siltwin.isa.document`; a test checks that it is current.

A Program is a list of calls of blocks. A block is straight-line code over parameters and locals; a dimension of a
buffer is a number or the name of an extent, bound at submission. Vector extents may be parameters of a block too, which
each call binds, and an instruction may write one: it is bound once that has ended. An instruction stands in a queue and
may wait for semaphores; counts are relative to what earlier calls signal, and a queue's own semaphore grows by one as
each of its instructions ends. `%name[a:b]` takes columns a to b of a buffer's last dimension.

A program is legal when every name is declared once and used as what it is; the rules of each instruction below hold; a
wait is met by earlier calls and the instructions above it, so that the order of the text can run; a local is written
before it is read; an extent is written once, and not read before that; host transfers reach `host` buffers and nothing
else does; nothing but `host_load` writes a `weight` or `table` buffer; and a call binds one buffer to two parameters
only if the block writes neither. Binary and text forms hold legal programs only.
"""


def isa_page() -> str:
    """The whole page as Markdown."""
    lines = [_HEAD, "## Element types\n", "| name | bits | aliases |", "| --- | --- | --- |"]
    for name, dtype in DTYPES.items():
        others = ", ".join(alias for alias, target in ALIASES.items() if target == name)
        lines.append(f"| {name} | {dtype.bits} | {others} |")
    for module in MODULES:
        lines += ["", f"## {module.__name__.rpartition('.')[2]}", "", inspect.getdoc(module) or ""]
        for cls in INSTRUCTIONS.values():
            if cls.__module__ == module.__name__:
                lines += _entry(cls)
    return "\n".join(lines) + "\n"


def _entry(cls: type[Instruction]) -> list[str]:
    rows = [f"| {name} | {kind.label.replace('|', chr(92) + '|')} |" for name, kind in cls.operands.items()]
    table = ["", "| operand | kind |", "| --- | --- |", *rows] if rows else ["", "No operands."]
    return [
        "",
        f"### `{cls.mnemonic}` (opcode {cls.opcode:#04x}, {cls.unit.value})",
        "",
        inspect.getdoc(cls) or "",
        *table,
    ]


if __name__ == "__main__":
    print(isa_page(), end="")
