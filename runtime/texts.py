"""Texts: a corpus cut into windows of tokens, and what a model makes of the tokens that come next."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..isa.errors import ConfigError
from ..isa.instruction import Array
from ..models.checkpoint import Checkpoint
from .drift import ROWS_AT_ONCE, log_softmax
from .files import read_text

DEFAULT_WINDOW = 512
MOST_LOGITS = 1 << 28  # of all positions: 1 GiB in float32, a few times over
_FILES = (".txt", ".json", ".md", ".text", ".rst")


@dataclass(frozen=True)
class Windows:
    """Windows of a text: the ids of each, and from which position on its tokens are predicted for the first time.

    Every window starts `stride` tokens after the one before; the tokens that both hold are context in the later one.
    """

    ids: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    size: int
    stride: int

    @property
    def scored(self) -> int:
        """Tokens that are predicted."""
        return sum(len(ids) - first for ids, first in zip(self.ids, self.first, strict=True))


def read_windows(text: str, window: int | None, stride: int | None, checkpoint: Checkpoint) -> Windows:
    """The windows of a text; ConfigError where it is too short, or too long for this machine."""
    ids = _ids(text, checkpoint)
    limit = checkpoint.graph.max_position_embeddings
    if window is not None and window > limit:
        raise ConfigError(f"--window {window} passes the model's {limit} positions (max_position_embeddings)")
    size = min(window or DEFAULT_WINDOW, limit)
    step = min(stride or size, size)
    if len(ids) < 2:
        raise ConfigError(f"--text has {len(ids)} tokens; a next token can be predicted from 2 on")
    found = _cut(ids, size, step)
    check_logits("--text", sum(map(len, found.ids)), checkpoint.graph.vocab_size)
    return found


def check_logits(option: str, positions: int, vocab: int) -> None:
    """ConfigError where the logits of so many positions are more than are held at once."""
    most = MOST_LOGITS // vocab
    if positions > most:
        raise ConfigError(
            f"{option} takes the logits of {positions} positions over a vocabulary of {vocab}, and at most {most} are "
            "held at once; ask for fewer tokens"
        )


def _cut(ids: Sequence[int], size: int, step: int) -> Windows:
    windows, firsts, known = list[tuple[int, ...]](), list[int](), 0
    for start in range(0, len(ids), step):
        window = tuple(ids[start : start + size])
        first = max(1, known - start)  # what stands first has nothing before it to be predicted from
        if len(window) > first:
            windows.append(window)
            firsts.append(first)
        known = start + len(window)
        if known >= len(ids):
            break
    return Windows(tuple(windows), tuple(firsts), size, step)


def _ids(text: str, checkpoint: Checkpoint) -> list[int]:
    """The tokens of a text, of a text file, or of a .json file that holds a list of ids."""
    path = Path(text) if len(text) < 4096 and "\n" not in text else None
    is_file = path is not None and _is_file(path)
    if path is not None and _is_directory(path):
        raise ConfigError(f"--text {text!r} is a directory; give a file or some text")
    if path is not None and not is_file and _looks_like_a_file(text):
        raise ConfigError(f"--text {text!r} is no file that is there, and looks like one; give a file or some text")
    if not is_file:
        return checkpoint.require_tokenizer().encode(text)
    content = read_text(text)
    if path is not None and path.suffix == ".json":
        return _listed(text, content, checkpoint.graph.vocab_size)
    return checkpoint.require_tokenizer().encode(content)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _looks_like_a_file(text: str) -> bool:
    return not any(char.isspace() for char in text) and (text.endswith(_FILES) or os.sep in text)


def _listed(path: str, content: str, vocab: int) -> list[int]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not valid JSON ({error}); --text wants a list of token ids, as [1, 15043]"
        ) from None
    if not isinstance(found, list) or any(isinstance(token, bool) or not isinstance(token, int) for token in found):
        raise ConfigError(f"{path}: --text wants a list of token ids, as [1, 15043]")
    wrong = [token for token in found if not 0 <= token < vocab]
    if wrong:
        raise ConfigError(f"{path}: token id {wrong[0]} is outside the vocabulary, 0 to {vocab - 1}")
    return found


def perplexity(windows: Windows, logits: Array) -> float:
    """exp of the mean loss, in nats, of every token that is predicted, from the logits of all positions in order."""
    losses, row = list[Array](), 0
    for ids, first in zip(windows.ids, windows.first, strict=True):
        rows = np.arange(row + first - 1, row + len(ids) - 1)
        losses.append(_losses(logits[rows], np.array(ids[first:], np.int64)))
        row += len(ids)
    return float(np.exp(np.mean(np.concatenate(losses))))


def _losses(logits: Array, targets: Array) -> Array:
    """Minus the log probability of each target."""
    parts = []
    for start in range(0, len(targets), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        logs = log_softmax(logits[rows].astype(np.float64))
        parts.append(-np.take_along_axis(logs, targets[rows, None], axis=-1)[:, 0])
    return np.concatenate(parts) if parts else np.zeros(0)
