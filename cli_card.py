"""The commands about one card: `siltwin card check`."""

from __future__ import annotations

import click

from .cli_exits import USER_ERROR
from .cli_show import JSON_OPTION, show


@click.group()
def card() -> None:
    """Look at one card description; `siltwin cards` lists and shows them."""


@card.command()
@click.argument("name", metavar="NAME|FILE.yaml")
@JSON_OPTION
def check(name: str, json_to: str | None) -> None:
    """Find what is impossible or inconsistent in a card; exit code 2 where something is."""
    from .runtime.card_check import card_check, print_card_check
    from .runtime.files import check_outputs

    check_outputs(json_to)
    report = card_check(name)
    show(report, print_card_check, json_to)
    if not report.sound:
        raise click.exceptions.Exit(USER_ERROR)
