"""Whole emulated messages on the NVSwitch nodes that are fitted to NCCL take its measured times."""

import pytest

from siltwin.interconnect.cluster import ClusterSpec, load_cluster
from siltwin.isa.dtype import FP16
from siltwin.runtime.fabric.emulate import Fabric
from siltwin.runtime.fabric.endpoints import ends
from siltwin.runtime.fabric.messages import collective_of, message_of, whole_bytes

# NCCL in half precision, from ai-dynamo/aiconfigurator (Apache-2.0, https://github.com/ai-dynamo/aiconfigurator), a
# sample by rule: four sizes of every collective. System, collective, ranks, bytes of the whole buffer, microseconds.
NCCL = [
    ("h100", "all_gather", 2, 2048, 5.31),
    ("h100", "all_gather", 2, 131072, 6.74),
    ("h100", "all_gather", 2, 8388608, 36.30),
    ("h100", "all_gather", 2, 536870912, 1040.14),
    ("h100", "all_gather", 8, 2048, 11.97),
    ("h100", "all_gather", 8, 131072, 13.37),
    ("h100", "all_gather", 8, 8388608, 44.06),
    ("h100", "all_gather", 8, 536870912, 1398.89),
    ("h100", "all_reduce", 2, 2048, 6.26),
    ("h100", "all_reduce", 2, 131072, 7.70),
    ("h100", "all_reduce", 2, 8388608, 46.42),
    ("h100", "all_reduce", 2, 536870912, 1675.24),
    ("h100", "all_reduce", 8, 2048, 15.84),
    ("h100", "all_reduce", 8, 131072, 19.01),
    ("h100", "all_reduce", 8, 8388608, 79.23),
    ("h100", "all_reduce", 8, 536870912, 2111.72),
    ("h100", "all_to_all", 2, 2048, 6.49),
    ("h100", "all_to_all", 2, 131072, 13.82),
    ("h100", "all_to_all", 2, 8388608, 32.48),
    ("h100", "all_to_all", 2, 536870912, 964.74),
    ("h100", "all_to_all", 8, 2048, 7.55),
    ("h100", "all_to_all", 8, 131072, 9.86),
    ("h100", "all_to_all", 8, 8388608, 41.29),
    ("h100", "all_to_all", 8, 536870912, 1480.44),
    ("h100", "reduce_scatter", 2, 2048, 5.66),
    ("h100", "reduce_scatter", 2, 131072, 6.33),
    ("h100", "reduce_scatter", 2, 8388608, 32.17),
    ("h100", "reduce_scatter", 2, 536870912, 1075.32),
    ("h100", "reduce_scatter", 8, 2048, 10.54),
    ("h100", "reduce_scatter", 8, 131072, 11.99),
    ("h100", "reduce_scatter", 8, 8388608, 43.96),
    ("h100", "reduce_scatter", 8, 536870912, 1400.39),
    ("a100", "all_gather", 2, 2048, 9.06),
    ("a100", "all_gather", 2, 131072, 12.37),
    ("a100", "all_gather", 2, 8388608, 59.72),
    ("a100", "all_gather", 2, 536870912, 1789.80),
    ("a100", "all_gather", 8, 2048, 14.80),
    ("a100", "all_gather", 8, 131072, 20.91),
    ("a100", "all_gather", 8, 8388608, 73.51),
    ("a100", "all_gather", 8, 536870912, 2288.00),
    ("a100", "all_reduce", 2, 2048, 10.00),
    ("a100", "all_reduce", 2, 131072, 13.45),
    ("a100", "all_reduce", 2, 8388608, 87.13),
    ("a100", "all_reduce", 2, 536870912, 2781.10),
    ("a100", "all_reduce", 8, 2048, 21.53),
    ("a100", "all_reduce", 8, 131072, 27.41),
    ("a100", "all_reduce", 8, 8388608, 128.00),
    ("a100", "all_reduce", 8, 536870912, 4225.90),
    ("a100", "all_to_all", 2, 2048, 10.83),
    ("a100", "all_to_all", 2, 131072, 14.44),
    ("a100", "all_to_all", 2, 8388608, 56.05),
    ("a100", "all_to_all", 2, 536870912, 1635.30),
    ("a100", "all_to_all", 8, 2048, 12.79),
    ("a100", "all_to_all", 8, 131072, 16.56),
    ("a100", "all_to_all", 8, 8388608, 67.84),
    ("a100", "all_to_all", 8, 536870912, 2313.50),
    ("a100", "reduce_scatter", 2, 2048, 9.03),
    ("a100", "reduce_scatter", 2, 131072, 11.97),
    ("a100", "reduce_scatter", 2, 8388608, 53.10),
    ("a100", "reduce_scatter", 2, 536870912, 1611.80),
    ("a100", "reduce_scatter", 8, 2048, 15.02),
    ("a100", "reduce_scatter", 8, 131072, 18.16),
    ("a100", "reduce_scatter", 8, 8388608, 79.49),
    ("a100", "reduce_scatter", 8, 536870912, 2207.10),
]


def emulated_us(spec: ClusterSpec, fabric: Fabric, collective: str, ranks: int, size_bytes: int) -> float:
    message = message_of(collective_of(collective), size_bytes, FP16, tuple(range(ranks)))
    choice = spec.choose(collective, ranks, message.group, whole_bytes(message), FP16)
    return fabric.run(message, choice).time_ps / 10**6


@pytest.mark.parametrize("system", ["h100", "a100"])
def test_nccl_times_are_met_within_seven_and_a_half_percent_on_the_mean(system: str) -> None:
    spec = load_cluster(f"{system}-8")
    fabric = Fabric(spec, ends(None)[0])
    errors = [abs(emulated_us(spec, fabric, *row[1:4]) / row[4] - 1) for row in NCCL if row[0] == system]
    assert len(errors) == 32 and sum(errors) / len(errors) <= 0.075


def test_a_cards_dispatch_is_within_the_librarys_start() -> None:
    spec = load_cluster("h100-8")
    alone, with_card = (
        emulated_us(spec, Fabric(spec, ends(card)[0]), "all_reduce", 8, 4096) for card in (None, "h100-sxm")
    )
    assert with_card == pytest.approx(alone, rel=1e-3)
