"""A layout's groups run on the cluster they are placed on, and the report says where their bytes went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltwin.interconnect.cluster import load_cluster
from siltwin.isa.errors import ConfigError
from siltwin.runtime.job import Job
from siltwin.runtime.report import Report
from siltwin.runtime.run import run_job

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 192,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 24,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SAID = "evidence: assumed, source: a test"


def link(bandwidth: str, latency_ps: int) -> str:
    return f"{{bandwidth_bytes_per_s: {{value: {bandwidth}, {SAID}}}, latency_ps: {{value: {latency_ps}, {SAID}}}}}"


def nodes(nodes: int, slow: str = "25e9") -> str:
    """Nodes of eight cards on a switch, their equal cards joined by rails a tenth as fast."""
    return (
        f"name: nodes-{nodes}x8\nlevels:\n"
        f"  - {{name: node, kind: switch, of: 8, link: {link('250e9', 500_000)}}}\n"
        f"  - {{name: plane, kind: switch, of: {nodes}, joins: rails, link: {link(slow, 2_000_000)}}}\n"
    )


def run(folder: Path, cluster: str, layout: str, **options: object) -> Report:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "cluster.yaml"
    file.write_text(cluster)
    given = {"batch": 2, "input_len": 32, "output_len": 2, "payload": False, "card": "reference-npu", **options}
    return run_job(Job(str(folder / "config.json"), cluster=str(file), layout=layout, **given)).report  # type: ignore[arg-type]


def crossing(report: Report) -> int:
    """Bytes on the links between nodes, to a rail's switch and from it."""
    return sum(link.bytes for link in report.links if link.bandwidth_bytes_per_s == 25 * 10**9)


def test_tp_stands_within_nodes_and_stages_across_them(tmp_path: Path) -> None:
    report = run(tmp_path, nodes(2), "tp=8,pp=2")
    axes = {axis.axis: axis for axis in report.axes}
    assert report.cluster.placement == tuple(range(16))
    assert (axes["tp"].ranks, axes["pp"].ranks) == (8, 2)
    # Whatever crosses the rails (once up to its switch, once down) is what stages send each other.
    assert crossing(report) == axes["pp"].bytes


def test_turned_round_the_chattiest_axis_crosses_nodes_and_it_takes_longer(tmp_path: Path) -> None:
    natural, turned = (run(tmp_path, nodes(2), "tp=2,pp=4", placement=text) for text in (None, "0,8,1,9,2,10,3,11"))
    assert turned.cluster.placement == (0, 8, 1, 9, 2, 10, 3, 11)
    assert crossing(natural) == 0 < crossing(turned)
    assert turned.totals.elapsed_ps > natural.totals.elapsed_ps
    assert [axis.count for axis in turned.axes] == [axis.count for axis in natural.axes]


def test_tp_24_on_nodes_of_8_crosses_them_and_is_counted_on_the_slow_links(tmp_path: Path) -> None:
    report = run(tmp_path, nodes(4), "tp=24")
    assert (report.cluster.cards_used, report.cluster.cards_unused) == (24, 8)
    assert report.cluster.placement == tuple(range(24)) and crossing(report) > 0
    slower = run(tmp_path, nodes(4, slow="1e9"), "tp=24")
    assert slower.totals.elapsed_ps > report.totals.elapsed_ps  # what crosses nodes holds every layer


def test_tp_24_on_one_node_of_8_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs 24 cards and the cluster has 8"):
        run(tmp_path, nodes(1), "tp=24")


def test_groups_of_6_leave_the_rest_of_each_node_free(tmp_path: Path) -> None:
    report = run(tmp_path, nodes(2), "tp=6,pp=2")
    assert report.cluster.placement == (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)
    assert report.cluster.cards_unused == 4
    packed = run(tmp_path, nodes(2), "tp=6,pp=2", placement="packed")
    assert packed.cluster.placement == tuple(range(12))
    assert any("ranks 6-11 stand in 2 units of 8 cards" in warning for warning in packed.warnings)
    assert packed.totals.elapsed_ps > report.totals.elapsed_ps


def test_links_and_axes_add_up_to_the_collectives(tmp_path: Path) -> None:
    report = run(tmp_path, nodes(2), "tp=8,pp=2")
    assert sum(axis.bytes for axis in report.axes) == sum(link.bytes for link in report.links)
    for axis in report.axes:
        own = [item for item in report.collectives if item.axis == axis.axis]
        assert axis.bytes == sum(item.bytes for item in own) and axis.count == sum(item.count for item in own)
        assert max(item.time_ps for item in own) <= axis.time_ps <= sum(item.time_ps for item in own)
    for link in report.links:
        assert link.bandwidth_bytes_per_s and link.busy_ps is not None and link.utilisation is not None
        needs = link.bytes / link.bandwidth_bytes_per_s / report.totals.elapsed_ps * 10**12
        assert link.utilisation == pytest.approx(needs, rel=1e-3, abs=1e-9)


def test_the_table_of_the_cluster_file_decides_what_a_run_does(tmp_path: Path) -> None:
    text = nodes(1)
    tables = [
        f"choices:\n  - {{collective: all_reduce, algorithm: {algorithm}}}\n"
        for algorithm in ("ring", "halving_doubling")
    ]
    ring, halving = (run(tmp_path, text + table, "tp=8") for table in tables)
    spent = [item.time_ps for report in (ring, halving) for item in report.collectives if item.kind == "all_reduce"]
    assert spent[1] < spent[0]  # 6 steps of latency for small messages, not 14
    assert load_cluster(tmp_path / "cluster.yaml").choices[0].algorithm == "halving_doubling"


def test_numbers_do_not_depend_on_where_ranks_stand(tmp_path: Path) -> None:
    texts: list[str | None] = [None, "3,9,12,1"]
    tokens = [
        [request.tokens for request in run(tmp_path, nodes(2), "tp=2,pp=2", payload=True, placement=text).requests]
        for text in texts
    ]
    assert tokens[0] == tokens[1] and tokens[0][0]


@pytest.mark.parametrize("text", ["tp,tp", "0,1", "0,0,1,2", "0,1,2,99", "innermost"])
def test_a_placement_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--placement"):
        run(tmp_path, nodes(2), "tp=2,pp=2", placement=text)
