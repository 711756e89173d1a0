"""Job: everything a user may ask of one run, checked before anything is built."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..isa.errors import ConfigError, NotYetError

MOST_TOKENS = 1 << 24
ENGINES = ("simpy", "compiled")


@dataclass(frozen=True)
class Job:
    """One run: a model on cards in a layout, and what it is asked.

    Either `prompts` (texts), `prompt_ids` (token ids) or `batch` sequences of which only sizes matter: `cached_len`
    tokens already in the KV cache, `input_len` new prompt tokens after them, `output_len` decode steps. Lengths are in
    tokens; `chunk_tokens` is the most prompt tokens a step (None: whole prompts).
    """

    model: str
    card: str = "ascend-910b2"
    cluster: str | None = None
    layout: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    prompts: tuple[str, ...] = ()
    prompt_ids: tuple[tuple[int, ...], ...] = ()
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    payload: bool = True
    batch: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    cached_len: int | None = None
    chunk_tokens: int | None = None
    engine: str = "simpy"
    overrides: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    logits: bool = False
    raw_prompt: bool = False

    def __post_init__(self) -> None:
        self._check_source()
        self._check_numbers()
        if self.engine not in ENGINES:
            raise ConfigError(f"engine {self.engine!r} does not exist; engines: {', '.join(ENGINES)}")
        if self.engine == "compiled":
            raise NotYetError("--engine compiled comes with a later version; use --engine simpy")
        if self.logits and not self.payload:
            raise ConfigError("logits need the payload: leave out --no-payload or --logits")

    def _check_source(self) -> None:
        given = [
            name
            for name, value in (("--prompt", self.prompts), ("--prompt-ids", self.prompt_ids), ("--batch", self.batch))
            if value
        ]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are given; a job takes its sequences from one of them")
        sizes = {
            "--input-len": self.input_len,
            "--output-len": self.output_len,
            "--cached-len": self.cached_len,
        }
        stray = [name for name, value in sizes.items() if value is not None and self.batch is None]
        if stray:
            raise ConfigError(f"{stray[0]} sizes the sequences of --batch N; give --batch too")
        if self.batch is not None and self.max_new_tokens is not None:
            raise ConfigError("--max-new-tokens is for prompts; with --batch give --output-len (decode steps)")

    def _check_numbers(self) -> None:
        for name, value, least in (
            ("--batch", self.batch, 1),
            ("--input-len", self.input_len, 0),
            ("--output-len", self.output_len, 0),
            ("--cached-len", self.cached_len, 0),
            ("--chunk-tokens", self.chunk_tokens, 1),
            ("--max-new-tokens", self.max_new_tokens, 1),
            ("--top-k", self.top_k, 0),
            ("--seed", self.seed, 0),
        ):
            if value is not None and not least <= value <= MOST_TOKENS and name != "--seed":
                raise ConfigError(f"{name}={value} must be from {least} to {MOST_TOKENS}")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"--seed={self.seed} must be from 0 to 2**63 - 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"--temperature={self.temperature} must be 0 (greedy) or a positive number")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p={self.top_p} must be above 0 and at most 1")
