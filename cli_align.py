"""The options of `siltwin align` beside those of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

ALIGN_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("--baseline", metavar="bf16|fp16", help="Beside: our own run of the same tokens in a plain dtype."),
    click.option("--text", metavar="FILE|TEXT", help="Perplexity of a text, or of a .json list of ids, in windows."),
    click.option("--window", type=int, metavar="N", help="Tokens of a window of --text (default: 512)."),
    click.option("--stride", type=int, metavar="N", help="Tokens between windows (default: the window)."),
    click.option("--forced-routing", is_flag=True, help="The reference takes the experts that the cards chose."),
    click.option("--extreme", is_flag=True, help="Extreme sequences and large activations, each judged by itself."),
    click.option("--drift", type=int, metavar="N", help="The error by position up to N tokens, as a curve."),
)
NAMES = ("baseline", "text", "window", "stride", "forced_routing", "extreme", "drift")


def align_options(command: F) -> F:
    """What an alignment alone is asked."""
    for option in reversed(ALIGN_OPTIONS):
        command = option(command)
    return command


def taken(asked: dict[str, Any]) -> dict[str, Any]:
    """The options of an alignment that were given, taken out of those of the job."""
    given = {name: asked.pop(name) for name in NAMES}
    return {name: value for name, value in given.items() if value is not None}
