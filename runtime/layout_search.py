"""The best layout of a number of cards: most sequences, longest context, fewest cards, among all that are legal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ..isa.errors import ConfigError, NotYetError, UnsupportedError
from ..models.checkpoint import Checkpoint
from .boundary import emulate
from .budgeted import Budgeted, budgeted
from .job import Job
from .layout import Layout
from .legal_layouts import legal_layouts
from .prepare import Prepared, prepare
from .report_limits import Boundary, Broken, Held, LayoutRow, LayoutSearch
from .room import Room, room_of
from .thresholds import within_alert

MOST_BUDGETED = 8  # layouts for each question
MOST_SHARES = 4  # cp: more shares of many sequences take long to tell apart
MOST_OF_COUNT = 3  # layouts of each number of cards
MOST_SHOWN = 4
BEST = "best"


def best_of(text: str | None) -> int | None:
    """The cards of `best` (0: as many as there are) or `best,cards=64`; None where a layout names its degrees."""
    words = [word.strip() for word in (text or "").split(",")]
    if BEST not in words:
        return None
    rest = [word for word in words if word != BEST]
    value = rest[0].removeprefix("cards=") if len(rest) == 1 and rest[0].startswith("cards=") else None
    if rest and (value is None or not value.isdecimal() or len(value) > 9 or not int(value)):
        raise ConfigError(f"layout {text!r}: beside best only cards=N may stand, as in best,cards=64")
    return int(value) if value else 0


def _row(asked: Budgeted) -> LayoutRow:
    """What stands in the table of layouts."""
    return LayoutRow(
        layout=str(asked.layout),
        cards=asked.layout.cards,
        need_bytes=asked.need_bytes,
        fits=asked.fits,
        largest_batch=asked.batch,
        largest_context=asked.context,
    )


class Search:
    """The legal layouts of a job on a number of cards or a part of them; what is asked of one is budgeted once."""

    def __init__(self, job: Job, checkpoint: Checkpoint, cards: int) -> None:
        self.job, self.checkpoint, self.cards = job, checkpoint, cards
        alone = replace(job, layout=None, placement=None, redundant_experts=0, expert_loads=None)
        plan = within_alert(prepare(alone, checkpoint=checkpoint)).plan
        spreads, redundant = plan.cache is None and plan.kv_pages == "unified", job.redundant_experts
        legal = legal_layouts(checkpoint.graph, cards, cp=spreads, redundant=redundant)
        self.layouts = [layout for layout in legal if layout.cp <= MOST_SHARES]
        self.room: Room = room_of(plan)
        self._asked: dict[Layout, Budgeted | None] = {}

    def ask(self, layout: Layout) -> Budgeted | None:
        """A layout with its budget, or nothing where the job refuses it."""
        if layout not in self._asked:
            try:
                job = replace(self.job, layout=str(layout))
                self._asked[layout] = budgeted(job, self.checkpoint)
            except (ConfigError, NotYetError, UnsupportedError):
                self._asked[layout] = None
        return self._asked[layout]

    def best(
        self, layouts: Iterable[Layout], bound: Callable[[Layout], int], value: Callable[[Budgeted], int]
    ) -> tuple[Budgeted | None, list[Layout]]:
        """The layout with most of something, by bounds first; and those that could still have more."""
        bounds = {layout: bound(layout) for layout in layouts}
        order = sorted(bounds, key=lambda layout: (-bounds[layout], layout.cards, layout.pp, layout.cp, layout.tp))
        found, most = None, 0
        for number, layout in enumerate(order):
            if bounds[layout] <= most:
                break
            if number == MOST_BUDGETED:
                return found, [other for other in order[number:] if bounds[other] > most]
            asked = self.ask(layout)
            if asked is not None and value(asked) > most:
                found, most = asked, value(asked)
        return found, []

    def report(self) -> tuple[LayoutSearch, Prepared]:
        """The search as a report, and the job in the layout that holds the largest batch (or else needs least)."""
        whole = [layout for layout in self.layouts if layout.cp == 1]
        by_batch, batch_left = self.best(whole, self.room.batch_of, lambda asked: asked.batch)
        by_context, context_left = self.best(self.layouts, self.room.context_of, lambda asked: asked.context)
        least = self._least()
        chosen = by_batch or by_context or least
        known = [asked for asked in self._asked.values() if asked is not None]
        shown = sorted(known, key=lambda asked: (-asked.batch, -asked.context, asked.layout.cards))[:MOST_SHOWN]
        rows = {asked.layout: _row(asked) for asked in (*shown, by_context or chosen)}
        search = LayoutSearch(
            cards=self.cards,
            legal=len(self.layouts),
            left_out=len({*batch_left, *context_left}),
            rows=tuple(rows.values()),
            best_batch=str((by_batch or chosen).layout),
            best_context=str((by_context or chosen).layout),
        )
        return search, chosen.prepared

    def _least(self) -> Budgeted:
        """The layout that needs least of a card, of those that are known; by its bound where none is."""
        known = [asked for asked in self._asked.values() if asked is not None]
        order = sorted(self.layouts, key=self.room.need_bytes)
        found = min(known, key=lambda asked: asked.need_bytes, default=None) or next(
            filter(None, map(self.ask, order)), None
        )
        if found is None:
            raise ConfigError(f"no layout of {self.cards} cards takes this job; name one, and the error says why")
        return found

    def fewest_cards(self, layouts: Iterable[Layout]) -> Boundary:
        """The fewest cards that hold the job and what comes before them, emulated on both sides.

        Of each number of cards the layouts that promise most by their bounds are budgeted.
        """
        by_cards: dict[int, list[Layout]] = {}
        for layout in sorted(layouts, key=self.room.need_bytes):
            by_cards.setdefault(layout.cards, []).append(layout)
        shortages: list[list[Layout]] = []
        for cards in sorted(by_cards):
            promising = by_cards[cards][:MOST_OF_COUNT]
            for layout in (one for one in promising if self.room.need_bytes(one) <= self.room.capacity_bytes):
                asked = self.ask(layout)
                if asked is not None and asked.fits:
                    return self._down(self._emulated(layout), shortages)
            shortages.append(promising)
        return self._down(None, shortages)

    def _down(self, last: Held | Broken | None, shortages: list[list[Layout]]) -> Boundary:
        """The boundary below what holds the job: a bound that says too much hid fewer cards that hold it as well."""
        assert not isinstance(last, Broken), "a budget is what the allocator takes"
        for layouts in reversed(shortages):
            found = self._first(layouts)
            if isinstance(found, Broken):
                return Boundary(of="cards", last=last, first=found, end=None)
            last = found or last
        return Boundary(of="cards", last=last, first=None, end="no legal layout has fewer cards")

    def _emulated(self, layout: Layout) -> Held | Broken | None:
        asked = self.ask(layout)
        return None if asked is None else emulate(asked.prepared, layout.cards)

    def _first(self, layouts: list[Layout]) -> Held | Broken | None:
        """The most promising of some layouts that the job takes, emulated."""
        emulated = (self._emulated(layout) for layout in layouts)
        return next((found for found in emulated if found is not None), None)


def family_of(layout: Layout, layouts: Iterable[Layout]) -> list[Layout]:
    """Those of which every axis divides that of the given layout."""
    axes = ("tp", "pp", "dp", "cp", "ep")
    return [one for one in layouts if all(getattr(layout, axis) % getattr(one, axis) == 0 for axis in axes)]
