"""What units and links were busy with, and how much of them was demanded, worked out by hand."""

from typing import Any

import pytest

from siltwin.emulator.cluster import Cancelled
from siltwin.emulator.usage import Usage


def used(busy_ps: int, demanded_ps: int, cycles: int) -> Usage:
    return Usage(busy_ps, demanded_ps, cycles, None)


def moved(busy_ps: int, demanded_ps: int, num_bytes: int) -> Usage:
    return Usage(busy_ps, demanded_ps, None, num_bytes)


def usage_of(one: Any) -> list[dict[str, Usage]]:
    return [one.cluster.usage(rank) for rank in range(len(one.cluster.cards))]


MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
COPY = "dma0 | copy dst=%d src=%c"
REDUCE = "link | all_reduce x=%c group=all"
FIXED_PS, MATMUL_PS, COPY_PS = 500_000, 1_621_000, 256_000
REDUCE_PS = 100_000 + 2 * (6_553_600 + 10**6)  # two cards, 65,536 bytes a part, one in 100 ps


def test_a_matmul_uses_its_unit_and_hbm(rig: Any) -> None:
    one = rig()
    one.run(MATMUL, calls=2)
    usage = usage_of(one)
    busy_ps = 2 * (FIXED_PS + MATMUL_PS)
    # 1,616 cycles of 1,000 ps a matmul; 532,480 bytes at 100 in a ps are 5,325.
    assert usage[0]["tensor"] == used(busy_ps, 2 * 1_616_000, 2 * 1616)
    assert usage[0]["hbm"] == moved(busy_ps, 10_650, 2 * 532_480)
    assert usage[0]["vector"] == usage[0]["dma0"] == usage[0]["dma1"] == used(0, 0, 0)
    assert usage[0]["link"] == moved(0, 0, 0)


def test_time_in_which_two_instructions_use_a_unit_counts_once(rig: Any) -> None:
    one = rig()
    ticket = one.submit(f"{MATMUL}\n{COPY}\ndma1 | copy dst=%c src=%d")
    one.cluster.run_until(ticket)
    usage = usage_of(one)
    assert usage[0]["hbm"].busy_ps == FIXED_PS + MATMUL_PS
    assert usage[0]["dma0"] == usage[0]["dma1"] == used(FIXED_PS + COPY_PS, COPY_PS, 256)


def test_submissions_add_up(rig: Any) -> None:
    one = rig()
    tickets = [one.submit(MATMUL), one.submit(MATMUL)]
    one.cluster.run_until(tickets[1])
    assert one.cluster.usage(0)["tensor"] == used(2 * (FIXED_PS + MATMUL_PS), 2 * 1_616_000, 2 * 1616)


def test_a_submission_that_has_not_ended_does_not_count_yet(rig: Any) -> None:
    one = rig()
    first, second = one.submit(MATMUL), one.submit(MATMUL)
    one.cluster.run_until(first)
    one.cluster.advance_to(first.end_ps + 1)
    assert one.cluster.usage(0)["tensor"] == used(FIXED_PS + MATMUL_PS, 1_616_000, 1616)
    one.cluster.run_until(second)
    one.cluster.advance_to(second.end_ps + 1)
    one.run(MATMUL)
    assert one.cluster.usage(0)["tensor"] == used(3 * (FIXED_PS + MATMUL_PS), 3 * 1_616_000, 3 * 1616)


def test_of_a_failed_submission_what_had_ended_counts(rig: Any) -> None:
    one = rig()
    ticket = one.submit(f"{MATMUL}\n{COPY}")
    one.cluster.advance_to(1_000_000)
    one.cluster.cancel(ticket)
    with pytest.raises(Cancelled):
        one.cluster.run_until(ticket)
    one.cluster.advance_to(1_000_001)
    usage = one.cluster.usage(0)
    assert (usage["dma0"].cycles, usage["tensor"].cycles) == (256, 0)


def test_a_collective_uses_links_hbm_and_lanes_of_every_member(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit(REDUCE)
    two.cluster.run_until(ticket)
    usage = usage_of(two)
    for rank in (0, 1):
        # It sends 65,536 bytes twice, adds 32,768 elements of its own to what came, 512 a cycle, and writes twice.
        assert usage[rank]["link"] == moved(REDUCE_PS, 2 * 6_553_600, 131_072)
        assert usage[rank]["hbm"] == moved(REDUCE_PS, 3277, 5 * 65_536)
        assert usage[rank]["vector"] == used(REDUCE_PS, 64_000, 64)
    assert two.cluster.ledger.links() == [moved(REDUCE_PS, 2 * 6_553_600, 131_072)] * 2


def test_a_transfer_is_the_senders_and_both_ends_hbm(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit("link | send x=%c group=all peer=1", "link | recv x=%c group=all peer=0")
    two.cluster.run_until(ticket)
    usage, span_ps = usage_of(two), 100_000 + 10**6 + 13_107_200
    assert usage[0]["link"] == moved(span_ps, 13_107_200, 131_072)
    assert usage[1]["link"] == moved(span_ps, 0, 0)
    assert usage[0]["hbm"] == usage[1]["hbm"] == moved(span_ps, 1311, 131_072)
    assert [entry.num_bytes for entry in two.cluster.ledger.links()] == [131_072, 0]


def test_what_the_receiver_of_an_eager_message_adds_is_its_own(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit("link | send x=%e group=all peer=1", "link | recv_reduce x=%e group=all peer=0")
    two.cluster.run_until(ticket)
    usage = usage_of(two)
    assert (usage[0]["hbm"].num_bytes, usage[0]["vector"].cycles, usage[1]["vector"].cycles) == (64, 0, 1)
    # 64 bytes arrive; then they and the 64 that stand there are read, and the sum is written. The Work counts those.
    work = ticket.runs[1].ops[0].cost.work
    assert usage[1]["hbm"].num_bytes == 64 + work.read_bytes + work.write_bytes


def test_control_keeps_no_unit_busy(rig: Any) -> None:
    one = rig(overrides={"dispatch.control_ps": "50ns"})
    ticket = one.submit("vector | signal semaphore=go count=1")
    one.cluster.run_until(ticket)
    assert {use[:2] for use in one.cluster.usage(0).values()} == {(0, 0)}


def test_the_record_of_exchanges_says_who_met_when(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit(REDUCE, f"{MATMUL}\n{REDUCE} | wait tensor+1")
    two.cluster.run_until(ticket)
    (exchanged,) = ticket.exchanged
    assert (exchanged.message.kind, exchanged.ranks) == ("all_reduce", (0, 1))
    assert (exchanged.start_ps, exchanged.end_ps) == (FIXED_PS + MATMUL_PS, FIXED_PS + MATMUL_PS + REDUCE_PS)
