"""NCCL within a node, as measured: six fitted numbers a system explain all collectives, sizes and groups to 7 percent.

The rows are described in data/README.md. Fitted on every other size, the same six numbers miss the all-reduces of the
sizes between by 4.9 % (H100) and 5.4 % (A100) on average; the shipped ones are fitted on all.
"""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from siltwin.interconnect.cluster import ClusterSpec, load_cluster
from siltwin.interconnect.collectives.amounts import group_amounts, step_profile
from siltwin.interconnect.collectives.registry import COLLECTIVES
from siltwin.isa.dtype import FP16, DType, parse_dtype

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "nccl.csv").open()))
SYSTEMS = {"h100": "h100-8", "a100": "a100-8"}


def parts_of(collective: str, ranks: int, size_bytes: int) -> list[int]:
    count = COLLECTIVES[collective].parts(ranks)
    whole = size_bytes * (ranks if collective == "all_to_all" else 1)  # an all-to-all's size is what one rank sends
    return [whole // count + (part < whole % count) for part in range(count)]


def time_ps(spec: ClusterSpec, collective: str, ranks: int, size_bytes: int, dtype: DType = FP16) -> int:
    choice = spec.choose(collective, ranks, range(ranks), size_bytes, dtype)
    plan = choice.plan(collective, ranks)
    parts = parts_of(collective, ranks, size_bytes)
    return group_amounts(plan, parts, range(ranks), spec.topology(), choice.protocol).alone_ps


def errors(system: str) -> dict[str, list[float]]:
    """Relative errors by collective."""
    spec, found = load_cluster(SYSTEMS[system]), defaultdict(list)
    for row in ROWS:
        if row["system"] == system:
            dtype = FP16 if row["dtype_bits"] == "16" else parse_dtype("int8")
            ours = time_ps(spec, row["collective"], int(row["ranks"]), int(row["size_bytes"]), dtype)
            found[row["collective"]].append(abs(ours / 1000 / int(row["time_ns"]) - 1))
    return found


@pytest.mark.parametrize(("system", "published"), [("h100", 0.061), ("a100", 0.063)])
def test_the_mean_error_is_the_stated_one_and_no_collective_is_far_off(system: str, published: float) -> None:
    by_collective = errors(system)
    every = [error for found in by_collective.values() for error in found]
    assert sum(every) / len(every) == pytest.approx(published, abs=0.003)
    assert all(sum(found) / len(found) < 0.12 for found in by_collective.values())
    assert load_cluster(SYSTEMS[system]).evidence_of("protocols.nccl.start_ps").error == published


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_has_six_fitted_numbers_or_five_where_no_switch_adds(system: str) -> None:
    spec = load_cluster(SYSTEMS[system])
    numbers = [number for protocol in spec.protocols.values() for number in protocol.quantities()]
    fitted = {
        number.value for number in numbers if number.evidence == "calibrated" and "1.55 times" not in number.source
    }
    assert len(fitted) == (6 if spec.switch_reduces else 5)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_a_protocols_costs_are_told_step_by_step_too(collective: str) -> None:
    """The start and the copy of the own share stand in the first step, the ramp is shared by the bytes' time."""
    spec = load_cluster("h100-8")
    choice = spec.choose(collective, 8, range(8), 1 << 20)
    plan, parts = choice.plan(collective, 8), parts_of(collective, 8, 1 << 20)
    whole = group_amounts(plan, parts, range(8), spec.topology(), choice.protocol)
    profile = step_profile(plan, parts, range(8), spec.topology(), choice.protocol)
    assert profile.latency_ps.sum() == whole.latency_ps
    assert 0 <= profile.flow_ps.sum() - whole.flow_ps < plan.num_steps + 1
    assert profile.flow_ps.max() - profile.flow_ps.min() <= 1


def test_a_ramp_is_the_square_root_of_the_time_alone_and_of_a_chunks_cost() -> None:
    """All-gather of 8, 9 MB: at 450 GB/s 20 us; by 5.9730 us a chunk its root is 10,929,781 ps.

    Beside that 7/8 of the 20 / 0.7851, a start of 4.679 us, 7 steps, 1.125 MB copied at 1423.8 GB/s, and a
    quarter of the bulk's 5.781 us but for 1 / (1 + (7.875 / 1.2)^4) of it.
    """
    found = time_ps(load_cluster("h100-8"), "all_gather", 8, 9_000_000)
    by_hand = 10_929_781 + 17_500_000 / 0.785128 + 4_679_204 + 7 * (322_438 + 500_000) + 1_125_000 * 1000 / 1423.75
    by_hand += 5_780_982 / 4 * (1 - 1 / (1 + (7.875 / 1.2) ** 4))
    assert abs(found - by_hand) < 10


def test_a_switch_adds_no_elements_of_a_byte_and_nothing_that_a_ring_adds_sooner() -> None:
    spec, int8 = load_cluster("h100-8"), parse_dtype("int8")
    chosen = [spec.choose("all_reduce", 8, range(8), size, FP16).algorithm for size in (1 << 20, 1 << 28)]
    assert chosen == ["ring", "in_switch"] and spec.choose("all_reduce", 8, range(8), 1 << 28, int8).algorithm == "ring"
    times = [time_ps(spec, "all_reduce", 8, 3 << 10 + n) for n in range(18)]
    assert times == sorted(times) and times[-1] < 0.9 * time_ps(spec, "all_reduce", 8, 3 << 27, int8)
