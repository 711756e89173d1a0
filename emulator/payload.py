"""The arithmetic of a step: Programs of several cards executed with their numbers, and no time anywhere in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from ..isa.errors import ProgramError
from .choosing import Choose, default_choice
from .payload_binding import BoundProgram, CardImage, Inspect, Site, bind_program
from .payload_exchange import Exchange
from .payload_link import LinkOp

__all__ = ["CardImage", "Inspect", "OnCall", "Payload", "Site"]
OnCall = Callable[[int, int], None]
Extents = dict[int, dict[str, tuple[int, ...]]]  # by rank and name


class _Card:
    """Where one card stands in its bound program."""

    def __init__(self, rank: int, bound: BoundProgram) -> None:
        self.rank, self.bound = rank, bound
        self.at = 0
        self.waiting: LinkOp | None = None

    @property
    def has_ended(self) -> bool:
        return self.at == len(self.bound.segments)

    def advance(self, exchange: Exchange, on_call: OnCall | None) -> bool:
        """Run until a transfer or collective that is not ready, or the end; whether anything was done."""
        segments, start = self.bound.segments, self.at
        moved = False
        while self.at < len(segments):
            segment = segments[self.at]
            if self.waiting is None:
                for thunk in segment.thunks:
                    thunk()
                moved = True
                if segment.link is not None:
                    self.waiting = segment.link
                    exchange.arrive(segment.link)
            if self.waiting is not None:
                if not exchange.complete(self.waiting):
                    return moved
                self.waiting = None
            self.at += 1
            if on_call is not None and segment.ends_call >= 0:
                on_call(self.rank, segment.ends_call)
        return moved or self.at > start

    def blame(self) -> str:
        """Where it stands, to open an error's text with."""
        segment = self.bound.segments[self.at]
        return f"card {self.rank}, program {self.bound.program.name}, {segment.where}"


class Payload:
    """Executes Programs of several cards; numbers never depend on time, so any order of legal progress gives them.

    A card's instructions run in the order of the text, which every wait must agree with, until a receive or collective
    whose other members have not come so far; then the next card runs. Wait and signal do nothing, halt ends its queue.
    Bound programs are kept and found again while program, arrays, offsets, groups and scalar extents are the same, so
    that a decode step of an equal shape binds nothing; at most `max_bound` of them, the least recently used go first.

    `choose(collective, group size, ranks, bytes, dtype)` gives the algorithm that a collective's bytes and sums follow,
    as it does for a Cluster. `debug` fills the
    locals with NaN (integers with a huge number) when a call starts and checks what every instruction wrote. `inspect`
    is asked at binding, of every instruction, what is to run whenever it has ended.
    """

    def __init__(
        self,
        choose: Choose = default_choice,
        debug: bool = False,
        max_bound: int = 128,
        inspect: Inspect | None = None,
    ) -> None:
        self.choose, self.debug, self.max_bound, self.inspect = choose, debug, max_bound, inspect
        self._bound: OrderedDict[Hashable, tuple[CardImage, BoundProgram]] = OrderedDict()

    def run(self, cards: Sequence[CardImage], on_call: OnCall | None = None) -> Extents:
        """Execute every card's program once, changing its arrays in place; the extents that each wrote.

        `on_call(rank, call_index)` is called when a card has ended a call, before it goes on. ProgramError names card,
        call and instruction: for operands and indices that do not fit, for members of a group that disagree on a
        collective, for cards that wait for one another for ever, and in debug for numbers that are not finite.
        """
        ranks = [image.rank for image in cards]
        if len(set(ranks)) != len(ranks):
            raise ProgramError(f"two cards have one rank: {ranks}")
        running = [_Card(image.rank, self._bind(image)) for image in cards]
        for card in running:
            absent = card.bound.partners - set(ranks)
            if absent:
                raise ProgramError(
                    f"card {card.rank}, program {card.bound.program.name}: its groups name ranks {sorted(absent)}, "
                    f"which do not run with it; running: {ranks}"
                )
        exchange = Exchange(self.choose)
        everyone = list(running)
        while running:
            moved = False
            for card in running:
                try:
                    moved |= card.advance(exchange, on_call)
                except ProgramError as error:
                    raise ProgramError(f"{card.blame()}: {error}") from error
            running = [card for card in running if not card.has_ended]
            if running and not moved:
                raise _deadlock(running, everyone, exchange)
        exchange.check_nothing_is_left()
        return {card.rank: {n: tuple(v.tolist()) for n, v in card.bound.written.items()} for card in everyone}

    def _bind(self, image: CardImage) -> BoundProgram:
        key = image.key()
        held = self._bound.get(key)
        if held is None:
            bound = bind_program(image, self.debug, self.inspect)
            held = self._bound[key] = (image, bound)  # the image keeps alive the objects whose ids are in the key
            while len(self._bound) > self.max_bound:
                self._bound.popitem(last=False)
        else:
            self._bound.move_to_end(key)
        return held[1]


def _deadlock(running: list[_Card], everyone: list[_Card], exchange: Exchange) -> ProgramError:
    """Names every card that waits, where, and for whom."""
    places = {card.rank: card.waiting for card in everyone}
    lines = []
    for card in running:
        assert card.waiting is not None
        lines.append(f"{card.blame()}: {card.waiting.instruction} waits for {exchange.lacks(card.waiting, places)}")
    return ProgramError("no card can go on:\n  " + "\n  ".join(lines))
