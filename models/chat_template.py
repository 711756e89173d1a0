"""Chat templates: untrusted Jinja from a checkpoint, rendered in an immutable sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from ..isa.errors import ConfigError


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; here it only stands around them."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], where: str, **values: Any) -> str:
    """The prompt text of a conversation, as transformers' apply_chat_template makes it.

    `values` are the template's other variables (bos_token, add_generation_prompt, ...). There is no strftime_now: a
    prompt that depended on the day could not be rerun. Raises ConfigError, naming `where`, when the template is broken,
    refuses the messages, or tries to reach out of the sandbox.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template).render(messages=list(messages), **values)
    except Exception as error:  # a hostile template may raise anything at all
        raise ConfigError(f"{where}: chat template: {type(error).__name__}: {error}") from None


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
