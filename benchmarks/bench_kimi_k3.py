"""A scaled Kimi K3 (hidden 512, 8 layers, 32 experts) on eight emulated cards: 32 tokens generated from 128.

    python benchmarks/bench_kimi_k3.py [--layout tp=2,pp=2,dp=2,ep=4] [--profile]

Prints the wall time of the whole job, from opening the checkpoint to the report, with random weights (routed experts
held as mxfp4, as published), and the processor time, which a busy machine does not change; a first run of a few tokens
compiles the kernels.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from pathlib import Path
from typing import Any

from siltwin.emulator.kernels.threads import host_threads
from siltwin.models.shelf import find_model
from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job

LAYOUTS = ("tp=2,pp=2,dp=2,ep=4", "tp=8", "tp=4,pp=2", "dp=8,ep=8")
PROMPT_TOKENS, NEW_TOKENS, TARGET_S = 128, 32, 20.0
SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "intermediate_size": 1536,
    "vocab_size": 4096,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "attn_res_block_size": 3,
    "num_experts": 32,
    "num_experts_per_token": 4,
    "moe_intermediate_size": 256,
    "routed_expert_hidden_size": 256,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def scaled_config() -> dict[str, Any]:
    """The published text_config with the sizes above: layers 4 and 8 latent attention, the others delta attention."""
    raw: dict[str, Any] = json.loads(find_model("Kimi-K3").read_text())["text_config"]
    full = [4, 8]
    linear = {"full_attn_layers": full, "kda_layers": [at for at in range(1, 9) if at not in full]}
    return raw | SIZES | {"linear_attn_config": raw["linear_attn_config"] | linear | {"num_heads": 8, "head_dim": 64}}


def generate_s(path: Path, layout: str, new_tokens: int, sequences: int) -> tuple[float, float]:
    """Seconds of a whole job: of the clock on the wall, and of all processors."""
    ids = tuple(index * 37 % SIZES["vocab_size"] for index in range(PROMPT_TOKENS))
    begun = time.perf_counter(), time.process_time()
    job = Job(
        str(path), layout=layout, dtype="float32", kv_dtype="float32", prompt_ids=(ids,) * sequences,
        max_new_tokens=new_tokens, ignore_eos=True,
    )  # fmt: skip
    run_job(job)
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", action="append", help="a layout of eight cards (default: several)")
    parser.add_argument("--sequences", type=int, default=2, help="how many sequences of 128 tokens there are")
    parser.add_argument("--profile", action="store_true", help="print where the time goes (which slows it)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(scaled_config()))
        for layout in given.layout or LAYOUTS:
            cold, _ = generate_s(path, layout, 3, given.sequences)
            profile = cProfile.Profile()
            if given.profile:
                profile.enable()
            warm, busy = generate_s(path, layout, NEW_TOKENS, given.sequences)
            profile.disable()
            print(
                f"{layout}: {NEW_TOKENS} tokens of {given.sequences} sequences from {PROMPT_TOKENS} in {warm:.1f} s "
                f"(at most {TARGET_S:g}; {busy:.1f} s of processors), {host_threads()} host threads; "
                f"first run, 3 tokens: {cold:.1f} s"
            )
            if given.profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
