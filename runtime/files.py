"""Files that the command line reads and writes: prompts as ids, programs, reports, traces, logits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ..isa.errors import ConfigError

if TYPE_CHECKING:
    from .run import RunResult  # the emulator, which reading a file does without

STDOUT = "-"  # also stdin, for files that are read
PROMPT_IDS_FORM = "a list of lists of token ids, as [[1, 15043], [1, 3186]]"


def read_bytes(path: str) -> bytes:
    """All of a file, or of stdin for `-`; ConfigError when it cannot be read."""
    if path == STDOUT:
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ConfigError(f"cannot read {path!r}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: str) -> str:
    """All of a UTF-8 file; ConfigError naming the byte where it is not."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_prompt_ids(path: str) -> tuple[tuple[int, ...], ...]:
    """The prompts of a JSON file, a list of lists of token ids; ConfigError naming the prompt that is not one."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); --prompt-ids wants {PROMPT_IDS_FORM}") from None
    if not isinstance(found, list) or not found or not all(isinstance(prompt, list) for prompt in found):
        raise ConfigError(f"{path}: --prompt-ids wants {PROMPT_IDS_FORM}")
    for index, prompt in enumerate(found):
        wrong = [token for token in prompt if isinstance(token, bool) or not isinstance(token, int)]
        if wrong:
            raise ConfigError(f"{path}: prompt {index} holds {wrong[0]!r}; --prompt-ids wants {PROMPT_IDS_FORM}")
        if not prompt:
            raise ConfigError(f"{path}: prompt {index} is empty; every prompt needs at least one token")
    return tuple(tuple(prompt) for prompt in found)


def check_outputs(json_to: str | None, *others: str | None) -> None:
    """Refuse, before the work and not after it, a file that could not be written, and one file for two purposes.

    Only JSON may go to stdout.
    """
    seen: set[str] = set()
    for path in (json_to, *others):
        if path is None or (path == STDOUT and path is json_to):
            continue
        why = "stdout is for the report; name a file" if path == STDOUT else _why_not(path)
        if not why and os.path.realpath(path) in seen and not _is_special(path):
            why = "another output goes there"
        if why:
            raise ConfigError(f"cannot write {path!r}: {why}")
        seen.add(os.path.realpath(path))


def _why_not(path: str) -> str:
    """What stands against writing a file, found by opening it; what did not exist before does not exist after."""
    target = Path(path)
    try:
        if target.is_dir():
            return "it is a directory"
        if not target.parent.is_dir():
            return f"there is no directory {str(target.parent)!r}"
        is_new = not os.path.lexists(target)
        if is_new or target.is_file():  # opening a pipe or a device may wait, or do something
            target.open("ab").close()
        if is_new:
            target.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        return getattr(error, "strerror", None) or str(error)
    return ""


def _is_special(path: str) -> bool:
    """Whether a path is a pipe or a device, as /dev/null is."""
    return os.path.exists(path) and not os.path.isfile(path)


def write_file(path: str, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file, or stdout for `-`; ConfigError when the file cannot be written."""
    if path == STDOUT:
        write(sys.stdout.buffer)
        return
    try:
        file = Path(path).open("wb")
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ConfigError(f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}") from None
    try:
        with file:
            write(file)
    except OSError as error:
        raise ConfigError(f"cannot write {path!r}: {error.strerror or error}") from None


def write_logits(path: str, result: RunResult) -> None:
    """The arrays of a run as .npz, under exactly the name given."""
    arrays = result.logits or {}
    write_file(path, lambda stream: np.savez(stream, allow_pickle=False, **arrays))
