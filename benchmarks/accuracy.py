"""How far the low precisions lie from fp32, ours beside those of transformers: the table of docs/accuracy.md.

`python benchmarks/accuracy.py` prints the page, `--write` puts it into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from siltwin.isa.dtype import parse_dtype
from siltwin.models.shelf import list_models
from siltwin.runtime.computed import compute, joined, through
from siltwin.runtime.drift import compare
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.reference import open_reference
from siltwin.runtime.report_align import LogitsDrift

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
SMALL: dict[str, Any] = {
    "vocab_size": 1009,
    "hidden_size": 180,
    "intermediate_size": 444,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 24, "head_dim": 34},
    "qwen2": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 4},
    "qwen3": {"head_dim": 40},
}
TRAINED, TEXT, NEW_TOKENS = "smollm2-135m-instruct", "What is the capital of France? Explain in one sentence.", 32
FORMATS = (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float16", "float16"))
LAYOUT = "tp=3,pp=2"
INTRODUCTION = f"""# Accuracy of the low precisions

Made by `python benchmarks/accuracy.py --write`; do not edit by hand.

Each row runs prefill and cached decode over {LAYOUT} emulated cards, and the same tokens through transformers: once in
float32, which is taken for the truth, and once in the row's own format, which shows what that format costs anyway.
(Where the KV cache alone is coarser, transformers runs wholly in the cache's format. The rows of float32 hold both
sides' float32 against transformers in float64.)

Errors are |difference| / |truth| of a position's logits (Euclidean norms): their root mean square over positions, and
their largest. "Worst layer" is the largest ratio of our rms error to that of transformers over all layers and the
logits: 1 is as good as transformers, and align raises its alarm at 3. "Ours to theirs" is the rms distance of our
logits from those of transformers in the same format. KL and argmax are of ours against the truth.

{TRAINED} is a trained model, read from 4-bit GGUF; the other four are small ones with seeded random weights
(hidden 180, 8 layers), prompts of 100 and 37 tokens.
"""
HEAD = (
    "model", "weights, activations", "KV", "ours: rms", "max", "transformers: rms", "max", "worst layer",
    "ours to theirs: rms", "KL, nats", "same argmax",
)  # fmt: skip


def rows(name: str, job: Job) -> Iterator[tuple[str, ...]]:
    """The table's rows of one model."""
    for dtype, kv_dtype in FORMATS:
        yield (name, dtype, kv_dtype, *cells(prepare_with(job, dtype, kv_dtype)))


def prepare_with(job: Job, dtype: str, kv_dtype: str) -> Any:
    """The job in a format."""
    return prepare(Job(**{**vars(job), "dtype": dtype, "kv_dtype": kv_dtype, "logits": True, "ignore_eos": True}))


def cells(prepared: Any) -> tuple[str, ...]:
    """Errors of ours and of transformers against float32, and of ours against transformers."""
    computed, requests = compute(prepared)
    ours, reference = joined(computed, requests), open_reference(prepared.checkpoint)
    truth = through(reference, requests, prepared.cached)
    reference.show_rounding(parse_dtype(prepared.job.kv_dtype))
    theirs = through(reference, requests, prepared.cached)
    exact = prepared.job.kv_dtype == "float32"  # then `theirs` is the exact side, and what is rounded is `truth`
    if exact:
        truth, theirs = theirs, truth
    mine, own, between = compare(ours, truth), compare(theirs, truth), compare(ours, theirs)[1]
    layers = [m.rms_rel / max(t.rms_rel, 1e-9) for m, t in zip((*mine[0], mine[1]), (*own[0], own[1]), strict=True)]
    logits: LogitsDrift = mine[1]
    return (
        f"{logits.rms_rel:.1e}",
        f"{logits.max_rel:.1e}",
        f"{own[1].rms_rel:.1e}",
        f"{own[1].max_rel:.1e}",
        f"{max(layers[1:]):.2f}",
        f"{between.rms_rel:.1e}",
        f"{logits.kl:.1e}",
        f"{100 * logits.argmax_agreement:.1f} %",
    )


def all_rows() -> Iterator[tuple[str, ...]]:
    """The trained model where it is installed, then the small ones."""
    if list_models()[0].path is not None:
        yield from rows(TRAINED, Job(TRAINED, layout=LAYOUT, prompts=(TEXT,), max_new_tokens=NEW_TOKENS))
    draw = np.random.default_rng(0)
    ids = tuple(tuple(draw.integers(0, SMALL["vocab_size"], length).tolist()) for length in (100, 37))
    with tempfile.TemporaryDirectory() as folder:
        for family, changes in FAMILIES.items():
            path = Path(folder) / f"{family}.json"
            path.write_text(json.dumps({"model_type": family, **SMALL, **changes}))
            yield from rows(f"small {family}", Job(str(path), layout=LAYOUT, prompt_ids=ids, max_new_tokens=NEW_TOKENS))


def page() -> str:
    """The page, in Markdown."""
    lines = [HEAD, tuple("---" for _ in HEAD), *all_rows()]
    return INTRODUCTION + "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Print the page or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    arguments = parser.parse_args()
    made = page()
    if arguments.write:
        PAGE.write_text(made, encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
