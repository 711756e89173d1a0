"""The scheduler: every prompt token once, in order, within the budget; decoding goes on beside it."""

from hypothesis import given
from hypothesis import strategies as st

from siltwin.runtime.kv_cache import PagePool
from siltwin.runtime.scheduler import Request, Scheduler


def run(requests: list[Request], chunk: int | None) -> list:
    scheduler, steps = Scheduler(requests, chunk), []
    while (step := scheduler.next_step()) is not None:
        steps.append(step)
        scheduler.complete(step, None)
    return steps


def test_whole_prompts_then_decoding() -> None:
    steps = run([Request(0, 5, 3), Request(1, 2, 3)], None)
    assert [step.kind for step in steps] == ["prefill", "decode", "decode"]
    assert [step.tokens for step in steps] == [7, 2, 2]


def test_a_budget_splits_prompts_and_mixes_in_the_decoding_of_those_that_are_done() -> None:
    steps = run([Request(0, 3, 3), Request(1, 6, 2)], 4)
    assert [step.kind for step in steps] == ["prefill", "mixed", "mixed", "decode"]
    assert [[(e.request, e.start, e.count, e.emits) for e in step.entries] for step in steps] == [
        [(0, 0, 3, True), (1, 0, 1, False)],
        [(0, 3, 1, True), (1, 1, 4, False)],
        [(0, 4, 1, True), (1, 5, 1, True)],
        [(1, 6, 1, True)],
    ]


def test_a_sequence_with_nothing_but_a_cache_decodes_at_once() -> None:
    request = Request(0, 0, 2, cached_len=7)
    steps = run([request], None)
    assert [(step.kind, step.entries[0].start) for step in steps] == [("decode", 7), ("decode", 8)]
    assert request.length == request.most_kv_tokens == 9


def test_a_stop_token_ends_a_request() -> None:
    request = Request(0, 2, 9, prompt=(1, 2), stop_ids=frozenset({7}))
    scheduler = Scheduler([request], None)
    for token in (5, 7):
        step = scheduler.next_step()
        assert step is not None
        scheduler.complete(step, [token])
    assert scheduler.next_step() is None
    assert (request.finish_reason, request.tokens) == ("stop", [5, 7])


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 12)),
)
def test_every_token_runs_once_in_order_and_within_the_budget(sizes, chunk) -> None:
    requests = [Request(i, prompt, new, cached + (not prompt)) for i, (prompt, new, cached) in enumerate(sizes)]
    reached = {request.index: request.cached_len for request in requests}
    for step in run(requests, chunk):
        assert chunk is None or sum(e.count for e in step.entries if e.count > 1 or not e.emits) <= chunk
        for entry in step.entries:
            assert entry.start == reached[entry.request]
            reached[entry.request] += entry.count
    assert all(request.finish_reason == "length" for request in requests)
    assert reached == {request.index: request.most_kv_tokens for request in requests}


_sizes = st.tuples(st.integers(1, 10), st.integers(1, 6), st.integers(0, 9))


@given(st.lists(_sizes, max_size=4), _sizes, st.integers(1, 90), st.integers(1, 12), st.integers(1, 3))
def test_rounds_that_are_left_out_are_those_of_others_again(first, usual, count, chunk, replicas) -> None:
    def steps(skips: bool) -> list[tuple]:
        sizes = [*first, *[usual] * count]
        requests = [Request(i, prompt, new, cached) for i, (prompt, new, cached) in enumerate(sizes)]
        scheduler, found = Scheduler(requests, chunk, replicas), []
        while (step := scheduler.next_step()) is not None:
            entries = tuple((e.request % replicas, e.start, e.count, e.emits) for e in step.entries)
            found.append((step.kind, entries))
            scheduler.complete(step, None)
            if skips:
                scheduler.skip_rounds()
        return found

    every, fewer = steps(False), steps(True)
    assert set(fewer) == set(every) and fewer[-1] == every[-1]


def test_many_sequences_alike_are_rehearsed_in_the_steps_of_few() -> None:
    requests = [Request(index, 64, 4) for index in range(1 << 16)]
    scheduler, count = Scheduler(requests, 4), 0
    while (step := scheduler.next_step()) is not None:
        count += 1
        scheduler.complete(step, None)
        scheduler.skip_rounds()
    assert count < 100  # of 16 for each of 65,536 prompts


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_no_page_belongs_to_two_requests_and_released_pages_return(actions) -> None:
    pool = PagePool(4)
    for request, pages in actions:
        if pages:
            pool.grow(request, pages)
        else:
            pool.release(request)
        held = [page for table in pool.tables.values() for page in table]
        assert len(held) == len(set(held))
    most = pool._made
    for request in list(pool.tables):
        pool.release(request)
    pool.grow(0, most)
    assert sorted(pool.tables[0]) == list(range(most))


def test_a_slot_is_a_row_of_the_page_that_holds_the_position() -> None:
    pool = PagePool(4)
    pool.grow(1, 1)
    pool.grow(0, 2)
    assert [pool.slot(0, position) for position in (0, 3, 4)] == [4, 7, 8]
    assert (pool.missing(0, 8), pool.missing(0, 9), pool.missing(5, 1)) == (0, 1, 1)
