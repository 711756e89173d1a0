"""Measured layers: the operators of one decoder layer by tokens and tensor parallelism, beside one that is emulated."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError
from ...models.checkpoint import Checkpoint, open_checkpoint
from ..job import Job
from ..prepare import prepare
from ..run import start_run, time_step
from ..scheduler import Entry, Step
from .records import records

COUNTS = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "num_tokens", "num_tensor_parallel_workers")
TIME = "time_stats.{}.median"  # milliseconds
LONGEST_MS = 1000.0  # one operator of one layer; more is in another unit
POSITIONS = 1 << 17
PS_PER_MS = 10**9

# The operators of a layer in the order of its programs: an instruction, and which of its kind in a layer it is.
OPERATORS: Mapping[str, tuple[str, int]] = {
    "input_layernorm": ("rmsnorm", 0),
    "attn_pre_proj": ("matmul", 0),
    "attn_rope": ("rope", 0),
    "attn_post_proj": ("matmul", 1),
    "mlp_up_proj": ("matmul", 2),
    "mlp_act": ("gated", 0),
    "mlp_down_proj": ("matmul", 3),
    "add": ("add", 0),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder layer with a gated feed-forward."""

    heads: int
    kv_heads: int
    width: int
    inner: int
    vocabulary: int


@dataclass(frozen=True)
class LayerRow:
    """The operators of a layer as measured: milliseconds of each on one card of `tp`, for so many tokens."""

    shape: Shape
    tokens: int
    tp: int
    ms: Mapping[str, float]


def measured_layers(path: Path) -> tuple[LayerRow, ...]:
    """The rows of a CSV file (also .gz) with the columns of COUNTS, use_gated_mlp, and TIME of every operator.

    ConfigError names the file, the line and what is wrong; layers without a gate are refused.
    """
    wanted = (*COUNTS, "use_gated_mlp", *map(TIME.format, OPERATORS))
    return tuple(_row(record, where) for record, where in records(path, wanted, "a table of layers"))


def _row(record: Mapping[str, str], where: str) -> LayerRow:
    if record["use_gated_mlp"] != "True":
        raise ConfigError(f"{where}: use_gated_mlp={record['use_gated_mlp']!r}; only gated feed-forwards are compared")
    heads, kv_heads, width, inner, vocabulary, tokens, tp = (
        _number(record, name, where, 1, 1 << 24) for name in COUNTS
    )
    times = {own: _number(record, TIME.format(own), where, 1e-6, LONGEST_MS) for own in OPERATORS}
    shape = Shape(int(heads), int(kv_heads), int(width), int(inner), int(vocabulary))
    return LayerRow(shape, int(tokens), int(tp), times)


def _number(record: Mapping[str, str], name: str, where: str, least: float, most: float) -> float:
    try:
        value = float(record[name])
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ConfigError(f"{where}: {name}={record[name]!r} must be a number from {least:g} to {most:g}")
    return value


def emulated_layers(rows: Iterable[LayerRow], card: CardSpec) -> Iterator[dict[str, float]]:
    """Milliseconds of each operator of each row, from a prefill of a model of one such layer on `tp` cards."""
    models: dict[Shape, Checkpoint] = {}
    with TemporaryDirectory() as folder:
        for row in rows:
            if row.shape not in models:
                path = Path(folder) / f"{len(models)}.json"
                path.write_text(json.dumps(_config(row.shape)), encoding="utf-8")
                models[row.shape] = open_checkpoint(str(path))
            yield _emulated(row, card, models[row.shape])


def _emulated(row: LayerRow, card: CardSpec, model: Checkpoint) -> dict[str, float]:
    job = Job("layer", layout=f"tp={row.tp}", payload=False, batch=1, input_len=row.tokens)
    state = start_run(prepare(job, checkpoint=model, card=card))
    record = time_step(state, Step(0, "prefill", (Entry(0, 0, row.tokens, True),)))
    times: defaultdict[str, list[float]] = defaultdict(list)
    for span in sorted(record.spans, key=lambda span: (span.call, span.position)):
        if span.card == 0:
            times[span.mnemonic].append((span.end_ps - span.start_ps) / PS_PER_MS)
    return {own: times[mnemonic][place] for own, (mnemonic, place) in OPERATORS.items()}


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": shape.vocabulary,
    }
