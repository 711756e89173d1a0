"""Cards that stand for others: used as long, and asked as much, as each of those would be alone."""

from typing import Any

from siltwin.emulator.span_columns import CardColumns
from siltwin.emulator.units_used import UnitsUsed

BODY = "tensor | matmul dst=%y a=%x w=%w bias=-\nvector | add dst=%z a=%z b=%z"


def standing(card: CardColumns, ranks: tuple[int, ...]) -> CardColumns:
    values = {name: getattr(card, name) for name in card.__dataclass_fields__}
    return CardColumns(**(values | {"ranks": ranks}))


def ticket_of(rig: Any) -> Any:
    one = rig(3)
    ticket = one.submit(BODY)
    one.cluster.run_until(ticket)
    return one, ticket


def test_a_representative_is_counted_for_every_card_that_it_stands_for(rig: Any) -> None:
    one, ticket = ticket_of(rig)
    folded = UnitsUsed(one.cluster.cards)
    folded.add([standing(ticket.columns[0], (0, 1, 2))], {})
    apart = UnitsUsed(one.cluster.cards)
    apart.add(ticket.columns, {})
    for used in (folded, apart):
        used.settle()
    assert [folded.of(rank) for rank in range(3)] == [apart.of(rank) for rank in range(3)]
    busy, amounts = folded.of(2)
    (product, total) = sorted((span for span in ticket.spans if span.card == 2), key=lambda span: span.queue)
    assert busy["tensor"] == product.end_ps - product.start_ps and busy["link"] == 0
    assert busy["vector"] == total.end_ps - total.start_ps and amounts["tensor"] > 0


def test_submissions_in_flight_together_count_time_that_they_share_once(rig: Any) -> None:
    one, ticket = ticket_of(rig)
    used = UnitsUsed(one.cluster.cards)
    used.add(ticket.columns, {})
    used.add(ticket.columns, {(1, "tensor"): [(0, ticket.end_ps)]})
    once = UnitsUsed(one.cluster.cards)
    once.add(ticket.columns, {})
    assert used.of(0)[0] == once.of(0)[0]
    assert used.of(0)[1]["tensor"] == 2 * once.of(0)[1]["tensor"]
    assert used.of(1)[0]["tensor"] == ticket.end_ps
