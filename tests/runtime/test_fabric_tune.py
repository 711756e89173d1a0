"""Tuning: the table says of every size what emulation says is fastest, stands in the file, and is what runs use."""

from pathlib import Path

import pytest

from siltwin.interconnect.cluster import load_cluster
from siltwin.isa.errors import ConfigError
from siltwin.runtime.fabric.bench import Ask, run_bench
from siltwin.runtime.fabric.tune import tune

SAID = "evidence: assumed, source: a test"
LINK = f"{{bandwidth_bytes_per_s: {{value: 10e9, {SAID}}}, latency_ps: {{value: 1000000, {SAID}}}}}"
RING = f"""# our ring, with a comment to keep
name: our-ring
kind: ring
cards: 8
link: {LINK}
choices: # what somebody wrote by hand
  - {{collective: all_reduce, algorithm: double_binary_tree}}
  - collective: barrier
    algorithm: dissemination
notes:
  - kept
"""
NODES = f"""name: nodes
levels:
  - {{name: node, kind: full_mesh, of: 4, link: {LINK}}}
  - {{name: plane, kind: switch, of: 4, joins: rails, link: {LINK.replace("10e9", "1e9")}}}
"""
PROTOCOLS = f"""protocols:
  quick: {{start_ps: {{value: 0, {SAID}}}, step_ps: {{value: 0, {SAID}}}, bandwidth_ppm: {{value: 250000, {SAID}}}}}
  wide: {{start_ps: {{value: 9e6, {SAID}}}, step_ps: {{value: 0, {SAID}}}, bandwidth_ppm: {{value: 1000000, {SAID}}}}}
"""


def written(folder: Path, text: str) -> str:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return str(file)


def test_the_table_names_the_fastest_of_every_size_that_was_emulated(tmp_path: Path) -> None:
    name, tuned = written(tmp_path, RING), str(tmp_path / "tuned.yaml")
    tune(name, collectives="all_reduce,all_gather", sizes="1KiB:16MiB", ranks="8", output=tuned)
    for collective in ("all_reduce", "all_gather"):
        asked = {"collective": collective, "sizes": "1KiB:16MiB", "factor": 4.0}
        chosen = run_bench(Ask(tuned, **asked)).rows  # type: ignore[arg-type]
        every = run_bench(Ask(name, algorithm="all", **asked)).rows  # type: ignore[arg-type]
        for row in chosen:
            rivals = [other.time_ps for other in every if other.message == row.message]
            assert row.time_ps == min(rivals)


def test_only_the_choices_of_the_file_change(tmp_path: Path) -> None:
    name = written(tmp_path, RING)
    report = tune(name, collectives="all_reduce", sizes="1KiB,16MiB", output=name)  # into the same file
    text = Path(name).read_text()
    assert text.startswith("# our ring, with a comment to keep\nname: our-ring\n")
    assert "notes:\n  - kept\n" in text and "double_binary_tree" not in text and "barrier" not in text
    assert load_cluster(name).choices == report.choices
    tune(name, collectives="all_reduce", sizes="1KiB,16MiB", output=name)
    assert Path(name).read_text() == text


def test_two_sizes_are_parted_in_their_geometric_middle(tmp_path: Path) -> None:
    report = tune(written(tmp_path, RING), collectives="all_reduce", sizes="1KiB,16MiB", ranks="8")
    small, large = report.choices
    assert (small.up_to_bytes, large.up_to_bytes) == (1 << 17, None)
    assert small.algorithm != large.algorithm


def test_protocols_are_tried_too(tmp_path: Path) -> None:
    report = tune(written(tmp_path, RING + PROTOCOLS), collectives="all_gather", sizes="1KiB,16MiB", ranks="8")
    assert [row.protocol for row in report.choices] == ["quick", "wide"]


def test_groups_within_a_node_and_beyond_it_have_rows_of_their_own(tmp_path: Path) -> None:
    report = tune(written(tmp_path, NODES), collectives="all_reduce", sizes="16MiB")
    places = {(row.within, row.beyond, row.from_ranks, row.up_to_ranks): row.algorithm for row in report.choices}
    inside = {algorithm for (within, _, _, _), algorithm in places.items() if within == "node"}
    assert inside <= {"direct", "ring", "rings", "ring_both_ways", "halving_doubling"} and inside
    across = [key for key in places if key[1] == "node"]
    whole = [key for key in places if key[:2] == (None, None)]
    assert across and whole and whole[-1][3] is None
    assert places[whole[-1]].startswith("hierarchical")  # nodes first, the slow plane with a quarter of the bytes


def test_a_run_of_the_tuned_file_uses_it_for_the_group_it_was_made_for(tmp_path: Path) -> None:
    tuned = str(tmp_path / "tuned.yaml")
    report = tune(written(tmp_path, NODES), collectives="all_reduce", sizes="16MiB", output=tuned)
    spec = load_cluster(tuned)
    inside = next(row for row in report.choices if row.within == "node" and row.from_ranks <= 4)
    assert spec.choose("all_reduce", 4, range(4), 1 << 24).algorithm in {
        row.algorithm for row in report.choices if row.within == "node"
    }
    assert inside.collective == "all_reduce"
    assert spec.choose("all_reduce", 16, range(16), 1 << 24).algorithm.startswith("hierarchical")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": "16"}, "must be from 2 to the cluster's 8 cards"),
        ({"ranks": "two"}, "must be from 2"),
        ({"sizes": "0"}, "whole number of bytes"),
        ({"collectives": "all_reduce,nothing"}, "is not one"),
        ({"collectives": "all_reduce,send_recv"}, "send_recv has one algorithm, so nothing to choose"),
        ({"card": "no-such-card"}, "unknown card"),
    ],
)
def test_bad_questions_are_refused_before_anything_is_emulated(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(written(tmp_path, RING), **changes)  # type: ignore[arg-type]
