"""The options of `siltwin align` beside those of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

ALIGN_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("--forced-routing", is_flag=True, help="The reference takes the experts that the cards chose."),
)
NAMES = ("forced_routing",)


def align_options(command: F) -> F:
    """What an alignment alone is asked."""
    for option in reversed(ALIGN_OPTIONS):
        command = option(command)
    return command


def taken(asked: dict[str, Any]) -> dict[str, Any]:
    """The options of an alignment that were given, taken out of those of the job."""
    given = {name: asked.pop(name) for name in NAMES}
    return {name: value for name, value in given.items() if value is not None}
