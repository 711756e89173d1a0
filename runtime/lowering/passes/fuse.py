"""Fusion: instructions that follow one another rewritten as one, so that what stands between never leaves the chip."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ....isa.errors import ConfigError
from ....isa.program import Program
from ....isa.work import Unit
from . import product_fusions, rope_fusions
from .rewrite import BlockEditor, Rewritten, with_blocks
from .window import DEFAULT_FUSIONS, DEQUANTISE_MATMUL, FUSIONS, Window

ALL, NONE = "all", "none"
ROOMS = (product_fusions, rope_fusions)  # importing them registers what they hold, in the order in which it acts


def parse_fusions(text: str | None) -> tuple[str, ...]:
    """The fusions that --fuse names, in the order in which they act; ConfigError for a name that is none.

    Without --fuse they are the default ones, and with it those it names alone.
    """
    if text is None:
        return DEFAULT_FUSIONS
    names, known = {name.strip() for name in text.split(",") if name.strip()}, fusion_names()
    if not names:
        raise ConfigError(f"--fuse {text!r} names no fusion; choose of {', '.join(known)}, or {ALL}, or {NONE}")
    unknown = sorted(names - {ALL, NONE, *known})
    if unknown:
        raise ConfigError(f"--fuse {unknown[0]!r} is no fusion; choose of {', '.join(known)}, or {ALL}, or {NONE}")
    if NONE in names and len(names) > 1:
        raise ConfigError(f"--fuse {text}: {NONE} and others exclude each other")
    return tuple(name for name in known if ALL in names or name in names)


def fusion_names() -> tuple[str, ...]:
    """All fusions in the order in which they act."""
    return (DEQUANTISE_MATMUL, *FUSIONS)


def fuse(
    program: Program, names: Sequence[str], native: Collection[str], queue_of: Mapping[Unit, str]
) -> tuple[Program, tuple[Rewritten, ...]]:
    """The program with these fusions applied wherever they can be, for a card that executes `native` mnemonics.

    That of packed weights is made before what the card lacks is composed, by `packed.fuse_decoding`.

    ConfigError where the card has not the instruction that a fusion makes.
    """
    names = [name for name in names if name in FUSIONS]
    if not names:
        return program, ()
    for name in names:
        makes = [kind.mnemonic for kind in FUSIONS[name].makes]
        if not set(makes) & set(native):
            raise ConfigError(f"--fuse {name} makes {' or '.join(makes)}, none of which is native to the card")
    blocks, rewritten = [], list[Rewritten]()
    for block in program.blocks:
        editor = BlockEditor(program, block, queue_of)
        window = Window(editor, block.body, native)
        for name in names:
            rewritten += [
                Rewritten(f"fuse {name}", block.name, old, (new,)) for old, new in FUSIONS[name].apply(window)
            ]
        blocks.append(editor.done(window.result))
    return with_blocks(program, blocks), tuple(rewritten)
