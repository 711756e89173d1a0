"""Fits NCCL on one NVSwitch node to measured tables by six constants, and says how far they miss sizes held out.

    python benchmarks/fit_nccl.py FOLDER [--system h100|a100]

FOLDER holds `h100_sxm/nccl.csv` and `a100_sxm/nccl.csv` with the columns op_name, nccl_dtype, num_gpus, message_size
(elements of the whole buffer) and latency_ms. The sizes are dealt in turn to two halves, and each half is predicted by
the constants fitted to the other. The constants fitted to all rows are printed as the protocols of a cluster file;
at last every row is run through the emulator on the shipped cluster, for the error that users meet.

The model is that of interconnect's protocols: a start (another one for all-to-all, whose messages go from peer to
peer), a step beside the links' latency, a share of the links' bandwidth, a ramp (chunks of a pipeline), and the copy of
a member's own share from buffer to buffer. All-reduce, all-gather and reduce-scatter run in a ring, all-to-all direct.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from siltwin.interconnect.cluster import load_cluster
from siltwin.isa.dtype import FP16
from siltwin.runtime.fabric.emulate import Fabric
from siltwin.runtime.fabric.endpoints import ends
from siltwin.runtime.fabric.messages import collective_of, message_of, whole_bytes

BYTES = {"half": 2, "int8": 1}
CLUSTERS = {"h100": "h100-8", "a100": "a100-8"}
GUESS = (5000.0, 7000.0, 300.0, 0.85, 12_000.0, 900.0)
NAMES = ("start_ns", "start_p2p_ns", "step_ns", "share", "ramp_ns", "copy_bytes_per_ns")


class Row(NamedTuple):
    """One measured message, repeated measurements averaged; `rung` is the place of its size among all sizes."""

    collective: str
    ranks: int
    size_bytes: int
    rung: int
    time_ns: float


class Node(NamedTuple):
    """What is not fitted: bytes a nanosecond of a link, and the latency of the two links between cards."""

    bytes_per_ns: float
    latency_ns: float


def node_of(system: str) -> Node:
    """The links of the shipped cluster."""
    spec = load_cluster(CLUSTERS[system])
    bandwidth, latency = (spec.evidence_of(f"link.{name}").value for name in ("bandwidth_bytes_per_s", "latency_ps"))
    return Node(bandwidth / 1e9, 2 * latency / 1000)


def read(path: Path) -> list[Row]:
    """The rows of a table."""
    times: defaultdict[tuple[str, int, int, int], list[float]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            elements = int(row["message_size"])
            key = (row["op_name"], int(row["num_gpus"]), elements * BYTES[row["nccl_dtype"]], elements)
            times[key].append(float(row["latency_ms"]) * 1e6)
    elements = sorted({key[3] for key in times})
    return [
        Row(collective_of(name).name, ranks, size, elements.index(count), sum(found) / len(found))
        for (name, ranks, size, count), found in times.items()
    ]


def predict(constants: Sequence[float], rows: Sequence[Row], node: Node) -> np.ndarray[Any, Any]:
    """Nanoseconds of every row by the model."""
    start, start_p2p, step, share, ramp, copy = constants
    ranks = np.array([row.ranks for row in rows])
    sizes = np.array([row.size_bytes for row in rows], float)
    direct = np.array([row.collective == "all_to_all" for row in rows])
    reduced = np.array([row.collective == "all_reduce" for row in rows])
    rounds = np.where(reduced, 2, 1)
    steps = np.where(direct, 0, rounds * (ranks - 1))
    latency = np.where(direct, 1, steps) * node.latency_ns
    flow = rounds * sizes * (ranks - 1) / ranks / node.bytes_per_ns
    own = np.where(reduced, 0, sizes / ranks)
    fixed = np.where(direct, start_p2p, start) + steps * step + latency
    return np.asarray(fixed + flow / share + np.sqrt(flow * ramp) + own / copy)


def fit(rows: Sequence[Row], node: Node) -> np.ndarray[Any, Any]:
    """The constants of least logarithmic errors, outliers counting less; positive by construction."""
    measured = np.array([row.time_ns for row in rows])
    first = np.log(GUESS)
    found = [
        least_squares(
            lambda x: np.log(predict(np.exp(x), rows, node) / measured),
            first + np.random.default_rng(seed).normal(0, 0.3, len(first)),
            loss="soft_l1",
            f_scale=0.02,
        )
        for seed in range(12)
    ]
    return np.asarray(np.exp(min(found, key=lambda one: float(one.cost)).x))


def mean_error(constants: Sequence[float], rows: Sequence[Row], node: Node) -> float:
    """Mean absolute relative error."""
    measured = np.array([row.time_ns for row in rows])
    return float(np.abs(predict(constants, rows, node) / measured - 1).mean())


def held_out(rows: Sequence[Row], node: Node) -> list[float]:
    """The error on each half of the sizes by the constants of the other half."""
    errors = []
    for half in (0, 1):
        known = [row for row in rows if row.rung % 2 != half]
        errors.append(mean_error(fit(known, node), [row for row in rows if row.rung % 2 == half], node))
    return errors


def protocols(constants: Sequence[float], error: float) -> str:
    """The constants as a cluster file states them."""
    start, start_p2p, step, share, ramp, copy = constants

    def number(value: float) -> str:
        return f"{{value: {round(value)}, evidence: calibrated, error: {error:.3f}, source: fitted to NCCL}}"

    lines = ["protocols:"]
    for name, first, each in (("nccl", start, step), ("nccl_p2p", start_p2p, 0.0)):
        lines += [
            f"  {name}:",
            f"    start_ps: {number(first * 1000)}",
            f"    step_ps: {number(each * 1000)}",
            f"    bandwidth_permille: {number(share * 1000)}",
            f"    ramp_ps: {number(ramp * 1000)}",
            f"    copy_bytes_per_s: {number(copy * 1e9)}",
        ]
    return "\n".join(lines)


def emulated_error(name: str, rows: Sequence[Row]) -> float:
    """Mean error of whole messages through the emulator, by the choices of the cluster's own file."""
    spec = load_cluster(name)
    fabric = Fabric(spec, ends(None)[0])
    errors = []
    for row in rows:
        message = message_of(collective_of(row.collective), row.size_bytes, FP16, tuple(range(row.ranks)))
        choice = spec.choose(row.collective, row.ranks, message.group, whole_bytes(message))
        errors.append(abs(fabric.run(message, choice).time_ps / 1000 / row.time_ns - 1))
    return float(np.mean(errors))


def main() -> None:
    """Fit and report."""
    parser = argparse.ArgumentParser(description="Fit NCCL's constants on NVSwitch nodes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--system", choices=[*CLUSTERS])
    given = parser.parse_args()
    for system in [given.system] if given.system else [*CLUSTERS]:
        rows, node = read(given.folder / f"{system}_sxm" / "nccl.csv"), node_of(system)
        errors, constants = held_out(rows, node), fit(rows, node)
        print(f"{system}: {len(rows)} rows, error on held-out sizes {' and '.join(f'{100 * e:.2f} %' for e in errors)}")
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in zip(NAMES, constants, strict=True)))
        print(f"  error on all rows {100 * mean_error(constants, rows, node):.2f} % by the model,", end=" ")
        print(f"{100 * emulated_error(CLUSTERS[system], rows):.2f} % emulated on {CLUSTERS[system]} as it is shipped")
        print(protocols(constants, max(errors)))


if __name__ == "__main__":
    main()
