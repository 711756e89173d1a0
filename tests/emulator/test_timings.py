"""Times worked out by hand, to the picosecond, from programs on a little card to their spans."""

from typing import Any

import pytest

from siltwin.emulator.span import Span
from siltwin.emulator.spec import CardSpec, load_card

# The unit tests work this one out: 1,616 cycles of the array and 5 that nothing hides, at 1,000 ps; 532,480 HBM bytes.
MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
MATMUL_PS = 1_621_000
# 64 rows on 4 cores: 16 x (8 trips of 128 lanes + 5) cycles.
ADD = "vector | add dst=%d a=%c b=%d"
ADD_PS = 208_000
# 131,072 bytes at 512 a cycle.
COPY = "dma0 | copy dst=%d src=%c"
COPY_PS = 256_000
FIXED_PS = 500_000  # dispatch and latencies, before an instruction's work
DISPATCH_PS, LATENCY_PS = 100_000, 1_000_000  # of the links
C_PS = 13_107_200  # 131,072 bytes at one in 100 ps


def times(spans: list[Span]) -> list[tuple[int, int, int]]:
    return [(span.issue_ps, span.start_ps, span.end_ps) for span in spans]


# one card


def test_a_matmul_alone_takes_its_fixed_part_and_its_work(rig: Any) -> None:
    (span,) = rig().run(MATMUL)
    assert span == Span(0, "tensor", 0, 0, "matmul", 0, 0, FIXED_PS + MATMUL_PS, "compute", -1)


def test_a_queue_executes_in_order_and_two_queues_overlap(rig: Any) -> None:
    spans = rig().run(f"{MATMUL}\n{ADD}\n{MATMUL}")
    vector, first, second = spans
    assert (vector.start_ps, vector.end_ps) == (0, FIXED_PS + ADD_PS)
    assert (first.start_ps, first.end_ps) == (0, FIXED_PS + MATMUL_PS)
    assert (second.start_ps, second.end_ps) == (first.end_ps, 2 * (FIXED_PS + MATMUL_PS))


def test_an_instruction_starts_when_its_semaphore_is_there(rig: Any) -> None:
    matmul, add = rig().run(f"{MATMUL}\n{ADD} | wait tensor+1")
    assert add.issue_ps == add.start_ps == matmul.end_ps == FIXED_PS + MATMUL_PS
    assert add.end_ps == FIXED_PS + MATMUL_PS + FIXED_PS + ADD_PS


def test_waits_count_from_their_own_call(rig: Any) -> None:
    # The add of call 2 waits for the matmul of call 2, not for that of call 1.
    spans = rig().run(f"{MATMUL}\n{ADD} | wait tensor+1", calls=2)
    add = [span for span in spans if span.queue == "vector"]
    assert [span.start_ps for span in add] == [FIXED_PS + MATMUL_PS, 2 * (FIXED_PS + MATMUL_PS)]


def test_a_wait_for_the_calls_before_looks_back(rig: Any) -> None:
    # The matmul of call 2 waits for everything that the vector queue does in call 1.
    spans = rig().run(f"{MATMUL} | wait vector+0\n{ADD} | wait tensor+1", calls=2)
    matmul = [span for span in spans if span.queue == "tensor"]
    assert matmul[1].start_ps == FIXED_PS + MATMUL_PS + FIXED_PS + ADD_PS


def test_a_wait_and_a_signal_are_instructions_too(rig: Any) -> None:
    spans = rig().run(f"{MATMUL}\ntensor | signal semaphore=go count=2\nvector | wait semaphore=go count=2\n{ADD}")
    _, signal, wait, add = spans
    assert (signal.start_ps, signal.end_ps) == (FIXED_PS + MATMUL_PS, FIXED_PS + MATMUL_PS)
    assert (wait.start_ps, wait.end_ps, wait.bound) == (0, FIXED_PS + MATMUL_PS, "dependency")
    assert add.start_ps == FIXED_PS + MATMUL_PS


def test_control_takes_its_dispatch(rig: Any) -> None:
    slow = rig(overrides={"dispatch.control_ps": "50ns"})
    spans = slow.run(f"{MATMUL}\ntensor | signal semaphore=go count=1\nvector | wait semaphore=go count=1\n{ADD}")
    _, signal, wait, add = spans
    assert signal.end_ps == FIXED_PS + MATMUL_PS + 50_000
    # The wait's own dispatch passes while it waits.
    assert wait.end_ps == add.start_ps == signal.end_ps


def test_a_halt_ends_its_queue_and_no_other(rig: Any) -> None:
    spans = rig().run(f"{MATMUL}\ntensor | halt\n{ADD}", calls=2)
    assert [(span.queue, span.mnemonic, span.call) for span in spans] == [
        ("vector", "add", 0), ("vector", "add", 1), ("tensor", "matmul", 0), ("tensor", "halt", 0),
    ]  # fmt: skip


def test_dispatch_bounds_what_is_shorter_than_it(rig: Any) -> None:
    (span,) = rig().run(ADD)
    assert span.bound == "dispatch"


def test_the_host_link_bounds_a_load(rig: Any) -> None:
    # 131,072 bytes at one in 100 ps; 100,000 each of dispatch and host latency, 300,000 of HBM.
    (span,) = rig().run("host | host_load dst=%c src=%h")
    assert (span.end_ps, span.bound) == (500_000 + C_PS, "host")


# one card, contended


def test_a_copy_and_a_matmul_contending_for_hbm_get_half_each(rig: Any) -> None:
    # HBM gives a byte in 10 ps. Alone, the copy's 2 x 131,072 bytes take 2,621,440 ps; the matmul's 532,480 bytes take
    # 5,324,800, and 5 cycles that nothing hides. Both want nearly all, so both get half until the copy ends.
    spans = rig(overrides={"hbm.bandwidth_bytes_per_s": "100GB/s"}).run(f"{MATMUL}\n{COPY}")
    copy, matmul = spans
    assert (copy.end_ps, copy.bound) == (FIXED_PS + 2 * 2_621_440, "hbm")
    # By then the matmul has moved 262,144 of its bytes, so 270,336 / 532,480 = 66 / 130 of its time alone is left.
    rest_ps = -(-5_329_800 * 66 // 130)
    assert (matmul.end_ps, matmul.bound) == (copy.end_ps + rest_ps, "hbm")


def test_a_clock_step_in_mid_matmul_slows_the_rest(rig: Any) -> None:
    # At half of its work 808 of 1,616 cycles are left, which take 2,000 ps each from then on.
    one = rig()
    ticket = one.submit(MATMUL)
    one.cluster.advance_to(FIXED_PS + MATMUL_PS // 2)
    one.cluster.set_clock(0, 5 * 10**8)
    one.cluster.run_until(ticket)
    (span,) = ticket.spans
    assert (span.end_ps, span.bound) == (FIXED_PS + MATMUL_PS // 2 + 808 * 2000, "compute")


def test_a_clock_step_back_in_the_fixed_part_changes_nothing(rig: Any) -> None:
    one = rig()
    ticket = one.submit(MATMUL)
    one.cluster.set_clock(0, 5 * 10**8)
    one.cluster.advance_to(FIXED_PS)
    one.cluster.set_clock(0, 10**9)
    one.cluster.run_until(ticket)
    assert (ticket.spans[0].end_ps, ticket.spans[0].bound) == (FIXED_PS + MATMUL_PS, "compute")


@pytest.fixture
def streams() -> CardSpec:
    """The reference card with two streams that share its units, as CUDA has them, instead of queues that own them."""
    card = load_card("reference-npu").model_dump()
    shared = ["tensor", "vector", "dma", "control"]
    card["queues"] = [
        {"name": "s0", "kind": "stream", "units": shared},
        {"name": "s1", "kind": "stream", "units": shared},
        {"name": "link", "kind": "stream", "units": ["link", "host"]},
    ]
    return CardSpec.model_validate(card)


def test_streams_share_a_unit(rig: Any, streams: CardSpec) -> None:
    # Both want 1,616 cycles of 1,621: half the clock each.
    one = rig(spec=streams)
    spans = one.run(f"{MATMUL}\n{MATMUL}".replace("tensor |", "s0 |", 1).replace("tensor |", "s1 |"))
    assert [(span.queue, span.end_ps, span.bound) for span in spans] == [
        ("s0", FIXED_PS + 1616 * 2000, "compute"),
        ("s1", FIXED_PS + 1616 * 2000, "compute"),
    ]


def test_streams_may_use_different_units_at_once(rig: Any, streams: CardSpec) -> None:
    spans = rig(spec=streams).run(f"{MATMUL.replace('tensor', 's0')}\n{ADD.replace('vector', 's1')}")
    assert [(span.queue, span.end_ps) for span in spans] == [
        ("s1", FIXED_PS + ADD_PS), ("s0", FIXED_PS + MATMUL_PS),
    ]  # fmt: skip


def test_queues_that_own_one_unit_together_take_turns(rig: Any) -> None:
    card = load_card("reference-npu").model_dump()
    card["queues"][1]["units"] = ["vector", "control", "tensor"]
    one = rig(spec=CardSpec.model_validate(card))
    spans = one.run(f"{MATMUL}\n{MATMUL.replace('tensor |', 'vector |')}")
    # Their fixed parts overlap, their work does not.
    assert [span.end_ps for span in spans] == [FIXED_PS + MATMUL_PS, FIXED_PS + 2 * MATMUL_PS]


def test_two_copy_engines_copy_at_once_and_one_does_not(rig: Any) -> None:
    spans = rig().run(f"{COPY}\ndma1 | copy dst=%d src=%c")
    assert [span.end_ps for span in spans] == [FIXED_PS + COPY_PS] * 2
    spans = rig(overrides={"dma.engines": "1"}).run(f"{COPY}\ndma1 | copy dst=%d src=%c")
    assert [span.end_ps for span in spans] == [FIXED_PS + COPY_PS, FIXED_PS + 2 * COPY_PS]


# several cards


def test_a_ring_all_reduce_takes_2_n_minus_1_steps(rig: Any) -> None:
    # 2 (n - 1) (S / n / b + L) for n = 4, S = 131,072 bytes: 6 x (3,276,800 + 1,000,000), after the dispatch.
    spans = rig(4).run("link | all_reduce x=%c group=all")
    assert times(spans) == [(0, 0, DISPATCH_PS + 6 * (3_276_800 + LATENCY_PS))] * 4
    assert {(span.bound, span.late) for span in spans} == {("link", -1)}


def test_an_all_gather_takes_n_minus_1_steps(rig: Any) -> None:
    # 16 rows of each member, 32,768 bytes.
    spans = rig(4).run("link | all_gather dst=%c src=%part group=all axis=rows")
    assert times(spans) == [(0, 0, DISPATCH_PS + 3 * (3_276_800 + LATENCY_PS))] * 4


def test_a_barrier_takes_latency_only(rig: Any) -> None:
    spans = rig(4).run("link | barrier group=all")
    assert times(spans) == [(0, 0, DISPATCH_PS + 3 * LATENCY_PS)] * 4
    assert {span.bound for span in spans} == {"dependency"}


def test_a_group_waits_for_its_last_member_and_says_who_it_was(rig: Any) -> None:
    reduce = "link | all_reduce x=%c group=all"
    late = f"{MATMUL}\n{reduce} | wait tensor+1"
    spans = [span for span in rig(3).run(reduce, late, reduce) if span.queue == "link"]
    # Parts of 43,691 bytes at most (65,536 elements in three): 21,846 of 2 bytes.
    start_ps = FIXED_PS + MATMUL_PS
    end_ps = start_ps + DISPATCH_PS + 4 * (43_692 * 100 + LATENCY_PS)
    assert times(spans) == [(0, start_ps, end_ps), (start_ps, start_ps, end_ps), (0, start_ps, end_ps)]
    assert {span.late for span in spans} == {1}


def test_a_member_that_waited_longer_than_it_took_was_bound_by_dependency(rig: Any) -> None:
    reduce = "link | all_reduce x=%e group=all"  # 64 bytes: latencies of 2 ms, and next to nothing
    late = "\n".join([MATMUL] * 2 + [f"{reduce} | wait tensor+2"])
    spans = [span for span in rig(2).run(reduce, late) if span.queue == "link"]
    assert [span.bound for span in spans] == ["dependency", "link"]


def test_reductions_bound_an_all_reduce_where_lanes_are_slower_than_wires(rig: Any) -> None:
    # n = 2: parts of 65,536 bytes are 32,768 elements, on 1 core x 1 lane as many cycles of 1,000 ps; the wire takes
    # 6,553,600. So the reducing step takes 32,768,000 and the gathering one the wire's time.
    lanes = {"cores.count": "1", "vector.lanes.2": "1", "vector.lanes.4": "1", "vector.lanes.1": "1"}
    spans = rig(2, overrides=lanes).run("link | all_reduce x=%c group=all")
    assert times(spans) == [(0, 0, DISPATCH_PS + 2 * LATENCY_PS + 32_768_000 + 6_553_600)] * 2
    assert {span.bound for span in spans} == {"compute"}


def test_hbm_bounds_an_all_reduce_that_outruns_it(rig: Any) -> None:
    # n = 2, 65,536 bytes a part, HBM of a byte in 100 ps: the reducing step reads what it sends, reads its own and
    # writes the sum; the gathering one reads and writes. 5 x 6,553,600 where the wire would take 2.
    slow = {"hbm.bandwidth_bytes_per_s": "10GB/s"}
    spans = rig(2, overrides=slow).run("link | all_reduce x=%c group=all")
    assert times(spans) == [(0, 0, DISPATCH_PS + 2 * LATENCY_PS + 5 * 6_553_600)] * 2
    assert {span.bound for span in spans} == {"hbm"}


SEND, RECV = "link | send x=%c group=all peer=1", "link | recv x=%c group=all peer=0"


def test_a_transfer_starts_when_both_ends_have_issued(rig: Any) -> None:
    send, matmul, recv = rig(2).run(SEND, f"{MATMUL}\n{RECV} | wait tensor+1")
    start_ps = FIXED_PS + MATMUL_PS
    end_ps = start_ps + DISPATCH_PS + LATENCY_PS + C_PS
    assert times([send, recv]) == [(0, start_ps, end_ps), (start_ps, start_ps, end_ps)]
    assert (send.bound, send.late, recv.bound, recv.late) == ("link", 1, "dependency", 1)


def test_a_receiver_waits_for_its_sender(rig: Any) -> None:
    matmul, send, recv = rig(2).run(f"{MATMUL}\n{SEND} | wait tensor+1", RECV)
    start_ps = FIXED_PS + MATMUL_PS
    assert times([send, recv]) == [
        (start_ps, start_ps, start_ps + DISPATCH_PS + LATENCY_PS + C_PS),
        (0, start_ps, start_ps + DISPATCH_PS + LATENCY_PS + C_PS),
    ]
    assert (send.late, recv.late) == (0, 0)


def test_a_small_message_does_not_wait_for_its_receiver(rig: Any) -> None:
    send, matmul, recv = rig(2).run(SEND.replace("%c", "%e"), f"{MATMUL}\n{RECV.replace('%c', '%e')} | wait tensor+1")
    assert times([send]) == [(0, 0, DISPATCH_PS + LATENCY_PS + 6400)]
    # It has long been there.
    assert times([recv]) == [(FIXED_PS + MATMUL_PS, FIXED_PS + MATMUL_PS, FIXED_PS + MATMUL_PS)]


def test_the_eager_limit_is_the_last_size_that_does_not_wait(rig: Any) -> None:
    late = f"{MATMUL}\n{RECV.replace('%c', '%e')} | wait tensor+1"
    send = rig(2, overrides={"link.eager_bytes": "64"}).run(SEND.replace("%c", "%e"), late)[0]
    assert send.start_ps == 0
    send = rig(2, overrides={"link.eager_bytes": "63"}).run(SEND.replace("%c", "%e"), late)[0]
    assert send.start_ps == FIXED_PS + MATMUL_PS


def test_an_eager_message_is_added_when_its_receiver_gets_there(rig: Any) -> None:
    add = RECV.replace("recv x=%c", "recv_reduce x=%e")
    send, recv = rig(2).run(SEND.replace("%c", "%e"), add)
    # 32 elements take one cycle; the dispatch of the receiver's own addition stands before it.
    assert times([send, recv]) == [
        (0, 0, DISPATCH_PS + LATENCY_PS + 6400),
        (0, 0, DISPATCH_PS + LATENCY_PS + 6400 + DISPATCH_PS + 1000),
    ]


def test_messages_of_one_pair_arrive_in_order(rig: Any) -> None:
    spans = rig(2).run(f"{SEND}\n{SEND.replace('%c', '%e')}", f"{RECV}\n{RECV.replace('%c', '%e')}")
    first, second = DISPATCH_PS + LATENCY_PS + C_PS, DISPATCH_PS + LATENCY_PS + 6400
    assert [span.end_ps for span in spans] == [first, first + second] * 2


def test_transfers_that_cross_one_link_share_it(rig: Any) -> None:
    # In a ring of four, card 0 reaches card 2 over 0>1 and 1>2, with two latencies; card 1 over 1>2, with one.
    four = rig(4, overrides={"link.eager_bytes": "1MiB"})
    send = SEND.replace("peer=1", "peer=2")
    first, second, *recvs = four.run(send, send, f"{RECV}\n{RECV.replace('peer=0', 'peer=1')}", "tensor | halt")
    # The second flows alone for 1,000,000 ps, then each has half the link until it ends.
    flowing_ps = DISPATCH_PS + 2 * LATENCY_PS
    assert second.end_ps == flowing_ps + 2 * (C_PS - LATENCY_PS)
    assert first.end_ps == second.end_ps + LATENCY_PS == DISPATCH_PS + LATENCY_PS + 2 * C_PS
    assert [span.end_ps for span in recvs[:2]] == [first.end_ps] * 2


def test_a_slow_link_slows_who_crosses_it_and_a_dead_one_stops_them(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit(SEND, RECV)
    flowing_ps = DISPATCH_PS + LATENCY_PS
    two.cluster.advance_to(flowing_ps + C_PS // 4)
    two.cluster.set_link_capacity(0, 1, 5 * 10**9)  # a quarter is over; at half speed
    two.cluster.advance_to(flowing_ps + C_PS // 4 + C_PS // 2)
    two.cluster.set_link_capacity(0, 1, 0)  # half is over; and nothing moves for a microsecond
    two.cluster.advance_to(flowing_ps + C_PS // 4 + C_PS // 2 + 10**6)
    two.cluster.set_link_capacity(0, 1, 10**10)
    two.cluster.run_until(ticket)
    assert [span.end_ps for span in ticket.spans] == [flowing_ps + C_PS // 4 + C_PS // 2 + 10**6 + C_PS // 2] * 2
    assert ticket.spans[0].bound == "link"


# several submissions


def test_two_submissions_on_one_card_follow_each_other_queue_by_queue(rig: Any) -> None:
    one = rig()
    first, second = one.submit(f"{MATMUL}\n{ADD}"), one.submit(f"{MATMUL}\n{ADD}")
    one.cluster.run_until(second)
    assert [(s.queue, s.start_ps) for s in first.spans] == [("vector", 0), ("tensor", 0)]
    assert [(s.queue, s.start_ps) for s in second.spans] == [
        ("vector", FIXED_PS + ADD_PS), ("tensor", FIXED_PS + MATMUL_PS),
    ]  # fmt: skip
    assert (first.start_ps, first.end_ps) == (0, FIXED_PS + MATMUL_PS)
    assert (second.start_ps, second.end_ps) == (0, 2 * (FIXED_PS + MATMUL_PS))


def test_semaphores_of_two_submissions_are_apart(rig: Any) -> None:
    one = rig()
    first, second = one.submit(MATMUL), one.submit(f"{MATMUL}\n{ADD} | wait tensor+1")
    one.cluster.run_until(second)
    add = next(span for span in second.spans if span.mnemonic == "add")
    assert add.start_ps == 2 * (FIXED_PS + MATMUL_PS)  # its own matmul, not the first submission's
    assert first.end_ps == FIXED_PS + MATMUL_PS


def test_a_submission_may_follow_while_another_runs(rig: Any) -> None:
    one = rig()
    first = one.submit(MATMUL)
    one.cluster.advance_to(700_000)
    second = one.submit(ADD)
    one.cluster.run_until(first)
    assert second.spans == [
        Span(0, "vector", 0, 0, "add", 700_000, 700_000, 700_000 + FIXED_PS + ADD_PS, "dispatch", -1)
    ]


# step for step


@pytest.mark.parametrize("instruction", [
    "all_reduce x=%c group=all",
    "all_gather dst=%c src=%part group=all axis=rows",
    "broadcast x=%c group=all root=1",
    "barrier group=all",
])  # fmt: skip
@pytest.mark.parametrize("kind", ["ring", "full_mesh"])
def test_a_group_takes_as_long_as_its_steps(rig: Any, instruction: str, kind: str) -> None:
    whole = rig(4, kind).run(f"link | {instruction}")
    steps = rig(4, kind, detail="step").run(f"link | {instruction}")
    assert [span.end_ps for span in whole] == [span.end_ps for span in steps]
    assert [span._replace(end_ps=0) for span in whole] == [span._replace(end_ps=0) for span in steps]
