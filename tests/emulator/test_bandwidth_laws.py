"""One instruction, one collective or one chain that runs alone is never slower where HBM or links give more."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import PLAIN, TOGETHER

from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.spec import CardSpec, load_card, override
from siltwin.interconnect.cluster import make_cluster

ALONE = (*PLAIN[:6], *TOGETHER)
SENDS = ("link | send x=%c group=all peer=1", "link | recv x=%c group=all peer=0")
percents = st.tuples(st.integers(1, 400), st.integers(1, 400)).map(sorted)


def end_ps(rig: Any, spec: CardSpec, texts: list[str], kind: str, link_bytes_per_s: int, tokens: int) -> int:
    """When the last of some instructions ends, each of which waits for those before it on its card; a text a card."""
    one = rig(len(texts), spec=spec, overrides=dict(hbm_of(spec)))
    topology = make_cluster("single" if len(texts) == 1 else kind, len(texts), link_bytes_per_s, 10**6).topology()
    cluster = CompiledCluster(one.spec, topology)
    programs = {text: one.program(text) for text in dict.fromkeys(texts)}
    ticket = cluster.submit([one.submission(rank, programs[text], tokens) for rank, text in enumerate(texts)])
    cluster.run_until(ticket)
    return ticket.end_ps


def hbm_of(spec: CardSpec) -> list[tuple[str, str]]:
    """The rig's round numbers, but for HBM, which stays the card's."""
    return [("hbm.bandwidth_bytes_per_s", str(spec.hbm.bandwidth_bytes_per_s))]


def with_hbm(spec: CardSpec, percent: int) -> CardSpec:
    return override(spec, {"hbm.bandwidth_bytes_per_s": str(spec.hbm.bandwidth_bytes_per_s * percent // 100)})


def chained(chain: list[str]) -> str:
    """Lines of which each waits for all before it."""
    done: dict[str, int] = {}
    lines = []
    for text in chain:
        waits = ", ".join(f"{name}+{count}" for name, count in done.items())
        lines.append(text + (f" | wait {waits}" if waits else ""))
        queue = text.split(" ")[0]
        done[queue] = done.get(queue, 0) + 1
    return "\n".join(lines)


@st.composite
def scenes(draw: Any) -> tuple[list[str], str]:
    """What every card does, alone or with its peers, and how they are joined."""
    kind = draw(st.sampled_from(["ring", "full_mesh", "switch"]))
    if draw(st.integers(0, 3)) == 0:
        return [SENDS[0], SENDS[1]], kind
    cards = draw(st.sampled_from([1, 2, 3, 4, 4, 6, 8]))
    usable = [text for text in ALONE if "%part" not in text or cards == 4]
    chain = draw(st.lists(st.sampled_from(usable), min_size=1, max_size=draw(st.sampled_from([1, 1, 5]))))
    return [chained([text for text in chain if cards > 1 or "group" not in text] or [PLAIN[0]])] * cards, kind


@settings(max_examples=120, deadline=None)
@given(scene=scenes(), percents=percents, tokens=st.integers(1, 64))
def test_more_hbm_is_never_slower(rig: Any, scene: tuple[list[str], str], percents: list[int], tokens: int) -> None:
    reference = load_card("reference-npu")
    ends = [end_ps(rig, with_hbm(reference, percent), *scene, 10**10, tokens) for percent in percents]
    assert ends[1] <= ends[0]


@settings(max_examples=120, deadline=None)
@given(scene=scenes(), percents=percents, tokens=st.integers(1, 64))
def test_more_link_bandwidth_is_never_slower(
    rig: Any, scene: tuple[list[str], str], percents: list[int], tokens: int
) -> None:
    ends = [end_ps(rig, load_card("reference-npu"), *scene, 10**8 * percent, tokens) for percent in percents]
    assert ends[1] <= ends[0]
