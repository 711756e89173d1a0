"""A card's own node: NCCL's times from a data sheet and assumed constants, as the emulator runs them."""

import pytest

from siltwin.emulator.spec import load_card, override
from siltwin.isa.dtype import FP16
from siltwin.runtime.fabric.emulate import Fabric
from siltwin.runtime.fabric.messages import collective_of, message_of, whole_bytes
from siltwin.runtime.node import collective_times_ps, node_of

from .test_fabric_nccl import NCCL


@pytest.mark.parametrize("system", ["h100", "a100"])
def test_assumed_constants_meet_nccl_within_an_eighth_on_the_mean(system: str) -> None:
    card, errors = load_card(f"{system}-sxm"), []
    for _, collective, ranks, size, measured_us in (row for row in NCCL if row[0] == system):
        (time_ps,) = collective_times_ps(card, collective, ranks, [size])
        errors.append(abs(time_ps / 1e6 / measured_us - 1))
    assert sum(errors) / len(errors) < 0.125


@pytest.mark.parametrize(("collective", "ranks"), [("all_reduce", 2), ("all_reduce", 8), ("all_to_all", 8)])
def test_times_are_those_of_the_emulated_instruction(collective: str, ranks: int) -> None:
    card, sizes = load_card("h100-sxm"), [1 << 11, 3 << 18, 1 << 28]
    spec, found = node_of(card, 8), []
    for size in sizes:
        message = message_of(collective_of(collective), size, FP16, tuple(range(ranks)))
        choice = spec.choose(collective, ranks, message.group, whole_bytes(message), FP16)
        found.append(Fabric(spec, card).run(message, choice).time_ps)
    assert found == collective_times_ps(card, collective, ranks, sizes).tolist()


def test_in_a_cards_own_node_sums_go_to_the_switch_where_it_adds_and_is_faster() -> None:
    card = load_card("h100-sxm")
    spec = node_of(card, 8)
    assert {spec.choose("all_reduce", 8, range(8), 1 << size).algorithm for size in (14, 20)} == {"ring"}
    assert spec.choose("all_reduce", 8, range(8), 1 << 29).algorithm == "in_switch"
    assert spec.choose("all_reduce", 2, range(2), 1 << 29).algorithm == "ring"
    row = next(row for row in spec.choices if row.from_ranks == 8 and row.up_to_bytes)
    assert row.up_to_bytes is not None
    fabric, times = Fabric(spec, card), []
    for size in (row.up_to_bytes - 64, row.up_to_bytes, row.up_to_bytes + 64):
        message = message_of(collective_of("all_reduce"), size, FP16, tuple(range(8)))
        times.append(fabric.run(message, spec.choose("all_reduce", 8, range(8), size, FP16)).time_ps)
    assert times == sorted(times) and times[2] < 1.001 * times[1]
    without = node_of(override(card, {"node.switch_reduces": "false"}), 8)
    assert without.choose("all_reduce", 8, range(8), 1 << 29).algorithm == "ring"


def test_a_faster_clock_more_bandwidth_or_less_data_is_never_slower() -> None:
    card, sizes = load_card("h100-sxm"), [1 << power for power in range(9, 30)]
    usual = collective_times_ps(card, "all_reduce", 8, sizes).tolist()
    assert usual == sorted(usual)
    for path, value in (("clock_hz", "2GHz"), ("link.bandwidth_bytes_per_s", "30GB/s")):
        faster = collective_times_ps(override(card, {path: value}), "all_reduce", 8, sizes)
        assert (faster < usual).all()
