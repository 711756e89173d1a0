"""Twin: a model on emulated cards, as a Python object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        overrides = tuple((key, str(value)) for key, value in (settings or {}).items())
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
        given = [prompts] if isinstance(prompts, str) else prompts
        texts = tuple(prompt for prompt in given if isinstance(prompt, str))
        ids = tuple(tuple(prompt) for prompt in given if not isinstance(prompt, str))
        return run_job(Job(**self._given, prompts=texts, prompt_ids=ids, **options))

    def generate(self, prompts: str | Sequence[str] | Sequence[Sequence[int]] = (), **options: Any) -> Report:
        """As `run`, for those who want the report alone."""
        return self.run(prompts, **options).report
