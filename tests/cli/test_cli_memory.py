"""What the command line says of memory: the plan before a run, the KV policies beside one."""

from __future__ import annotations

import json

from siltwin.runtime.report_plan import PlanReport

SIZES = ("--scale", "--batch", "2", "--input-len", "20", "--output-len", "3")


def test_a_plan_prints_its_formulas_and_is_labelled_an_estimate(siltwin) -> None:
    small = ("--set", "hbm.capacity_bytes=8MiB", "--set", "hbm.reserved_bytes=0")
    shown = siltwin("plan", "DeepSeek-V3", *SIZES, *small)
    assert shown.exit_code == 0
    assert "Estimate for card 0" in shown.stdout and "latents" in shown.stdout and "fits, by estimate" in shown.stdout
    report = PlanReport.model_validate_json(siltwin("plan", "DeepSeek-V3", *SIZES, *small, "--json", "-").stdout)
    assert report.label == "estimate"
    assert sum(line.num_bytes for line in report.cards[0].lines) == report.cards[0].peak_bytes


def test_every_kv_policy_stands_in_one_table(siltwin) -> None:
    asked = ("run", "DeepSeek-V3", *SIZES, "--no-payload", "--compare-kv")
    shown = siltwin(*asked)
    assert shown.exit_code == 0 and "The KV cache by each policy" in shown.stdout
    table = shown.stdout.partition("The KV cache by each policy")[2].splitlines()[2:5]
    assert [line.split()[0] for line in table] == ["paged", "preallocated", "virtual"]
    assert all(line.split()[-1] == "yes" for line in table)
    uses = json.loads(siltwin(*asked, "--json", "-").stdout)["kv"]
    assert [use["policy"] for use in uses] == ["paged", "preallocated", "virtual"]


def test_an_alert_that_is_crossed_ends_with_5_and_the_report(siltwin) -> None:
    asked = ("run", "Llama-3.1-405B", *SIZES, "--no-payload")
    shown = siltwin(*asked, "--alert", "memory=0.0001", "--alert", "ttft=1s")
    assert shown.exit_code == 5
    assert "memory: ABOVE" in shown.stdout and "ttft: never above 1 s" in shown.stdout
    assert siltwin(*asked, "--alert", "ttft=1s").exit_code == 0
