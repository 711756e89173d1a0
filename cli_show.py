"""What commands share: their help, where a report may go, and how it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .runtime.report_document import Document

STDOUT = "-"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
JSON_OPTION = click.option("--json", "json_to", metavar="FILE|-", help="Write the report as JSON; - is stdout.")


def show(report: Any, print_text: Callable[[Any, Any], None], json_to: str | None) -> None:
    """Print a report as text, or as JSON in its place; JSON into a file stands beside the text."""
    from .runtime.files import write_file
    from .runtime.terminal import console_for

    document: Document = report
    if json_to is not None:
        write_file(json_to, lambda stream: stream.write(document.to_json().encode()))
    if json_to != STDOUT:
        print_text(report, console_for(sys.stdout))
