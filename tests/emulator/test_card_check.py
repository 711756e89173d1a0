"""What `siltwin card check` finds: nothing in a shipped card, and each contradiction at its own path."""

from pathlib import Path

import pytest

from siltwin.emulator.card_check import check_card
from siltwin.emulator.card_family import card_names
from siltwin.emulator.spec import load_card, override, read_card
from siltwin.interconnect.kinds import KINDS

FILE = """
extends: h100-sxm
name: mine
description: an H100 with a typing error
"""


def found(changes: dict[str, str], base: str = "h100-sxm") -> dict[tuple[str, str], str]:
    card = override(load_card(base), changes)
    stated = {path for path in changes if path.startswith(("clock", "cores", "tensor"))}
    return {
        (finding.severity, finding.path): finding.expected
        for finding in check_card(card)
        if not (stated and "stated_peak" in finding.path)
    }


def test_nothing_is_wrong_or_odd_in_any_shipped_card() -> None:
    assert {name: check_card(load_card(name)) for name in card_names()} == dict.fromkeys(card_names(), ())


@pytest.mark.parametrize(
    ("changes", "severity", "path", "expected"),
    [
        ({"clock_hz": "18.3MHz", "throttle_hz": "10MHz"}, "error", "clock_hz", "0.05 to 10 GHz"),
        ({"throttle_hz": "1.9GHz"}, "error", "throttle_hz.0", "below 1.83 GHz"),
        ({"throttle_hz": "1.5GHz, 1.6GHz"}, "error", "throttle_hz.1", "below 1.5 GHz"),
        ({"hbm.bandwidth_bytes_per_s": "8GB/s"}, "error", "hbm.bandwidth_bytes_per_s", "8.6 GB/s to 85,899.3 GB/s"),
        ({"hbm.reserved_bytes": "60GiB"}, "warning", "hbm.reserved_bytes", "under half of 80 GiB"),
        ({"hbm.attainable_fraction": "0.3"}, "warning", "hbm.attainable_fraction", "0.5 to 1"),
        # 3.35 TB/s x 0.92 over 132 cores at 1.83 GHz are 12.8 bytes a cycle.
        ({"cores.load_bytes_per_cycle": "8"}, "error", "cores.load_bytes_per_cycle", "13 or more"),
        ({"dma.bytes_per_cycle": "64"}, "warning", "dma.bytes_per_cycle", "843 or more"),
        ({"l2.bandwidth_bytes_per_s": "2TB/s"}, "error", "l2.bandwidth_bytes_per_s", "3,082.0 GB/s or more"),
        # 132 cores x 64 bytes x 1.83 GHz.
        ({"l2.bandwidth_bytes_per_s": "16TB/s"}, "warning", "l2.bandwidth_bytes_per_s", "15,459.8 GB/s or less"),
        ({"l2.capacity_bytes": "80GiB"}, "error", "l2.capacity_bytes", "below 80 GiB"),
        (
            {"sram.1.capacity_bytes": "512"},
            "error",
            "sram",
            "room for a tile of bf16, fp16, fp8_e4m3, fp8_e5m2, int8, fp32",
        ),
        ({"tensor.rate.int8": "0.5"}, "warning", "tensor.rate.int8", "1 or more, as bf16"),
        ({"tensor.rate.int8": "4"}, "warning", "tensor.rate.int8", "2 or less"),
        ({"vector.lanes.2": "64"}, "error", "vector.lanes.2", "128 or more, as for 4 bytes"),
        ({"vector.exponentials_per_cycle": "999"}, "warning", "vector.exponentials_per_cycle", "128 or less"),
        ({"dispatch.tensor_ps": "2ms"}, "warning", "dispatch.tensor_ps", "50 us or less"),
        ({"dispatch.tensor_ps": "2e11"}, "error", "dispatch.tensor_ps", "50 us or less"),
        ({"link.latency_ps": "1ms"}, "warning", "link.latency_ps", "100 us or less"),
        ({"link.ports": "17"}, "error", "link.stated_bytes_per_s", "425.0 GB/s"),
        ({"link.ports": "12"}, "error", "node.ports_to_peer", "12 ports for 1 neighbours of a switch"),
        ({"link.bandwidth_bytes_per_s": "250GB/s"}, "warning", "link.bandwidth_bytes_per_s", "186.1 GB/s or less"),
        ({"node.topology": "switches"}, "error", "node.topology", f"one of {', '.join(sorted(KINDS))}"),
        ({"node.cards": "1_000_000"}, "error", "node.cards", f"{KINDS['switch'].max_cards} or less"),
        ({"host.bandwidth_bytes_per_s": "4TB/s"}, "warning", "host.bandwidth_bytes_per_s", "below 3,350.0 GB/s"),
        ({"power.tdp_w": "400"}, "warning", "power.energy_j_per_op.bf16", "517 W or less"),
        ({"power.tdp_w": "200"}, "error", "power.energy_j_per_op.bf16", "183 W or less"),
        ({"power.idle_w": "700"}, "error", "power.idle_w", "below 700 W"),
        ({"power.ambient_c": "90"}, "error", "power.ambient_c", "below 87 C"),
        ({"power.thermal_resistance_k_per_w": "0.6"}, "error", "power.thermal_resistance_k_per_w", "below 0.578 K/W"),
    ],
)
def test_a_contradiction_is_found_at_its_path(changes: dict[str, str], severity: str, path: str, expected: str) -> None:
    assert found(changes).get((severity, path)) == expected


def test_a_full_mesh_needs_a_port_to_each_neighbour() -> None:
    changes = {"node.cards": "9", "link.ports": "7"}
    assert found(changes, "ascend-910b2") == {
        ("error", "node.ports_to_peer"): "7 ports for 8 neighbours of a full_mesh"
    }


def test_a_file_whose_peak_contradicts_its_clock_is_read_to_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE + "clock_hz: {value: 1.5GHz, evidence: assumed, source: a typing error}\n")
    peaks = [finding for finding in check_card(read_card(path)) if "stated_peak" in finding.path]
    assert [finding.path.rpartition(".")[2] for finding in peaks] == ["bf16", "fp8_e4m3", "int8"]
    assert peaks[0].expected == "811.0 T"  # 132 x 4,096 x 1.5 GHz
