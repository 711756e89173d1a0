"""Scheduler: which tokens of which sequences run in the next step. It knows lengths and tokens, no card and no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

StepKind = Literal["prefill", "decode", "mixed"]


@dataclass
class Request:
    """One sequence on its way: its tokens, and how many of them stand in the KV cache.

    `cached_len` tokens stand there from the start, before `prompt_len` new ones; `max_new_tokens` more are generated.
    With no new prompt tokens the sequence starts at its last known token, which `first_token` is.
    """

    index: int
    prompt_len: int
    max_new_tokens: int
    cached_len: int = 0
    prompt: tuple[int, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    computed: int = 0
    generated: int = 0
    tokens: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""
        return self.cached_len + self.computed

    @property
    def lengths(self) -> tuple[int, int, int]:
        """What it was asked with: cached, prompt and new tokens."""
        return self.cached_len, self.prompt_len, self.max_new_tokens

    @property
    def most_kv_tokens(self) -> int:
        """Tokens that the KV cache holds at the end; the last token picked is never written."""
        return self.cached_len + self.prompt_len + max(0, self.max_new_tokens - bool(self.prompt_len))

    @property
    def in_prefill(self) -> bool:
        """Whether prompt tokens are left."""
        return self.computed < self.prompt_len

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.finish_reason is not None

    def token_at(self, position: int) -> int:
        """The token whose key is written at a position of this request, counted from the end of the cached part."""
        return self.prompt[position] if position < len(self.prompt) else self.tokens[position - len(self.prompt)]


@dataclass(frozen=True)
class Entry:
    """`count` tokens of a request in a step, from its position `start` on; `emits` when a token is picked then."""

    request: int
    start: int
    count: int
    emits: bool


@dataclass(frozen=True)
class Step:
    """One step of a micro-batch: entries in request order, those of each data-parallel replica together."""

    index: int
    kind: StepKind
    entries: tuple[Entry, ...]
    lane: int = 0

    @property
    def tokens(self) -> int:
        """New tokens over all sequences."""
        return sum(entry.count for entry in self.entries)


class _Share:
    """The requests of one replica: those that have begun, and those that wait with their whole prompts."""

    def __init__(self, requests: Sequence[Request]) -> None:
        waits = all(request.in_prefill for request in requests)  # what decodes at once is not kept waiting
        self.begun: list[Request] = [] if waits else list(requests)
        self.waiting = deque(requests if waits else ())
        self.only_waits = waits

    @cached_property
    def alike(self) -> int:
        """How many of the last that wait have the same lengths."""
        lengths = [request.lengths for request in reversed(self.waiting)]
        return next((at for at, own in enumerate(lengths) if own != lengths[0]), len(lengths))

    @property
    def state(self) -> tuple[object, ...]:
        """What decides the coming steps as long as requests wait that are alike."""
        return tuple((own.computed, own.generated, own.lengths) for own in self.begun if not own.done)

    def turns(self) -> Iterator[Request]:
        """Requests that are not done, in order; one that waited has begun when it is left for the next."""
        self.begun = [request for request in self.begun if not request.done]
        yield from tuple(self.begun)
        while self.waiting:
            self.begun.append(self.waiting.popleft())
            yield self.begun[-1]


class Scheduler:
    """Each step takes the next token of every decoding sequence, and prompt tokens up to a budget.

    With `replicas` the requests are dealt to them in turn; each has a budget of its own, and its entries stand
    together.
    """

    def __init__(self, requests: Sequence[Request], chunk_tokens: int | None, replicas: int = 1) -> None:
        self.requests = requests
        self.chunk_tokens = chunk_tokens
        self._steps = 0
        shares: list[list[Request]] = [[] for _ in range(replicas)]
        for request in requests:
            shares[request.index % replicas].append(request)
        self._shares = [_Share(share) for share in shares]
        self._by_index = {request.index: request for request in requests}
        self._marked: tuple[list[tuple[object, ...]], list[int]] | None = None

    def next_step(self) -> Step | None:
        """What runs next, or None when all requests are done."""
        entries: list[Entry] = []
        prefills = 0
        for share in self._shares:
            prefills += self._take(share, entries)
        if not entries:
            return None
        decodes = len(entries) - prefills
        kind: StepKind = "mixed" if prefills and decodes else "prefill" if prefills else "decode"
        self._steps += 1
        return Step(self._steps - 1, kind, tuple(entries))

    def _take(self, share: _Share, entries: list[Entry]) -> int:
        """Append the entries of one replica's requests; returns how many are of prompts."""
        left = self.chunk_tokens
        prefills = 0
        for request in share.turns():
            count = 1
            if request.in_prefill:
                count = request.prompt_len - request.computed
                if left is not None:
                    count = min(count, left)
                    left -= count
                if not count:
                    if share.only_waits:
                        break
                    continue
                prefills += 1
            emits = request.computed + count >= request.prompt_len
            entries.append(Entry(request.index, request.length, count, emits))
        return prefills

    def complete(self, step: Step, picked: Sequence[int] | None) -> list[Request]:
        """Account a finished step; `picked` has a token for each emitting entry (None: numbers are off).

        Returns the requests that finished in it.
        """
        finished: list[Request] = []
        tokens: Iterator[int] = iter(picked or ())
        for entry in step.entries:
            request = self._by_index[entry.request]
            request.computed += entry.count
            if not entry.emits:
                continue
            request.generated += 1
            if picked is not None:
                request.tokens.append(next(tokens))
            if request.tokens and request.tokens[-1] in request.stop_ids:
                request.finish_reason = "stop"
            elif request.generated >= request.max_new_tokens:
                request.finish_reason = "length"
            if request.done:
                finished.append(request)
        return finished

    def skip_steps_within_pages(self, page_tokens: int) -> int:
        """Pass over coming decode steps in which no sequence enters a new page or ends: they allocate nothing.

        For those who follow memory alone; a run takes every step. Returns how many they are.
        """
        if any(share.waiting for share in self._shares):
            return 0
        live = [request for share in self._shares for request in share.begun if not request.done]
        if not live or any(request.in_prefill for request in live):
            return 0
        steps = min(
            min(-request.length % page_tokens, request.max_new_tokens - request.generated - 1) for request in live
        )
        for request in live:
            request.computed += steps
            request.generated += steps
        self._steps += steps
        return steps

    def skip_rounds(self) -> None:
        """Leave out waiting requests whose steps would be those of others before them once more, entry by entry.

        For those who ask which steps there are, and not of whom; to be asked after every step. A state is kept at every
        power of two of steps, so that one that comes again is found whatever its round.
        """
        waiting = [len(share.waiting) for share in self._shares]
        if not any(waiting) or any(share.alike < left for share, left in zip(self._shares, waiting, strict=True)):
            return
        state = [share.state for share in self._shares]
        if self._marked is not None and self._marked[0] == state:
            taken = [before - left for before, left in zip(self._marked[1], waiting, strict=True)]
            rounds = min(left // own for own, left in zip(taken, waiting, strict=True) if own)
            for share, own in zip(self._shares, taken, strict=True):
                for _ in range(rounds * own):
                    share.waiting.popleft()
        elif self._steps & (self._steps - 1) == 0:
            self._marked = state, waiting
