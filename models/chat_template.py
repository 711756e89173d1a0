"""Chat templates: untrusted Jinja from a checkpoint, rendered in an immutable sandbox in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..isa.errors import ConfigError
from ..isa.late import late

if TYPE_CHECKING:
    from . import chat_sandbox
else:
    chat_sandbox = late(".chat_sandbox", __package__)

Conversation = Sequence[Mapping[str, Any]]


def render_chats(template: str, conversations: Sequence[Conversation], where: str, **values: Any) -> list[str]:
    """The prompt text of each conversation, as transformers' apply_chat_template makes it.

    `values` are the template's other variables (bos_token, add_generation_prompt, ...). There is no strftime_now: a
    prompt that depended on the day could not be rerun. Raises ConfigError, naming `where`, when the template is broken,
    refuses the messages, tries to reach out of the sandbox, or takes more time or memory than any honest one.
    """
    asked = {"template": template, "conversations": [list(messages) for messages in conversations], "values": values}
    most_seconds = chat_sandbox.MOST_SECONDS
    child_command = (sys.executable, "-P", str(chat_sandbox.__file__))  # -P: its own folder is no place to import from
    try:
        child = subprocess.run(
            child_command, input=json.dumps(asked).encode(), capture_output=True, timeout=most_seconds, check=False
        )
        answer = json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{where}: chat template: runs for more than {most_seconds} s; it may never end") from None
    except OSError as error:
        raise ConfigError(f"{where}: chat template: no process to run it in ({error})") from None
    except ValueError:  # the child was stopped before it could answer
        said = child.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = f" ({said[0]})" if said else ""
        raise ConfigError(f"{where}: chat template: takes more time or memory than it may{why}") from None
    if "error" in answer:
        raise ConfigError(f"{where}: chat template: {answer['error']}")
    texts: list[str] = answer["texts"]
    return texts
