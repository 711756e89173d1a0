"""Job: everything a user may ask of one run, checked before anything is built."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields
from typing import Literal

from ..isa.errors import ConfigError
from .lowering.latent_order import ORDERS
from .lowering.reach import KV_PAGES

MOST_TOKENS = 1 << 24
MOST_SEQUENCES = 1 << 16
MOST_MICRO_BATCHES = 1 << 10
Engine = Literal["simpy", "compiled"]
ENGINES: tuple[Engine, ...] = ("simpy", "compiled")
PREFILLS = ("ring", "allgather")  # how attention reaches a context over cp shares: they go round, or come together


@dataclass(frozen=True)
class Job:
    """One run: a model on cards in a layout, and what it is asked.

    Either `prompts` (texts), `prompt_ids` (token ids) or `batch` sequences of which only sizes matter: `cached_len`
    tokens already in the KV cache, `input_len` new prompt tokens after them, `output_len` decode steps. Lengths are in
    tokens; `chunk_tokens` is the most prompt tokens a step (None: whole prompts). The sequences are dealt into
    `micro_batches`, so many steps of which are in flight at once. With `sequence_parallel` tensor-parallel ranks hold
    shares of the residual stream; with `overlap` a step's tokens are computed in two halves, one beside the exchanges
    of the other. `kv_pages` ideal lets layers with windows or chunks free the pages that they read no
    more; unified pages hold all layers' tokens. `kv_policy` says how the cache's memory is reserved (`kv_granule`: a
    size, of virtual's mappings), and `compare_kv` asks for a table of all; `alerts` are thresholds such as memory=0.9.
    `offload` keeps a share of the expert layers, or of the layers' caches, in host memory.
    `redundant_experts` slots hold copies of the experts that `expert_loads`, a JSON file, says are chosen most.
    `routing` says what experts get without the payload, `save_routing` that somebody wants to know what they got, and
    `expert_room` how many times an even share of rows may arrive at a card. `mla` is how latent attention takes its
    products, in pieces of `mla_piece_tokens` cached tokens where it expands them.
    """

    model: str
    card: str = "ascend-910b2"
    cluster: str | None = None
    layout: str | None = None
    placement: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    kv_pages: str = "unified"
    kv_policy: str = "paged"
    kv_granule: str | None = None
    compare_kv: bool = False
    alerts: tuple[str, ...] = ()
    offload: str | None = None
    kv_scales: str | None = None
    weights: str | None = None
    group: int | None = None
    fuse: str | None = None
    activations: str | None = None
    calibrate: str | None = None
    cp_prefill: str | None = None
    mla: str | None = None
    mla_piece_tokens: int | None = None
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
    micro_batches: int = 1
    sequence_parallel: bool = False
    overlap: bool = False
    redundant_experts: int = 0
    expert_loads: str | None = None
    expert_room: str | None = None
    routing: str | None = None
    save_routing: bool = False
    engine: Engine | None = None
    fold: bool = True
    steady: bool = True
    overrides: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    logits: bool = False
    raw_prompt: bool = False
    scale: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_names()
        self._check_source()
        self._check_numbers()
        if self.engine is not None and self.engine not in ENGINES:
            raise ConfigError(f"engine {self.engine!r} does not exist; engines: {', '.join(ENGINES)}")
        if self.kv_pages not in KV_PAGES:
            raise ConfigError(f"--kv-pages {self.kv_pages!r} does not exist; choose one of {', '.join(KV_PAGES)}")
        if self.group is not None and self.weights is None:
            raise ConfigError("--group sizes the blocks of --weights; give --weights too")
        if self.calibrate is not None and self.activations is None:
            raise ConfigError("--calibrate finds the scales of --activations; give --activations too")
        if self.cp_prefill not in (None, *PREFILLS):
            raise ConfigError(f"--cp-prefill {self.cp_prefill!r} does not exist; choose one of {', '.join(PREFILLS)}")
        if self.mla not in (None, *ORDERS):
            raise ConfigError(f"--mla {self.mla!r} does not exist; choose one of {', '.join(ORDERS)}")
        if self.mla == "absorbed" and self.mla_piece_tokens is not None:
            raise ConfigError("--mla-piece-tokens sizes what is expanded at a time, and --mla absorbed expands nothing")
        if self.expert_loads is not None and not self.redundant_experts:
            raise ConfigError("--expert-loads says which experts to copy; give --redundant-experts N too")
        if self.routing is not None and self.payload:
            raise ConfigError(
                f"--routing {self.routing} says what experts get where no numbers do, and the router of the payload "
                "decides; give --no-payload too, or leave it out"
            )
        if self.logits and not self.payload:
            raise ConfigError("logits need the payload: leave out --no-payload or --logits")

    @property
    def calendar(self) -> Engine:
        """The engine asked for; else SimPy beside numbers, and the compiled one for time and memory alone."""
        return self.engine or ("simpy" if self.payload else "compiled")

    def _check_types(self) -> None:
        """Refuse what Python callers may give and the command line cannot, such as batch=True or a lone string."""
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = _KINDS[str(field.type).removesuffix(" | None")]
            if value is None and str(field.type).endswith("None"):
                continue
            if isinstance(value, bool) != (wanted is bool) or not isinstance(value, wanted):
                raise ConfigError(f"{field.name}={value!r} is a {type(value).__name__}; it must be {field.type}")
        for pair in self.overrides:
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
                raise ConfigError(f"overrides hold {pair!r}; each is a (key, value) of two texts, as --set takes them")
        _check_items("prompts", self.prompts, str, "a text")
        _check_items("alerts", self.alerts, str, "a text")
        _check_items("prompt_ids", self.prompt_ids, tuple, "a tuple of token ids")
        for index, ids in enumerate(self.prompt_ids):
            _check_items(f"prompt_ids[{index}]", ids, int, "a whole number")

    def _check_names(self) -> None:
        for name in (
            "card",
            "cluster",
            "layout",
            "placement",
            "dtype",
            "kv_dtype",
            "kv_scales",
            "weights",
            "activations",
            "calibrate",
            "fuse",
        ):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise ConfigError(f"--{name.replace('_', '-')} is empty; name one, or leave the option out")
        for key, times in Counter(key for key, _ in self.overrides).items():
            if times > 1:
                raise ConfigError(f"--set {key} is given {times} times; give it once")

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
        for name, value, least, most in (
            ("the number of prompts", max(len(self.prompts), len(self.prompt_ids)), 0, MOST_SEQUENCES),
            ("--batch", self.batch, 1, MOST_SEQUENCES),
            ("--input-len", self.input_len, 0, MOST_TOKENS),
            ("--output-len", self.output_len, 0, MOST_TOKENS),
            ("--cached-len", self.cached_len, 0, MOST_TOKENS),
            ("--group", self.group, 1, MOST_TOKENS),
            ("--chunk-tokens", self.chunk_tokens, 1, MOST_TOKENS),
            ("--mla-piece-tokens", self.mla_piece_tokens, 1, MOST_TOKENS),
            ("--redundant-experts", self.redundant_experts, 0, MOST_SEQUENCES),
            ("--micro-batches", self.micro_batches, 1, MOST_MICRO_BATCHES),
            ("--max-new-tokens", self.max_new_tokens, 1, MOST_TOKENS),
            ("--top-k", self.top_k, 0, MOST_TOKENS),
            ("--seed", self.seed, 0, (1 << 63) - 1),
        ):
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name}={value} must be from {least} to {most}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"--temperature={self.temperature} must be 0 (greedy) or a positive, finite number")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p={self.top_p} must be above 0 and at most 1")


# What the annotations of Job mean to isinstance.
_KINDS: dict[str, type | tuple[type, ...]] = {
    "Engine": str,
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "tuple[str, ...]": tuple,
    "tuple[tuple[int, ...], ...]": tuple,
    "tuple[tuple[str, str], ...]": tuple,
}


def _check_items(name: str, items: tuple[object, ...], kind: type, wanted: str) -> None:
    for index, item in enumerate(items):
        if not isinstance(item, kind) or isinstance(item, bool):
            raise ConfigError(f"{name}[{index}]={item!r} is a {type(item).__name__}; it must be {wanted}")
