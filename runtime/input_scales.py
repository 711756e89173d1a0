"""Calibration: the one scale that each product's quantised inputs have, from what they were over some tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..isa.errors import ConfigError
from ..isa.experts import GROUPED_MATMUL
from ..models.checkpoint import Checkpoint
from ..models.fields import cut
from ..models.paths import is_there
from .files import PROMPT_IDS_FORM, read_text
from .kv_cache import PagePools
from .lowering.passes.packed import INPUT_SCALE, LARGEST, pairs, scale_beside
from .plan import JobPlan, Lengths
from .scheduler import Request, Step

if TYPE_CHECKING:  # kernels, which a run without numbers does without
    from ..emulator.kernels.binding import Thunk
    from ..emulator.payload import Inspect, Site

SEQUENCE_TOKENS = 64  # of seeded calibration sequences, where the model takes so many
MOST_TOKENS = 1 << 20
MOST_DIGITS = 9  # of a number of tokens

Scales = Mapping[str, float]  # by the buffer that holds each


class Computes(Protocol):
    """The arithmetic of a job, as calibration uses it."""

    def run(self, step: Step, requests: list[Request], pool: PagePools) -> object:
        """Execute a step."""
        ...


def calibration_ids(asked: str, checkpoint: Checkpoint, seed: int) -> tuple[tuple[int, ...], ...]:
    """The sequences that --calibrate means: a number of seeded tokens, a JSON file of token ids, or a text by lines.

    ConfigError for none of these, or for tokens that the model does not take.
    """
    vocab, limit = checkpoint.graph.vocab_size, checkpoint.graph.max_position_embeddings
    if asked.isdecimal():
        count = int(asked) if len(asked) <= MOST_DIGITS else 0
        if not 1 <= count <= MOST_TOKENS:
            raise ConfigError(f"--calibrate {cut(asked)}: from 1 to {MOST_TOKENS} tokens, or a file")
        drawn = np.random.default_rng(seed).integers(0, vocab, count).tolist()
        each = min(SEQUENCE_TOKENS, limit)
        return tuple(tuple(drawn[at : at + each]) for at in range(0, count, each))
    path = Path(asked)
    if not is_there(path):
        raise ConfigError(f"--calibrate {cut(asked)} is no number of tokens and no file")
    ids = _of_json(path) if path.suffix == ".json" else _of_text(path, checkpoint)
    for number, sequence in enumerate(ids):
        if not sequence or len(sequence) > limit or any(not 0 <= token < vocab for token in sequence):
            raise ConfigError(
                f"{path}: sequence {number} of {len(sequence)} must be 1 to {limit} token ids from 0 to {vocab - 1}"
            )
    if not ids:
        raise ConfigError(f"{path} holds no sequence")
    return ids


def _of_json(path: Path) -> tuple[tuple[int, ...], ...]:
    try:
        read = json.loads(read_text(str(path)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not valid JSON ({error}); --calibrate wants {PROMPT_IDS_FORM}, or a text file"
        ) from None
    if not isinstance(read, list) or not all(
        isinstance(ids, list) and all(type(token) is int for token in ids) for ids in read
    ):
        raise ConfigError(f"{path}: --calibrate wants {PROMPT_IDS_FORM}, or a text file")
    return tuple(map(tuple, read))


def _of_text(path: Path, checkpoint: Checkpoint) -> tuple[tuple[int, ...], ...]:
    lines = read_text(str(path)).splitlines()
    tokenizer, limit = checkpoint.require_tokenizer(), checkpoint.graph.max_position_embeddings
    return tuple(tuple(tokenizer.encode(line)[:limit]) for line in lines if line.strip())


def stored_scales(plan: JobPlan) -> Scales:
    """The scales that the checkpoint gives for the inputs of products: the largest where tensors are put together."""
    found: dict[str, float] = {}
    for rank in dict.fromkeys(plan.twins):
        for weight in plan.weights(rank):
            given = [plan.holding.inputs.get(piece.tensor) for piece in weight.pieces]
            scales = [scale for scale in given if scale is not None]
            if weight.packed is not None and scales:
                name = f"{weight.name}.{INPUT_SCALE}"
                found[name] = max(found.get(name, 0.0), *scales)
    return found


def input_scales(plan: JobPlan, compute: Callable[[JobPlan, Inspect], Computes]) -> Scales:
    """The scale that brings the largest input of each product over the calibration set to the largest code.

    The set runs with inputs as they are, weights decoded by instructions of their own; what several ranks multiply by
    parts of one weight has one scale.
    """
    assert plan.activations is not None
    probe = replace(
        plan,
        sequences=tuple(Lengths(len(ids), 1) for ids in plan.calibration),
        activations=None,
        calibration=(),
        chunk_tokens=None,
        micro_batches=1,
        fuse=(),
        all_logits=False,
        _built={},
    )
    requests = [Request(index, len(ids), 1, prompt=ids) for index, ids in enumerate(plan.calibration)]
    peaks: dict[str, np.float32] = {}
    numbers = compute(probe, lambda site: _watch(site, peaks))
    memory, lanes = probe.memory(range(plan.layout.cards)), probe.lanes(requests)
    while (step := lanes.next_step()) is not None:
        memory.begin(step, requests, 0)
        numbers.run(step, requests, memory.pool)
        for request in lanes.complete(step, [0] * sum(entry.emits for entry in step.entries)):
            memory.release(request, 0)
    largest = np.float32(LARGEST[plan.activations.element.name])
    return {name: float(np.float32(peak / largest)) if peak else 1.0 for name, peak in peaks.items()}


def _watch(site: Site, peaks: dict[str, np.float32]) -> Thunk | None:
    """After a product with packed weights: the largest magnitude that it has been given, by the scale's buffer."""
    memory = site.memory
    pair = next((pair for pair in pairs(site.block) if pair.second == site.position), None)
    if pair is None:
        return None
    product = pair.product
    name = scale_beside(site.image.program.calls[site.call], site.block, pair.decode.codes.buffer)

    def look() -> None:
        values = np.abs(memory.get(product.a))
        if isinstance(product, GROUPED_MATMUL):
            experts = memory.shape(product.w)[0]
            at = memory.number(product.at)
            values = values[: int(memory.get(product.counts)[at : at + experts].sum())]
        peaks[name] = max(peaks.get(name, np.float32(0)), values.max(initial=np.float32(0)))

    return look
