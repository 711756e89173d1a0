"""Twin: a model on emulated cards, as a Python object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ..isa.errors import ConfigError
from ..models.fields import cut
from .job import Job
from .report import Report
from .run import RunResult, run_job


class Twin:
    """A model on cards in a layout; every call runs one job from empty caches.

    `model`, `card` and `cluster` are names or paths, `layout` is text such as "tp=3,pp=2", `settings` are dotted card
    fields as `--set` takes them. Errors are those of the command line, as exceptions of `siltwin.isa.errors`.
    """

    def __init__(
        self,
        model: str | Path,
        card: str | Path = "ascend-910b2",
        cluster: str | Path | None = None,
        layout: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if settings is not None and not isinstance(settings, Mapping):
            raise ConfigError(f"settings={cut(repr(settings))} must map dotted card fields to values")
        overrides = tuple((str(key), str(value)) for key, value in (settings or {}).items())
        self._given: dict[str, Any] = {
            "model": str(model),
            "card": str(card),
            "cluster": None if cluster is None else str(cluster),
            "layout": layout,
            "overrides": overrides,
            **options,
        }

    def run(self, prompts: str | Sequence[str] | Sequence[Sequence[int]] = (), **options: Any) -> RunResult:
        """Run texts, lists of token ids, or (with `batch=`) sequences of which only sizes matter.

        `options` are the fields of `Job`. The result holds the report and what it was made from.
        """
        given: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts) if _is_list(prompts) else [None]
        if not all(isinstance(prompt, str) or _is_list(prompt) for prompt in given):
            raise ConfigError(
                f"prompts={cut(repr(prompts))} must be a text, texts, or lists of token ids: [[1, 15043]]"
            )
        texts = tuple(prompt for prompt in given if isinstance(prompt, str))
        ids = tuple(tuple(map(_plain, prompt)) for prompt in given if not isinstance(prompt, str))
        return run_job(_job({**self._given, "prompts": texts, "prompt_ids": ids, **options}))

    def generate(self, prompts: str | Sequence[str] | Sequence[Sequence[int]] = (), **options: Any) -> Report:
        """As `run`, for those who want the report alone."""
        return self.run(prompts, **options).report


def _job(given: Mapping[str, Any]) -> Job:
    known = [field.name for field in fields(Job)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(f"a job has no option {unknown[0]!r}; options: {', '.join(known)}")
    return Job(**{name: _plain(value) for name, value in given.items()})


def _is_list(value: object) -> TypeGuard[Iterable[Any]]:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _plain(value: Any) -> Any:
    """A NumPy number as Python's own; anything else as it is, for the Job to judge."""
    return value.item() if isinstance(value, np.generic) else value
