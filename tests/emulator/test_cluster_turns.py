"""Programs of one card in turn: two stages and two micro-batches, timed by hand."""

from typing import Any

# As the rig has it: 500,000 ps before a product, and what the product of 64 x 2048 by 2048 x 64 then takes alone.
MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
ADD = "vector | add dst=%z a=%y b=%y"
SEND = "link | send x=%c group=all peer=1 | wait tensor+1"
RECV = "link | recv x=%c group=all peer=0"
AFTER = "tensor | matmul dst=%y a=%x w=%w bias=- | wait link+1"


def compute_ps(rig: Any) -> int:
    (span,) = rig(1).run(MATMUL)
    return int(span.end_ps)


def stages(two: Any, in_turn: bool) -> Any:
    bodies = f"{MATMUL}\n{SEND}", f"{RECV}\n{AFTER}"
    programs = [two.program(body) for body in bodies]
    return two.cluster.submit([two.submission(r, p) for r, p in enumerate(programs)], in_turn=in_turn)


def test_two_micro_batches_pass_two_stages_in_three_stage_times_and_two_transfers(rig: Any) -> None:
    compute = compute_ps(rig)
    alone = rig(2)
    ticket = stages(alone, in_turn=False)
    alone.cluster.run_until(ticket)
    transfer = ticket.end_ps - 2 * compute
    assert transfer > 0
    two = rig(2)
    first, second = (stages(two, in_turn=True) for _ in range(2))
    two.cluster.run_until(second)
    assert first.end_ps == 2 * compute + transfer
    assert second.end_ps == 3 * compute + 2 * transfer
    starts = {(span.card, span.mnemonic): span.start_ps for span in second.spans}
    assert starts == {
        (0, "matmul"): compute + transfer,
        (0, "send"): 2 * compute + transfer,
        (1, "recv"): 2 * compute + transfer,
        (1, "matmul"): 2 * compute + 2 * transfer,
    }


def test_queues_run_on_by_themselves_unless_programs_go_in_turn(rig: Any) -> None:
    product = compute_ps(rig)
    for in_turn in (False, True):
        one = rig(1)
        one.cluster.submit([one.submission(0, one.program(MATMUL))])
        ticket = one.cluster.submit([one.submission(0, one.program(ADD))], in_turn=in_turn)
        one.cluster.run_until(ticket)
        assert ticket.spans[0].issue_ps == (product if in_turn else 0)
