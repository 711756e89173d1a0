"""What figures rest on: numbers that were read, numbers that the user set, and settings that change nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from siltwin.emulator.spec import CARDS, CardSpec, load_card, override
from siltwin.interconnect.cluster import load_cluster
from siltwin.interconnect.evidence import EvidenceKind
from siltwin.isa.errors import GateError
from siltwin.runtime.job import Job
from siltwin.runtime.limits import find_limits
from siltwin.runtime.prepare import cluster_of
from siltwin.runtime.report import EvidenceReport
from siltwin.runtime.rests_on import evidence_reports, refuse_weak, settings_without_effect, user_set
from siltwin.runtime.run import run_job


def figures(card: CardSpec, cards: int, cluster: str | None = None) -> Sequence[EvidenceReport]:
    given = load_cluster(cluster) if cluster else None
    return evidence_reports(card, cluster_of(card, cards, given), cards, given is not None)


def test_a_number_that_the_user_set_is_listed_apart_with_its_value() -> None:
    card = override(load_card("h100-sxm"), {"clock_hz": "2GHz", "hbm.reserved_bytes": "2GiB"})
    assert user_set(card) == {"clock_hz": "2000000000", "hbm.reserved_bytes": str(2 * 2**30)}
    time, memory = figures(card, 1)
    assert (time.set_by_user, "clock_hz" in time.assumed, time.weakest) == (("clock_hz",), False, "assumed")
    assert (memory.set_by_user, memory.assumed) == (("hbm.reserved_bytes",), ())


def test_a_card_as_it_is_has_no_number_of_the_users() -> None:
    for name in ("h100-sxm", "ascend-910b2", "reference-npu"):
        assert user_set(load_card(name)) == {}
        assert not any(figure.set_by_user for figure in figures(load_card(name), 4))


def test_one_value_of_a_mapping_and_a_list_are_told_by_their_paths() -> None:
    card = override(load_card("reference-npu"), {"tensor.rate.bf16": "2", "throttle_hz": "1GHz,0.5GHz"})
    assert user_set(card) == {"tensor.rate.bf16": "2.0", "throttle_hz": "1000000000, 500000000"}


def test_time_rests_on_links_only_where_cards_communicate() -> None:
    alone, together = figures(load_card("h100-sxm"), 1)[0], figures(load_card("h100-sxm"), 2)[0]
    of_links = {"link.latency_ps", "dispatch.link_ps", "node.ports_to_peer", "link.eager_bytes"}
    assert not of_links & set(alone.assumed)
    assert of_links <= set(together.assumed)


def test_sizes_of_memory_and_stated_peaks_are_no_ground_for_time() -> None:
    card = load_card("ascend-910b2")
    assumed = figures(card, 2)[0].assumed
    assert not {"hbm.reserved_bytes", "hbm.capacity_bytes", "power.limit_c", "node.cards"} & set(assumed)
    assert {"power.tdp_w", "power.energy_j_per_op"} <= set(assumed)  # by which products sustain a clock
    assert {"hbm.latency_ps", "hbm.attainable_fraction", "dispatch.tensor_ps"} <= set(assumed)


def test_the_memory_that_tiles_lie_in_is_a_ground_for_time() -> None:
    # Of the H100's two levels the data sheet gives neither; both decide which tiles fit.
    assert {"sram.0.capacity_bytes", "sram.1.capacity_bytes"} <= set(figures(load_card("h100-sxm"), 1)[0].assumed)


@pytest.mark.parametrize(
    ("changes", "cards", "cluster", "idle"),
    [
        ({"tensor.stated_peak_ops_per_s.int8": "3e14"}, 1, None, ("tensor.stated_peak_ops_per_s.int8",)),
        ({"power.idle_w": "300"}, 1, None, ()),
        ({"link.bandwidth_bytes_per_s": "50GB/s"}, 1, None, ("link.bandwidth_bytes_per_s",)),
        ({"link.bandwidth_bytes_per_s": "50GB/s"}, 2, None, ()),
        ({"link.bandwidth_bytes_per_s": "50GB/s"}, 2, "h100-8", ("link.bandwidth_bytes_per_s",)),
        ({"link.eager_bytes": "1KiB", "clock_hz": "1GHz", "hbm.capacity_bytes": "96GiB"}, 2, "h100-8", ()),
    ],
)
def test_a_setting_that_changes_no_figure_is_told(
    changes: dict[str, str], cards: int, cluster: str | None, idle: tuple[str, ...]
) -> None:
    assert settings_without_effect(override(load_card("h100-sxm"), changes), cards, cluster is not None) == idle


def test_the_cards_own_links_are_worth_the_weaker_of_a_port_and_the_number_of_ports(tmp_path: Path) -> None:
    # The H100's 25 GB/s a port is the data sheet's; that all 18 may serve one peer is assumed.
    assert cluster_of(load_card("h100-sxm"), 8, None).link.bandwidth_bytes_per_s.evidence == "assumed"
    text = (CARDS / "h100-sxm.yaml").read_text()
    known = "bandwidth_bytes_per_s: {value: 25GB/s, evidence: datasheet,"
    assert text.count(known) == 1
    path = tmp_path / "calibrated.yaml"
    path.write_text(
        text.replace(known, known.replace("datasheet", "calibrated, error: 0.04"))
        .replace("ports_to_peer: {value: 18, evidence: assumed", "ports_to_peer: {value: 18, evidence: datasheet")
        .replace("name: h100-sxm\naliases: [h100, h100-sxm5]", "name: calibrated")
    )
    bandwidth = cluster_of(load_card(path), 8, None).link.bandwidth_bytes_per_s
    assert (bandwidth.value, bandwidth.evidence, bandwidth.error) == (450 * 10**9, "datasheet", 0.04)


def test_strict_refuses_figures_that_rest_on_assumed_numbers_and_names_them() -> None:
    assumed = EvidenceReport(figure="time", weakest="assumed", assumed=tuple("abcdefgh"), set_by_user=("clock_hz",))
    known = EvidenceReport(figure="memory", weakest="datasheet")
    with pytest.raises(GateError) as refused:
        refuse_weak([assumed, known])
    assert refused.value.exit_code == 5
    assert str(refused.value).startswith(
        "--strict: time rests on assumed numbers: clock_hz, a, b, c, d, e and 3 more. Give a card"
    )


def test_strict_refuses_what_lies_outside_a_calibration() -> None:
    outside = EvidenceReport(figure="time", weakest="calibrated", extrapolated=True)
    with pytest.raises(GateError, match="--strict: time lies outside what was calibrated. Give"):
        refuse_weak([outside])


@pytest.mark.parametrize("weakest", ["measured", "calibrated", "datasheet"])
def test_strict_lets_pass_what_somebody_measured_or_stated(weakest: EvidenceKind) -> None:
    refuse_weak([EvidenceReport(figure="time", weakest=weakest)])


@pytest.mark.parametrize("ask", [run_job, find_limits])
def test_a_strict_job_is_refused_before_it_runs(ask: Callable[[Job], object]) -> None:
    # Every shipped card's reserved HBM is assumed.
    job = Job("SmolLM2-135M", batch=1, input_len=8, payload=False, strict=True)
    with pytest.raises(GateError, match="memory rests on assumed numbers: hbm.reserved_bytes"):
        ask(job)


def test_strict_limits_ask_for_what_memory_rests_on_alone(tmp_path: Path) -> None:
    text = (CARDS / "ascend-910b2.yaml").read_text()
    start = text.index("reserved_bytes:")
    path = tmp_path / "known.yaml"
    path.write_text(text[:start] + text[start:].replace("evidence: assumed", "evidence: measured", 1))
    job = Job("SmolLM2-135M", card=str(path), batch=1, input_len=8, payload=False, strict=True)
    assert find_limits(job).fits_as_asked
    with pytest.raises(GateError, match="--strict: time rests on assumed numbers"):
        run_job(job)
