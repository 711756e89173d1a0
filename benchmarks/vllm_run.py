"""One whole run of vLLM, second by second, beside emulated steps of as many sequences.

    python benchmarks/vllm_run.py FOLDER --card rtx-pro-6000

FOLDER holds `requests.jsonl` (`input_toks` and `output_toks` of every request of Llama-3.1-8B in bf16 on one card) and
`timeseries.csv` (`running` sequences, `prompt_throughput` and `gen_throughput` in tokens a second, once a second). In
seconds with about as many running sequences a step lasts `running / gen_throughput`; it is emulated with these
sequences in the middle of their mean lengths, and with as many prompt tokens a step as were measured.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np

from siltwin.emulator.spec import load_card
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.fidelity.serving import emulated_tpot
from siltwin.runtime.fidelity.serving_rows import DENSE, ServingRow

MODEL, MS_PER_S = "meta-llama/Llama-3.1-8B-Instruct", 1000.0
BANDS = ((30, 60), (60, 100), (100, 126), (126, 129))  # running sequences; 128 are the most


def main() -> None:
    """Print a line a band of running sequences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--card", type=load_card, default="rtx-pro-6000")
    asked = parser.parse_args()
    requests = [json.loads(line) for line in (asked.folder / "requests.jsonl").read_text().splitlines()]
    isl, osl = (round(np.mean([one[name] for one in requests])) for name in ("input_toks", "output_toks"))
    with (asked.folder / "timeseries.csv").open() as file:
        seconds = list(csv.DictReader(file))
    names = ("running", "gen_throughput", "prompt_throughput")
    running, generated, prompts = (np.array([float(one[name]) for one in seconds]) for name in names)
    model = open_checkpoint(DENSE[MODEL])
    for low, high in BANDS:
        here = (running >= low) & (running < high)
        if not here.any():
            continue
        count = int(running[here].mean())
        step_ms = MS_PER_S * count / generated[here].mean()
        row = ServingRow("run", "vllm", MODEL, "", "", isl, osl, count, 1, 1, step_ms)
        found = emulated_tpot(row, asked.card, model)
        if found is None:
            continue
        share = prompts[here].mean() * step_ms / MS_PER_S / (count * isl / osl)  # of a steady flow of such requests
        prompts_ms = found.prompts_ms / row.peers * share
        emulated_ms = found.decode_ms + prompts_ms + found.host_ms
        print(
            f"{count:>4} running: a step {step_ms:.1f} ms, emulated {emulated_ms:.1f} "
            f"({emulated_ms / step_ms - 1:+.1%}): decoding {found.decode_ms:.1f}, prompts {prompts_ms:.1f}, "
            f"host {found.host_ms:.1f}"
        )


if __name__ == "__main__":
    main()
