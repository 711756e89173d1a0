"""The room a chat template runs in: a process of its own, short of time and memory, that reads and writes JSON.

Run as a script. It imports nothing of siltwin, so that starting it costs little.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

if sys.platform != "win32":
    import resource

MOST_SECONDS = 10
MOST_BYTES = 1 << 30


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; here it only stands around them."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: str, conversations: Sequence[Sequence[Mapping[str, Any]]], values: Mapping[str, Any]) -> list[str]:
    """The text of each conversation. Raises whatever a template may raise, which is anything at all."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    compiled = environment.from_string(template)
    return [compiled.render(messages=list(messages), **values) for messages in conversations]


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own tojson escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _limit() -> None:
    """Ask the system to stop this process where it runs away; systems without such limits still have the clock."""
    if sys.platform == "win32":
        return
    for kind, most in ((resource.RLIMIT_CPU, MOST_SECONDS), (resource.RLIMIT_AS, MOST_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # a stricter limit already holds
            resource.setrlimit(kind, (most, most))


def _answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"texts": render(asked["template"], asked["conversations"], asked["values"])}
    except MemoryError:
        return {"error": f"needs more than {MOST_BYTES >> 20} MiB of memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    _limit()
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
