"""Ranks may stand on any cards of a topology; a library's start holds the card's dispatch."""

from collections.abc import Sequence

import pytest

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.spec import load_card, override
from siltwin.emulator.ticket import Submission
from siltwin.interconnect.choices import Choice
from siltwin.interconnect.cluster import make_cluster
from siltwin.interconnect.collectives.protocol import Protocol
from siltwin.isa.dtype import DType
from siltwin.isa.errors import ConfigError
from siltwin.isa.program import Binding, Program
from siltwin.isa.text import assemble

CARD = override(load_card("reference-npu"), {"dispatch.link_ps": "100ns", "hbm.bandwidth_bytes_per_s": "1e18"})
RING_OF_4 = make_cluster("ring", 4, 10**10, 10**6).topology()  # a byte in 100 ps, 1 us a link


def program(body: str, size: int) -> Program:
    lines = ["program p", "queue link", f"group g {size}", "buffer x : bf16[50000] communication"]
    return assemble("\n".join([*lines, "block b", "param x : bf16[50000]", f"link | {body}", "end", "call b x"]))


def elapsed_ps(cluster: Cluster, *bodies: str) -> int:
    ranks = tuple(range(len(bodies)))
    ticket = cluster.submit(
        [
            Submission(r, program(body, len(bodies)), Binding({}, {"g": r}), {"g": ranks})
            for r, body in enumerate(bodies)
        ]
    )
    cluster.run_until(ticket)
    return ticket.end_ps - ticket.start_ps


@pytest.mark.parametrize(("placement", "hops"), [(None, 1), ((0, 1), 1), ((0, 2), 2), ((3, 1), 2), ((3, 0), 1)])
def test_a_transfer_goes_from_where_its_ranks_stand(placement: Sequence[int] | None, hops: int) -> None:
    cluster = Cluster(CARD, RING_OF_4, 2, placement=placement)
    took = elapsed_ps(cluster, "send x=%x group=g peer=1", "recv x=%x group=g peer=0")
    assert took == 100_000 + hops * 10**6 + 10**7  # dispatch, latency, 100,000 bytes at 10 GB/s


def test_a_ranks_link_bytes_are_those_that_leave_its_own_card() -> None:
    cluster = Cluster(CARD, RING_OF_4, 2, placement=(3, 0))
    elapsed_ps(cluster, "send x=%x group=g peer=1", "recv x=%x group=g peer=0")
    assert [cluster.usage(rank)["link"].num_bytes for rank in (0, 1)] == [100_000, 0]
    used = {link.name for link, use in zip(RING_OF_4.links, cluster.ledger.links(), strict=True) if use.num_bytes}
    assert used == {"3>0"}


def test_the_choice_is_asked_for_the_cards_that_ranks_stand_on() -> None:
    asked: list[tuple[int, ...]] = []

    def choose(collective: str, size: int, ranks: Sequence[int], num_bytes: int, dtype: DType | None) -> Choice:
        asked.append(tuple(ranks))
        return Choice("ring")

    elapsed_ps(Cluster(CARD, RING_OF_4, 2, placement=(3, 1), choose=choose), *["all_reduce x=%x group=g"] * 2)
    assert set(asked) == {(3, 1)}


@pytest.mark.parametrize("placement", [(0,), (0, 0), (0, 4), (-1, 0), (0, 1, 2)])
def test_what_is_no_placement_is_refused(placement: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must name 2 different cards of the ring's 0 to 3"):
        Cluster(CARD, RING_OF_4, 2, placement=placement)


@pytest.mark.parametrize(
    ("start_ps", "dispatch_and_start_ps"), [(0, 100_000), (60_000, 100_000), (5 * 10**6, 5 * 10**6)]
)
def test_a_librarys_start_holds_the_dispatch(start_ps: int, dispatch_and_start_ps: int) -> None:
    library = Protocol("library", start_ps=start_ps)
    for detail in ("group", "step"):
        cluster = Cluster(
            CARD,
            RING_OF_4,
            detail=detail,  # type: ignore[arg-type]
            choose=lambda *asked: Choice("ring", protocol=library),
        )
        took = elapsed_ps(cluster, *["all_reduce x=%x group=g"] * 4)
        assert took == dispatch_and_start_ps + 6 * (10**6 + 25_000 * 100)  # six steps of 25,000 bytes
