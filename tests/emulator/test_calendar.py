"""The calendar by hand: sharing, clock steps, dead links, cancels, priorities and rounds, to the picosecond."""

import pytest
import simpy

from siltwin.emulator.calendar import division
from siltwin.emulator.calendar.activity import Demand, Running, flow_ps
from siltwin.emulator.calendar.engine import Calendar, int_env
from siltwin.isa.errors import ConfigError

MS = 10**9  # a millisecond in picoseconds


@pytest.fixture
def env() -> simpy.Environment:
    return int_env()


@pytest.fixture
def calendar(env: simpy.Environment) -> Calendar:
    return Calendar(env)


def at(env: simpy.Environment, time_ps: int, action) -> None:
    """Call `action` at a time."""

    def process():
        yield env.timeout(time_ps - env.now)
        action()

    env.process(process())


def start_at(calendar: Calendar, time_ps: int, demand: Demand, started: list[Running], **options: int) -> None:
    at(calendar.env, time_ps, lambda: started.append(calendar.run(demand, **options)))


# one activity


def test_an_activity_alone_takes_its_fixed_part_and_its_flowing_part(env, calendar):
    hbm = calendar.add_resource("hbm", 1_600_000_000_000, "hbm")
    running = calendar.run(Demand(700, 12_345, ((hbm, 17_000),)))
    assert not calendar.idle
    assert env.run(running.done) is running
    assert (running.start_ps, running.flow_start_ps, running.end_ps) == (0, 700, 13_045)
    assert (running.outcome, running.held_by, running.moved()) == ("done", None, {hbm: 17_000})
    assert calendar.idle


def test_an_activity_that_asks_for_nothing_ends_where_it_starts(env, calendar):
    at_once = calendar.run(Demand(0, 0, ()))
    fixed_only = calendar.run(Demand(40, 0, ()))
    env.run()
    assert (at_once.start_ps, at_once.flow_start_ps, at_once.end_ps) == (0, 0, 0)
    assert (fixed_only.start_ps, fixed_only.flow_start_ps, fixed_only.end_ps) == (0, 40, 40)
    assert env.now == 40 and type(env.now) is int


def test_a_flowing_part_shorter_than_its_resource_allows_is_stretched(env, calendar):
    """1,000 bytes at 1 byte a ns take 10^6 ps; half of that was claimed."""
    link = calendar.add_resource("link", 10**9, "link")
    running = calendar.run(Demand(0, 500_000, ((link, 1000),)))
    env.run()
    assert (running.end_ps, running.held_by) == (1_000_000, link)


def test_an_unbounded_resource_holds_nobody_and_still_counts_what_moved(env, calendar):
    wire = calendar.add_resource("wire", None, "link")
    first, second = (calendar.run(Demand(0, 10, ((wire, 10**15),))) for _ in range(2))
    env.run(5)
    assert first.moved() == {wire: 5 * 10**14}
    env.run()
    assert (first.end_ps, second.end_ps) == (10, 10)
    assert second.moved() == {wire: 10**15}


def test_flow_ps_is_the_shortest_time_that_fits():
    assert flow_ps(50_000_000, 50 * 10**9) == MS
    assert flow_ps(1, 3 * 10**12) == 1  # a third of a picosecond
    assert flow_ps(10, 3 * 10**12) == 4


# shares


def test_an_all_reduce_and_a_copy_on_one_link_get_half_each(env, calendar):
    """The link is their share resource, so three HBM passes a byte do not count against the all-reduce."""
    link = calendar.add_resource("link", 50 * 10**9, "link")
    hbm = calendar.add_resource("hbm", 1_600_000_000_000, "hbm")
    all_reduce = calendar.run(Demand(0, MS, ((link, 50_000_000), (hbm, 150_000_000))))
    copy = calendar.run(Demand(0, MS, ((link, 50_000_000), (hbm, 50_000_000))))
    env.run(MS)
    assert all_reduce.moved() == {link: 25_000_000, hbm: 75_000_000}
    assert copy.moved() == {link: 25_000_000, hbm: 25_000_000}
    env.run()
    assert (all_reduce.end_ps, copy.end_ps) == (2 * MS, 2 * MS)
    assert (all_reduce.held_by, copy.held_by) == (link, link)


def test_a_dma_and_a_matmul_that_each_want_80_percent_of_hbm_get_half_each(env, calendar):
    """A speed of 0.5 / 0.8 = 0.625, so 1 ms becomes 1.6 ms."""
    hbm = calendar.add_resource("hbm", 10**12, "hbm")
    tensor = calendar.add_resource("tensor", 10**9, "unit")
    dma = calendar.run(Demand(0, MS, ((hbm, 800_000_000),)))
    matmul = calendar.run(Demand(0, MS, ((tensor, 300_000), (hbm, 800_000_000))))
    env.run()
    assert (dma.end_ps, matmul.end_ps) == (1_600_000_000, 1_600_000_000)
    assert (dma.held_by, matmul.held_by) == (hbm, hbm)


def test_what_one_leaves_another_takes_in_mid_flight(env, calendar):
    """Two share for 1 ms (the short one's whole 0.5 ms of work), then the long one has the link to itself."""
    link = calendar.add_resource("link", 40 * 10**9, "link")
    short = calendar.run(Demand(0, MS // 2, ((link, 20_000_000),)))
    long = calendar.run(Demand(0, MS, ((link, 40_000_000),)))
    env.run()
    assert (short.end_ps, long.end_ps) == (MS, MS + MS // 2)
    assert env.now == MS + MS // 2  # no stale alarm drags the clock on


def test_a_small_flow_is_served_in_full_and_the_rest_is_divided(env, calendar):
    """Of 64 GB/s one wants 16 and gets it; two that want 64 get 24 each, and 32 when the small one is through."""
    link = calendar.add_resource("link", 64 * 10**9, "link")
    small = calendar.run(Demand(0, MS, ((link, 16_000_000),)))
    large = [calendar.run(Demand(0, MS, ((link, 64_000_000),))) for _ in range(2)]
    env.run(small.done)
    assert (small.end_ps, small.held_by) == (MS, None)
    assert [running.moved()[link] for running in large] == [24_000_000, 24_000_000]
    env.run()  # 40 MB each are left
    assert [running.end_ps for running in large] == [2_250_000_000, 2_250_000_000]


def test_ends_are_ceilings(env, calendar):
    """Three on one unit, a third of the speed each: 7 ps alone last 21, and 1/3 is a little less in scaled integers."""
    unit = calendar.add_resource("unit", 10**12, "unit")
    thirds = [calendar.run(Demand(0, 7, ((unit, 7),))) for _ in range(3)]
    env.run()
    assert [running.end_ps for running in thirds] == [22, 22, 22]


def test_a_group_activity_over_two_links_moves_at_the_pace_of_its_slower_one(env, calendar):
    ring = [calendar.add_resource(f"link {i}", 50 * 10**9, "link") for i in range(2)]
    group = calendar.run(Demand(2_000, MS, ((ring[0], 50_000_000), (ring[1], 50_000_000))))
    at(env, 0, lambda: calendar.set_capacity(ring[1], 25 * 10**9))
    env.run()
    assert (group.end_ps, group.held_by) == (2 * MS + 2_000, ring[1])


def test_uncoupled_activities_never_call_the_solver(env, calendar, monkeypatch):
    monkeypatch.setattr(division, "solve", None)
    hbm = calendar.add_resource("hbm", 10**12, "hbm")
    units = [calendar.add_resource(f"unit {i}", 10**9, "unit") for i in range(2)]
    both = [calendar.run(Demand(0, MS, ((unit, 10**6), (hbm, 500_000_000)))) for unit in units]
    env.run()
    assert [running.end_ps for running in both] == [MS, MS]


# weights and priorities


def test_weights_divide_a_link_in_proportion(env, calendar):
    """30 and 10 GB/s of 40: the heavy one ends after 4 ms, the light one has then two thirds to go, alone."""
    link = calendar.add_resource("link", 40 * 10**9, "link")
    heavy = calendar.run(Demand(0, 3 * MS, ((link, 120_000_000),)), weight=3)
    light = calendar.run(Demand(0, 3 * MS, ((link, 120_000_000),)))
    env.run(MS)
    assert (heavy.moved()[link], light.moved()[link]) == (30_000_000, 10_000_000)
    env.run()
    assert (heavy.end_ps, light.end_ps) == (4 * MS, 6 * MS)


def test_a_weight_alone_changes_nothing(env, calendar):
    link = calendar.add_resource("link", 10**9 + 7, "link")
    running = calendar.run(Demand(0, 1_000_003, ((link, 1000),)), weight=7)
    env.run()
    assert running.end_ps == 1_000_003


def test_strict_priority_takes_all_it_wants_and_the_other_waits(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    low = calendar.run(Demand(0, MS, ((link, 50_000_000),)), priority=-1)
    started: list[Running] = []
    start_at(calendar, MS // 4, Demand(0, MS, ((link, 50_000_000),)), started, priority=5)
    env.run(MS)
    assert list(calendar.stalled()) == [(low, link)]
    env.run()
    assert (started[0].end_ps, started[0].held_by) == (MS + MS // 4, None)
    assert (low.end_ps, low.held_by) == (2 * MS, link)


def test_a_lower_priority_takes_what_is_left(env, calendar):
    """The high one wants 30 % of the link, so the low one runs at 0.7 of its speed for 1 ms, then alone."""
    link = calendar.add_resource("link", 50 * 10**9, "link")
    high = calendar.run(Demand(0, MS, ((link, 15_000_000),)), priority=1)
    low = calendar.run(Demand(0, MS, ((link, 50_000_000),)))
    env.run()
    assert (high.end_ps, low.end_ps) == (MS, 1_300_000_000)


# capacities that change


def test_half_the_clock_at_half_the_work_makes_one_and_a_half_times_the_time(env, calendar):
    tensor = calendar.add_resource("tensor", 1_850_000_000, "unit")
    matmul = calendar.run(Demand(0, MS, ((tensor, 1_850_000),)))
    at(env, MS // 2, lambda: calendar.set_capacity(tensor, 925_000_000))
    env.run()
    assert (matmul.end_ps, matmul.held_by) == (1_500_000_000, tensor)
    assert matmul.moved() == {tensor: 1_850_000}


def test_a_dead_link_stops_its_flow_and_a_revived_one_goes_on_with_it(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    transfer = calendar.run(Demand(0, MS, ((link, 50_000_000),)))
    at(env, 300_000_000, lambda: calendar.set_capacity(link, 0))
    env.run(600_000_000)
    assert transfer.moved() == {link: 15_000_000}
    assert list(calendar.stalled()) == [(transfer, link)]
    at(env, MS, lambda: calendar.set_capacity(link, 50 * 10**9))
    env.run()
    assert (transfer.end_ps, transfer.held_by) == (1_700_000_000, link)
    assert not list(calendar.stalled())


def test_on_a_dead_link_the_calendar_runs_dry_at_the_moment_it_died(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    transfer = calendar.run(Demand(0, MS, ((link, 50_000_000),)))
    at(env, 300_000_000, lambda: calendar.set_capacity(link, 0))
    env.run()
    assert env.now == 300_000_000 and not calendar.idle and transfer.outcome is None


def test_a_capacity_set_and_reset_at_one_time_touches_nobody(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    transfer = calendar.run(Demand(0, MS, ((link, 50_000_000),)))

    def flicker() -> None:
        calendar.set_capacity(link, 0)
        calendar.set_capacity(link, 50 * 10**9)

    at(env, 123, flicker)
    env.run()
    assert (transfer.end_ps, transfer.since_ps, transfer.held_by) == (MS, 0, None)


def test_more_capacity_than_the_first_serves_who_asks_for_it(env, calendar):
    """Two at full rate on a link that doubles half-way: 0.5 ms at half speed, then full speed."""
    link = calendar.add_resource("link", 50 * 10**9, "link")
    pair = [calendar.run(Demand(0, MS, ((link, 50_000_000),))) for _ in range(2)]
    at(env, MS // 2, lambda: calendar.set_capacity(link, 100 * 10**9))
    env.run()
    assert [running.end_ps for running in pair] == [1_250_000_000, 1_250_000_000]


# cancels and failures


def test_a_cancel_says_what_moved_rounded_down(env, calendar):
    hbm = calendar.add_resource("hbm", 10**12, "hbm")
    unit = calendar.add_resource("unit", 10**12, "unit")
    copy = calendar.run(Demand(100, 1000, ((hbm, 1000), (unit, 500))))
    at(env, 433, lambda: calendar.cancel(copy))
    assert env.run(copy.done) is copy
    assert (copy.outcome, copy.end_ps, copy.moved()) == ("cancelled", 433, {hbm: 333, unit: 166})
    env.run()
    assert env.now == 433 and calendar.idle


def test_a_cancel_in_the_fixed_part_moves_nothing(env, calendar):
    hbm = calendar.add_resource("hbm", 10**12, "hbm")
    copy = calendar.run(Demand(100, 1000, ((hbm, 1000),)))
    at(env, 50, lambda: calendar.cancel(copy))
    env.run()
    assert (copy.outcome, copy.flow_start_ps, copy.moved()) == ("cancelled", -1, {hbm: 0})


def test_a_cancel_gives_its_share_to_the_others(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    first, second = (calendar.run(Demand(0, MS, ((link, 50_000_000),))) for _ in range(2))
    at(env, MS, lambda: calendar.cancel(first))
    env.run()
    assert (first.moved(), second.end_ps) == ({link: 25_000_000}, 1_500_000_000)


def test_a_failure_reaches_who_waits_with_its_cause(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    transfer = calendar.run(Demand(0, MS, ((link, 50_000_000),)))
    seen = []

    def waiter():
        try:
            yield transfer.done
        except ConnectionError as error:
            seen.append((env.now, str(error)))

    env.process(waiter())
    at(env, MS // 2, lambda: calendar.cancel(transfer, ConnectionError("card 3 is gone")))
    env.run()
    assert seen == [(MS // 2, "card 3 is gone")]
    assert (transfer.outcome, transfer.moved()) == ("failed", {link: 25_000_000})


@pytest.mark.parametrize("demand", [Demand(0, 1000, ((0, 1000),)), Demand(1000, 0, ())])
@pytest.mark.parametrize("cancel_comes_first", [True, False])
def test_a_cancel_at_the_last_picosecond_finds_it_done(env, calendar, demand, cancel_comes_first):
    """Whichever of the two SimPy happens to serve first."""
    calendar.add_resource("hbm", 10**12, "hbm")
    started: list[Running] = []
    at(env, 1000, lambda: calendar.cancel(started[0], RuntimeError("too late")))
    if cancel_comes_first:
        env.step()  # its timeout is in the queue before the end is
    started.append(calendar.run(demand))
    env.run()
    assert (started[0].outcome, started[0].end_ps) == ("done", 1000)


def test_a_cancel_after_the_end_leaves_it_as_it_ended(env, calendar):
    running = calendar.run(Demand(5, 0, ()))
    env.run()
    calendar.cancel(running, ValueError("late"))
    env.run()
    assert (running.outcome, running.end_ps) == ("done", 5)


# rounds


def count_rounds(calendar: Calendar, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    times: list[int] = []
    divide = calendar._division.divide
    monkeypatch.setattr(calendar._division, "divide", lambda dirty: (times.append(calendar.env.now), divide(dirty))[1])
    return times


def test_everything_at_one_timestamp_is_divided_in_one_round(env, calendar, monkeypatch):
    rounds = count_rounds(calendar, monkeypatch)
    link = calendar.add_resource("link", 64 * 10**9, "link")
    started: list[Running] = []
    for _ in range(3):
        start_at(calendar, 1000, Demand(0, MS, ((link, 64_000_000),)), started)
    at(env, 1000, lambda: calendar.set_capacity(link, 96 * 10**9))
    env.run()
    # 3 x 64 GB/s wanted of 96: half the speed; all end at one time too, and the last round finds nobody.
    assert [running.end_ps for running in started] == [2 * MS + 1000] * 3
    assert rounds == [1000, 2 * MS + 1000]


def test_a_hand_over_at_one_timestamp_does_not_touch_the_third(env, calendar):
    """One of two ends and its like starts at the same time: nothing changes for the other."""
    link = calendar.add_resource("link", 50 * 10**9, "link")
    half, whole = Demand(0, MS, ((link, 50_000_000),)), Demand(0, 3 * MS, ((link, 150_000_000),))
    steady = calendar.run(whole)

    def queue():
        for _ in range(3):
            yield calendar.run(half).done

    env.process(queue())
    env.run(5 * MS)
    assert (steady.since_ps, steady.moved()) == (0, {link: 125_000_000})
    env.run()
    assert steady.end_ps == 6 * MS


def test_a_chain_of_zero_length_ends_at_its_timestamp_before_the_round(env, calendar, monkeypatch):
    rounds = count_rounds(calendar, monkeypatch)
    link = calendar.add_resource("link", 50 * 10**9, "link")

    def queue():
        for _ in range(5):
            yield calendar.run(Demand(0, 0, ())).done
        yield calendar.run(Demand(0, MS, ((link, 50_000_000),))).done

    env.process(queue())
    env.process(queue())
    env.run()
    assert rounds == [0, 2 * MS] and env.now == 2 * MS


def test_the_engine_is_resumable(env, calendar):
    link = calendar.add_resource("link", 50 * 10**9, "link")
    first = calendar.run(Demand(0, MS, ((link, 50_000_000),)))
    second = calendar.run(Demand(0, 2 * MS, ((link, 100_000_000),)))
    env.run(first.done)
    assert env.now == 2 * MS
    third = calendar.run(Demand(0, MS, ((link, 50_000_000),)))
    env.run()
    assert (second.end_ps, third.end_ps) == (4 * MS, 4 * MS)


# units that serve one at a time


def test_an_exclusive_unit_serves_in_order_of_arrival(env, calendar):
    """The first to issue has the longest fixed part and so arrives last."""
    unit = calendar.add_resource("tensor", 10**9, "unit", exclusive=True)
    late = calendar.run(Demand(300, 1000, ((unit, 1),)))
    early = calendar.run(Demand(100, 1000, ((unit, 1),)))
    middle = calendar.run(Demand(200, 1000, ((unit, 1),)))
    env.run(150)
    assert not list(calendar.stalled())
    env.run()
    assert [(r.flow_start_ps, r.end_ps) for r in (early, middle, late)] == [(100, 1100), (1100, 2100), (2100, 3100)]
    assert [r.held_by for r in (early, middle, late)] == [None, unit, unit]


def test_arrivals_at_one_timestamp_are_served_by_priority_then_in_order_of_issue(env, calendar):
    unit = calendar.add_resource("tensor", 10**9, "unit", exclusive=True)
    first = calendar.run(Demand(100, 1000, ((unit, 1),)))
    started: list[Running] = []
    start_at(calendar, 100, Demand(0, 1000, ((unit, 1),)), started)
    start_at(calendar, 100, Demand(0, 1000, ((unit, 1),)), started, priority=1)
    env.run()
    assert [r.flow_start_ps for r in (started[1], first, started[0])] == [100, 1100, 2100]


def test_a_cancelled_waiter_leaves_its_place_and_a_cancelled_owner_its_unit(env, calendar):
    unit = calendar.add_resource("tensor", 10**9, "unit", exclusive=True)
    owner, waiter, last = (calendar.run(Demand(0, 1000, ((unit, 1),))) for _ in range(3))
    at(env, 400, lambda: calendar.cancel(waiter))
    at(env, 500, lambda: calendar.cancel(owner))
    env.run()
    assert (waiter.outcome, waiter.end_ps, waiter.held_by) == ("cancelled", 400, unit)
    assert (last.flow_start_ps, last.end_ps, env.now) == (500, 1500, 1500)


def test_an_activity_over_two_exclusive_units_keeps_its_place_in_both(env, calendar):
    a, b = (calendar.add_resource(name, 10**9, "unit", exclusive=True) for name in "ab")
    first = calendar.run(Demand(0, 1000, ((a, 1),)))
    both = calendar.run(Demand(0, 1000, ((a, 1), (b, 1))))
    behind = calendar.run(Demand(0, 1000, ((b, 1),)))
    env.run()
    assert [r.flow_start_ps for r in (first, both, behind)] == [0, 1000, 2000]


# who held it


def test_held_by_is_the_resource_that_held_longest(env, calendar):
    """100 ps of 900 lost to the link, 200 to the unit: each runs at half its capacity for a while."""
    link = calendar.add_resource("link", 10**12, "link")
    unit = calendar.add_resource("unit", 10**12, "unit")
    running = calendar.run(Demand(0, 1000, ((link, 1000), (unit, 1000))))
    for time_ps, resource, capacity in ((100, link, 5), (200, link, 10), (300, unit, 5), (500, unit, 10)):
        at(env, time_ps, lambda r=resource, c=capacity: calendar.set_capacity(r, c * 10**11))
    env.run(450)
    assert running.held_by == unit  # 150 ps so far
    env.run()
    assert (running.end_ps, running.held_by) == (1150, unit)


# what is refused


def test_about_2048_full_rate_members_fit_and_one_too_many_names_the_resource(env, calendar):
    """The capacity is 2^35 exactly: a room of 2^51, and 2^63 / 2^51 = 4,096 members overflow."""
    link = calendar.add_resource("link 0->1", 2**35, "link")
    demand = Demand(0, 10**12, ((link, 2**35),))
    members = [calendar.run(demand) for _ in range(4095)]
    env.run(1)
    assert members[0].moved()[link] == 2**35 // 4095 // 10**12
    with pytest.raises(
        ConfigError, match=r"'link 0->1' serves 4096 activities at once that want 4096 times its capacity"
    ):
        calendar.run(demand)


def test_2048_members_fit_a_resource_of_the_largest_scaled_capacity(env, calendar):
    link = calendar.add_resource("link", 2**36 - 1, "link")
    demand = Demand(0, 10**12, ((link, 2**36 - 1),))
    for _ in range(2048):
        calendar.run(demand)
    with pytest.raises(ConfigError, match="serves 2049 activities"):
        calendar.run(demand)


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (Demand(-1, 0, ()), r"fixed_ps=-1 must be an int, 0 or more"),
        (Demand(1.5, 0, ()), r"fixed_ps=1.5 must be an int"),
        (Demand(0, -1, ()), r"alone_ps=-1 is no int from 0 to 2\^53 - 1"),
        (Demand(0, 2**53, ()), r"alone_ps=9007199254740992 is no int"),
        (Demand(0, 0, ((0, 8),)), r"alone_ps=0 with amounts \(\(0, 8\),\)"),
        (Demand(0, 9, ((1, 8),)), r"no resource has index 1; there are 1"),
        (Demand(0, 9, ((0, 0),)), r"amount 0 on 'hbm' must be an int of at least 1; leave out a 0"),
        (Demand(0, 9, ((0, 2.0),)), r"amount 2.0 on 'hbm'"),
        (Demand(0, 9, ((0, 2), (0, 3))), r"amounts name 'hbm' twice; add them up"),
        (Demand(0, 1, ((0, 10**18),)), r"alone_ps=1 asks 1e\+18 times the capacity of 'hbm'"),
    ],
)
def test_a_demand_that_is_not_well_formed_is_refused(calendar, demand, message):
    calendar.add_resource("hbm", 10**12, "hbm")
    with pytest.raises(ConfigError, match=message):
        calendar.run(demand)
    assert calendar.idle


def test_a_resource_that_is_not_well_formed_is_refused(calendar):
    calendar.add_resource("hbm", 10**12, "hbm")
    unbounded = calendar.add_resource("wire", None, "link")
    with pytest.raises(ConfigError, match=r"already a resource 'hbm'"):
        calendar.add_resource("hbm", 1, "hbm")
    with pytest.raises(ConfigError, match=r"unknown kind 'sram'; known: hbm, host, link, unit"):
        calendar.add_resource("sram", 1, "sram")
    with pytest.raises(ConfigError, match=r"capacity_per_s=0 must be an int of at least 1"):
        calendar.add_resource("dead", 0, "link")
    with pytest.raises(ConfigError, match=r"capacity_per_s=1.5 must be an int"):
        calendar.add_resource("half", 1.5, "link")
    with pytest.raises(ConfigError, match=r"only a unit can be exclusive.*'link'"):
        calendar.add_resource("one", 1, "link", exclusive=True)
    with pytest.raises(ConfigError, match=r"'wire' is unbounded"):
        calendar.set_capacity(unbounded, 5)
    with pytest.raises(ConfigError, match=r"capacity_per_s=-1 must be an int, 0 or more"):
        calendar.set_capacity(0, -1)
    with pytest.raises(ConfigError, match=r"over 2,048 times the 1000000000000 it was added with"):
        calendar.set_capacity(0, 10**16)
    with pytest.raises(ConfigError, match=r"no resource has index 7"):
        calendar.set_capacity(7, 1)


def test_a_weight_or_priority_that_is_no_small_int_is_refused(calendar):
    with pytest.raises(ConfigError, match="weight=0 must be an int of at least 1"):
        calendar.run(Demand(0, 0, ()), weight=0)
    with pytest.raises(ConfigError, match="priority=0.5 must be an int"):
        calendar.run(Demand(0, 0, ()), priority=0.5)


def test_a_clock_that_is_not_an_int_is_refused(env, calendar):
    with pytest.raises(ConfigError, match="clock stands at 0.0"):
        Calendar(simpy.Environment(0.0))
    env.run(env.timeout(0.5))
    with pytest.raises(ConfigError, match="clock stands at 0.5"):
        calendar.run(Demand(0, 0, ()))


@pytest.mark.parametrize("capacity", [1, 3, 2**35 - 1, 2**35, 2**36 - 1, 2**36, 1_850_000_000, 3_350 * 10**9, 10**18])
def test_the_scale_brings_every_capacity_into_one_octave(calendar, capacity):
    calendar.add_resource("r", capacity, "link")
    room = calendar.resources[0].room
    assert room % 2**16 == 0 and 2**35 <= room >> 16 < 2**36
