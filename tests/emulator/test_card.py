"""What a card refuses, what it says when it is stuck, and what becomes of programs that fail or are taken back."""

from dataclasses import replace
from typing import Any

import pytest
import simpy

from siltwin.emulator.calendar.engine import int_env
from siltwin.emulator.cluster import Cancelled, Cluster
from siltwin.emulator.deadlock import DeadlockError
from siltwin.emulator.intervals import covered_ps
from siltwin.emulator.spec import load_card
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.errors import ConfigError, ProgramError

MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
ADD = "vector | add dst=%d a=%c b=%d"
FIXED_PS, MATMUL_PS, ADD_PS = 500_000, 1_621_000, 208_000
REDUCE = "link | all_reduce x=%c group=all"
SEND, RECV = "link | send x=%c group=all peer=1", "link | recv x=%c group=all peer=0"


def stuck(one: Any, *bodies: str, calls: int = 1) -> tuple[str, ...]:
    ticket = one.submit(*bodies, calls=calls)
    with pytest.raises(DeadlockError) as raised:
        one.cluster.run_until(ticket)
    assert all(waiter in str(raised.value) for waiter in raised.value.waiters)
    return raised.value.waiters


# deadlocks


def test_a_deadlock_names_the_semaphore_and_how_far_it_is(rig: Any) -> None:
    # The tensor queue halts in the first call, so the third waits for four of its instructions and gets two.
    (waiter,) = stuck(rig(), f"{MATMUL}\ntensor | halt\n{ADD} | wait tensor+0", calls=3)
    assert waiter == (
        "card 0, queue vector, call 2 of b, instruction 2 (add dst=%d a=%c b=%d) "
        "waits for semaphore tensor: it stands at 2 and must reach 4"
    )


def test_a_deadlock_names_the_rank_that_did_not_come(rig: Any) -> None:
    waiters = stuck(rig(3), REDUCE, MATMUL, REDUCE)
    assert waiters == tuple(
        f"card {rank}, queue link, call 0 of b, instruction 0 (all_reduce x=%c group=all) "
        "waits for collective 0 of ranks 0, 1, 2: rank 1 has not come"
        for rank in (0, 2)
    )


def test_a_deadlock_says_that_a_rank_is_not_in_the_submission(rig: Any) -> None:
    two = rig(2)
    ticket = two.cluster.submit([two.submission(0, two.program(REDUCE))])
    with pytest.raises(DeadlockError, match=r"rank 1 \(not in this submission\) has not come"):
        two.cluster.run_until(ticket)


def test_a_deadlock_names_the_receive_without_a_send(rig: Any) -> None:
    (waiter,) = stuck(rig(2), MATMUL, RECV)
    assert waiter.endswith(
        "(recv x=%c group=all peer=0) waits for the transfer from rank 0 to rank 1: no SEND comes from rank 0"
    )


def test_a_deadlock_names_the_send_without_a_receive(rig: Any) -> None:
    (waiter,) = stuck(rig(2), SEND, MATMUL)
    assert waiter.endswith("waits for the transfer from rank 0 to rank 1: no RECV comes from rank 1")


def test_two_sends_that_wait_for_each_other_are_a_deadlock(rig: Any) -> None:
    back = SEND.replace("peer=1", "peer=0"), RECV.replace("peer=0", "peer=1")
    waiters = stuck(rig(2), f"{SEND}\n{back[1]}", f"{back[0]}\n{RECV}")
    assert [waiter.split(" waits for ")[1] for waiter in waiters] == [
        "the transfer from rank 0 to rank 1: no RECV comes from rank 1",
        "the transfer from rank 1 to rank 0: no RECV comes from rank 0",
    ]


def test_collectives_in_another_order_of_groups_are_a_deadlock_or_a_mismatch(rig: Any) -> None:
    with pytest.raises(ProgramError) as raised:
        rig(2).run(f"{REDUCE}\nlink | barrier group=all", f"link | barrier group=all\n{REDUCE}")
    assert "collective 0 of ranks 0, 1: members differ" in str(raised.value)
    assert "card 0, call 0 of b, instruction 0 (all_reduce x=%c group=all), brings all_reduce of 65536+65536 bytes" in (
        str(raised.value)
    )
    assert "card 1, call 0 of b, instruction 0 (barrier group=all), brings barrier" in str(raised.value)


def test_an_activity_on_a_dead_unit_is_named_and_may_go_on(rig: Any) -> None:
    one = rig()
    one.cluster.set_capacity(0, "tensor", 0)
    ticket = one.submit(MATMUL)
    with pytest.raises(DeadlockError, match=r"matmul.* stands still: card 0 tensor has capacity 0"):
        one.cluster.run_until(ticket)
    one.cluster.advance_to(2_000_000)
    one.cluster.set_capacity(0, "tensor", 10**9)
    one.cluster.run_until(ticket)
    assert ticket.end_ps == 2_000_000 + MATMUL_PS


def test_a_collective_over_a_dead_link_is_named(rig: Any) -> None:
    two = rig(2)
    two.cluster.set_link_capacity(1, 0, 0)
    ticket = two.submit(REDUCE)
    with pytest.raises(DeadlockError, match="collective 0 of ranks 0, 1, which stands still: link 1 1>0 has capacity"):
        two.cluster.run_until(ticket)


# disagreement


def test_members_that_bring_other_sizes_are_both_named(rig: Any) -> None:
    with pytest.raises(
        ProgramError, match=r"card 0, .* brings .*65536\+65536 bytes.* card 1, .* brings .*32\+32 bytes"
    ):
        rig(2).run(REDUCE, REDUCE.replace("%c", "%e"))


def test_ends_of_a_transfer_of_other_sizes_are_both_named(rig: Any) -> None:
    with pytest.raises(ProgramError, match=r"its ends differ: card 0, .*131072 bytes.*; card 1, .* 64 bytes"):
        rig(2).run(SEND, RECV.replace("%c", "%e"))


def test_a_small_message_that_nobody_receives_is_an_error(rig: Any) -> None:
    with pytest.raises(ProgramError, match="the transfer from rank 0 to rank 1 was sent, and rank 1 never receives it"):
        rig(2).run(SEND.replace("%c", "%e"), MATMUL)


# what is refused at submission


def test_a_rank_outside_the_cluster_or_twice_is_refused(rig: Any) -> None:
    two = rig(2)
    part = two.submission(0, two.program(MATMUL))
    with pytest.raises(ProgramError, match="rank 2 is no card; there are 0 to 1"):
        two.cluster.submit([replace(part, rank=2)])
    with pytest.raises(ProgramError, match="rank 0 stands twice"):
        two.cluster.submit([part, part])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "group all has no ranks; given: none"),
        ({"all": (0,)}, "group all needs 2 different ranks"),
        ({"all": (0, 0)}, "group all needs 2 different ranks"),
        ({"all": (0, 7)}, "cards are 0 to 1"),
        ({"all": (1, 0)}, "the binding calls rank 0 its member 0"),
    ],
)
def test_groups_that_do_not_fit_are_refused(rig: Any, groups: dict[str, tuple[int, ...]], message: str) -> None:
    two = rig(2)
    with pytest.raises(ProgramError, match=message):
        two.cluster.submit([replace(two.submission(0, two.program(REDUCE)), groups=groups)])


def test_groups_of_the_same_ranks_in_another_order_are_refused(rig: Any) -> None:
    two = rig(2)
    first, second = (two.submission(rank, two.program(REDUCE)) for rank in (0, 1))
    turned = replace(second, groups={"all": (1, 0)}, binding=replace(second.binding, group_index={"all": 0}))
    with pytest.raises(ProgramError, match="the same ranks in another order"):
        two.cluster.submit([first, turned])


def test_a_queue_that_the_card_lacks_is_refused(rig: Any) -> None:
    one = rig()
    program = one.program(MATMUL)
    other = replace(program, queues=(*program.queues, "cube"))
    with pytest.raises(ProgramError, match="has a queue 'cube'; reference-npu has tensor, vector, dma0"):
        one.cluster.submit([one.submission(0, other)])


def test_an_instruction_on_a_queue_without_its_unit_is_refused(rig: Any) -> None:
    with pytest.raises(ProgramError, match=r"the queue dma0 .* does not use the tensor unit; choose tensor"):
        rig().submit(MATMUL.replace("tensor |", "dma0 |"))


def test_an_extent_that_is_not_bound_is_named_with_the_instruction(rig: Any) -> None:
    one = rig()
    part = one.submission(0, one.program("vector | add dst=%t a=%t b=%t"))
    with pytest.raises(
        ProgramError, match=r"program p, block b, instruction 0 \(add .*\): extent 'tokens' is not bound"
    ):
        one.cluster.submit([replace(part, binding=replace(part.binding, extents={}))])


def test_a_refused_submission_leaves_the_cluster_as_it_was(rig: Any) -> None:
    one = rig()
    with pytest.raises(ProgramError):
        one.submit(MATMUL.replace("tensor |", "dma0 |"))
    assert one.run(MATMUL)[0].end_ps == FIXED_PS + MATMUL_PS


def test_clusters_and_changes_that_make_no_sense_are_refused(rig: Any) -> None:
    card, topology = load_card("reference-npu"), make_cluster("ring", 4, 10**9, 0).topology()
    with pytest.raises(ConfigError, match="num_cards=5; the ring has room for 1 to 4"):
        Cluster(card, topology, 5)
    with pytest.raises(ConfigError, match="detail='fine'; choose group or step"):
        Cluster(card, topology, 4, detail="fine")  # type: ignore[arg-type]
    cluster = Cluster(card, topology, 4)
    with pytest.raises(ConfigError, match="no link leads from node 0 to node 2"):
        cluster.set_link_capacity(0, 2, 1)
    with pytest.raises(ConfigError, match="card 1 has no unit 'cube'; it has tensor, vector, dma0, dma1, host, hbm"):
        cluster.set_capacity(1, "cube", 1)
    with pytest.raises(ConfigError, match="rank 4 is no card"):
        cluster.set_clock(4, 1)
    with pytest.raises(ConfigError, match="no queue 'cube'"):
        cluster.fail(0, "cube", RuntimeError())
    cluster.advance_to(5)
    with pytest.raises(ConfigError, match="cannot advance to 4 ps: the clock stands at 5"):
        cluster.advance_to(4)


# failures


def test_a_failed_activity_fails_its_submission_with_the_cause(rig: Any) -> None:
    one = rig()
    ticket = one.submit(f"{MATMUL}\n{ADD} | wait tensor+1")
    one.cluster.advance_to(1_000_000)
    cause = RuntimeError("a bit flipped")
    assert one.cluster.fail(0, "tensor", cause)
    with pytest.raises(RuntimeError, match="a bit flipped"):
        one.cluster.run_until(ticket)
    assert (ticket.cause, ticket.end_ps, ticket.spans) == (cause, 1_000_000, [])


def test_a_failure_reaches_the_peers_of_its_card(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit(REDUCE, f"{MATMUL}\n{REDUCE} | wait tensor+1")
    two.cluster.advance_to(1_000_000)
    assert two.cluster.fail(1, "tensor", RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        two.cluster.run_until(ticket)
    # Both cards are free again.
    assert [span.start_ps for span in two.run(MATMUL)] == [1_000_000] * 2


def test_a_failure_lets_end_what_is_under_way_and_issues_no_more(rig: Any) -> None:
    one = rig()
    first = one.submit(f"{MATMUL}\n{ADD}\n{ADD}")
    second = one.submit(ADD)
    one.cluster.advance_to(600_000)
    first.done.defused = True
    assert one.cluster.fail(0, "tensor", RuntimeError("gone"))
    one.cluster.run_until(second)
    assert [(span.mnemonic, span.end_ps) for span in first.spans] == [("add", FIXED_PS + ADD_PS)]
    assert second.spans[0].start_ps == FIXED_PS + ADD_PS


def test_a_failure_that_nobody_awaits_stops_the_simulation(rig: Any) -> None:
    one = rig()
    one.submit(MATMUL)
    one.cluster.advance_to(600_000)
    assert one.cluster.fail(0, "tensor", RuntimeError("unheard"))
    with pytest.raises(RuntimeError, match="unheard"):
        one.cluster.advance_to(700_000)


def test_a_failed_link_activity_fails_for_all_its_members(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit(f"{REDUCE}\n{ADD}")
    assert not two.cluster.fail(0, "link", RuntimeError("too early"))
    two.cluster.advance_to(1_000_000)
    assert two.cluster.fail(1, "link", RuntimeError("a fibre broke"))
    with pytest.raises(RuntimeError, match="a fibre broke"):
        two.cluster.run_until(ticket)
    assert [(span.card, span.mnemonic) for span in ticket.spans] == [(0, "add"), (1, "add")]
    assert [span.start_ps for span in two.run(REDUCE)] == [1_000_000] * 2


@pytest.mark.parametrize("detail", ["group", "step"])
def test_a_cause_of_any_make_comes_through_as_it_is(rig: Any, detail: str) -> None:
    class Picky(Exception):
        def __init__(self, first: int, second: int) -> None:
            super().__init__()

    two = rig(2, detail=detail)
    for body, queue in ((MATMUL, "tensor"), (REDUCE, "link")):
        ticket, cause = two.submit(f"{body}\n{ADD}\n{ADD} | wait {queue}+1"), Picky(1, 2)
        two.cluster.advance_to(two.cluster.env.now + 800_000)
        assert two.cluster.fail(0, queue, cause)
        with pytest.raises(Picky):
            two.cluster.run_until(ticket)
        assert ticket.cause is cause
        assert two.run(ADD)


def test_a_submission_can_be_taken_back(rig: Any) -> None:
    two = rig(2)
    ticket = two.submit(f"{REDUCE}\n{MATMUL}")
    two.cluster.advance_to(FIXED_PS + 1000)
    two.cluster.cancel(ticket)
    with pytest.raises(Cancelled, match="submission 0 was cancelled at 501000 ps"):
        two.cluster.run_until(ticket)
    assert [span.start_ps for span in two.run(REDUCE)] == [501_000] * 2
    two.cluster.cancel(ticket)  # a second time changes nothing


def test_a_host_process_may_await_a_ticket(rig: Any) -> None:
    one = rig()
    ends = []

    def host() -> Any:
        for body in (MATMUL, ADD):
            ticket = yield one.submit(body).done
            ends.append(ticket.end_ps)

    one.cluster.env.run(until=one.cluster.env.process(host()))
    assert ends == [FIXED_PS + MATMUL_PS, FIXED_PS + MATMUL_PS + FIXED_PS + ADD_PS]


def test_a_cluster_may_stand_in_an_environment_of_its_users() -> None:
    env = int_env()
    cluster = Cluster(load_card("reference-npu"), make_cluster("single", 1, 1, 0).topology(), env=env)
    assert cluster.env is env
    with pytest.raises(ConfigError):
        Cluster(load_card("reference-npu"), make_cluster("single", 1, 1, 0).topology(), env=simpy.Environment(0.5))


def test_an_empty_program_is_done_at_once(rig: Any) -> None:
    one = rig()
    ticket = one.submit(MATMUL, calls=0)
    one.cluster.run_until(ticket)
    assert (ticket.end_ps, ticket.spans) == (0, [])


def test_priority_goes_first_on_what_is_short(rig: Any) -> None:
    # HBM-bound copies of two submissions: the one of higher priority as if it were alone, the other after it.
    one = rig(overrides={"hbm.bandwidth_bytes_per_s": "100GB/s"})
    copy = "dma0 | copy dst=%d src=%c"
    low = one.cluster.submit([one.submission(0, one.program(copy))])
    high = one.cluster.submit([one.submission(0, one.program(copy.replace("dma0", "dma1")))], priority=1)
    one.cluster.run_until(low)
    assert (high.end_ps, low.end_ps) == (FIXED_PS + 2_621_440, FIXED_PS + 2 * 2_621_440)


# spans


def test_intervals_are_covered_once() -> None:
    assert covered_ps([(5, 9), (0, 3), (2, 4), (5, 6), (9, 9)]) == 4 + 4
    assert covered_ps([]) == 0
