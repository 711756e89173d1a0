"""Collectives as programs of one link instruction a rank, and what their sizes mean: as nccl-tests counts them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...emulator.spec import CardSpec
from ...emulator.ticket import Submission
from ...isa.dtype import DType
from ...isa.errors import ConfigError, NotYetError
from ...isa.instruction import split_even
from ...isa.program import Binding, Program
from ...isa.registry import INSTRUCTIONS
from ...isa.text import assemble
from ...isa.work import Unit

GROUP = "g"
Factor = Callable[[int], tuple[int, int]]  # ranks -> busbw / algbw as a fraction


@dataclass(frozen=True)
class Collective:
    """One collective of the bench.

    `buffers` and `text` are its program (dimension `count`: elements of the whole buffer; `own`: this rank's share;
    `arriving`: such a share from each).
    `factor(ranks)` is bus bandwidth over algorithm bandwidth. `size_means` says what a size counts.
    """

    name: str
    buffers: tuple[str, ...]
    text: str
    factor: Factor
    size_means: str
    reduces: bool = False
    two_ranks: bool = False


def _one(ranks: int) -> tuple[int, int]:
    return 1, 1


def _all_but_one(ranks: int) -> tuple[int, int]:
    return ranks - 1, ranks


WHOLE = "the buffer of every rank"
GATHERED = "the whole buffer, all ranks' shares together"
_DECLARED = (
    Collective(
        "all_reduce",
        ("x [count]",),
        "all_reduce x=%x group=g",
        lambda ranks: (2 * (ranks - 1), ranks),
        WHOLE,
        reduces=True,
    ),
    Collective(
        "all_gather",
        ("x [count]", "y [own]"),
        "all_gather dst=%x src=%y group=g axis=rows",
        _all_but_one,
        GATHERED,
    ),
    Collective(
        "reduce_scatter",
        ("x [count]", "y [own]"),
        "reduce_scatter dst=%y src=%x group=g",
        _all_but_one,
        GATHERED,
        reduces=True,
    ),
    Collective(
        "all_to_all",
        ("x [arriving]", "y [count]"),
        "all_to_all dst=%x src=%y group=g send_counts=to recv_counts=from",
        _all_but_one,
        "all that one rank sends, its own share included",
    ),
    Collective("broadcast", ("x [count]",), "broadcast x=%x group=g root=0", _one, WHOLE),
    Collective("reduce", ("x [count]",), "reduce x=%x group=g root=0", _one, WHOLE, reduces=True),
    Collective(
        "gather",
        ("x [count]", "y [own]"),
        "link_gather dst=%x src=%y group=g root=0 axis=rows",
        _all_but_one,
        GATHERED,
    ),
    Collective(
        "scatter",
        ("x [count]", "y [own]"),
        "link_scatter dst=%y src=%x group=g root=0 axis=rows",
        _all_but_one,
        GATHERED,
    ),
    Collective(
        "send_recv",
        ("x [count]",),
        "send x=%x group=g peer=1",
        _one,
        "what the first rank sends the second",
        two_ranks=True,
    ),
)
COLLECTIVES: dict[str, Collective] = {entry.name: entry for entry in _DECLARED}


def collective_of(name: str) -> Collective:
    """The collective of this name (`all-reduce` and `allreduce` too); ConfigError with those there are."""
    key = name.strip().lower().replace("-", "_")
    plain = {known.replace("_", ""): known for known in COLLECTIVES}
    key = plain.get(key.replace("_", ""), key)
    if key not in COLLECTIVES:
        near = difflib.get_close_matches(key, COLLECTIVES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"--collective {name!r} is not one{hint} (known: {', '.join(COLLECTIVES)})")
    if COLLECTIVES[key].text.split()[0] not in INSTRUCTIONS:
        raise NotYetError(f"{key} has no instruction yet; it comes with a later version")
    return COLLECTIVES[key]


@dataclass(frozen=True)
class Message:
    """A collective of `count` elements of `dtype` between the ranks of `group`, in group order."""

    collective: Collective
    count: int
    dtype: DType
    group: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """What the size counts, in whole elements."""
        return self.dtype.bytes_of(self.count)

    def submissions(self, card: CardSpec) -> list[Submission]:
        """A program a rank, each of one link instruction."""
        made = []
        shares = split_even(self.count, len(self.group))
        for index, rank in enumerate(self.group):
            own = shares[index][1]
            extents: dict[str, tuple[int, ...]] = {
                "count": (self.count,),
                "own": (own,),
                "arriving": (own * len(shares),),
            }
            extents |= {"to": tuple(size for _, size in shares), "from": (own,) * len(shares)}
            program = _program(self.collective.name, self.dtype, len(self.group), card, index)
            made.append(Submission(rank, program, Binding(extents, {GROUP: index}), {GROUP: self.group}))
        return made


def whole_bytes(message: Message) -> int:
    """The bytes by which a cluster's table of choices is read: all parts of the collective together."""
    return message.size_bytes * (len(message.group) if message.collective.name == "all_to_all" else 1)


def message_of(collective: Collective, size_bytes: int, dtype: DType, group: Sequence[int]) -> Message:
    """The largest message of whole elements in `size_bytes`; ConfigError where none fits or the group is no pair."""
    count = size_bytes * 8 // dtype.bits
    if count < 1:
        raise ConfigError(
            f"a size of {size_bytes} bytes holds no element of {dtype.name}; give at least {dtype.bytes_of(1)}"
        )
    if collective.two_ranks and len(group) != 2:
        raise ConfigError(f"{collective.name} is between 2 ranks, not {len(group)}; give --ranks 2 or --group A,B")
    return Message(collective, count, dtype, tuple(group))


@lru_cache(maxsize=256)
def _program(name: str, dtype: DType, size: int, card: CardSpec, index: int) -> Program:
    collective = COLLECTIVES[name]
    text = collective.text
    if collective.two_ranks and index == 1:
        text = "recv x=%x group=g peer=0"
    queue = card.queue_for(Unit.LINK)
    kinds = [tuple(buffer.split(" ", 1)) for buffer in collective.buffers]
    params = [f"{buffer} : {dtype.name}{shape}" for buffer, shape in kinds]
    lines = [f"program {name}", f"queue {queue}", "extent count", "extent own", "extent arriving"]
    lines += ["extent to[]", "extent from[]", f"group {GROUP} {size}"]
    lines += [f"buffer {param} communication" for param in params]
    lines += ["block b", *(f"param {param}" for param in params), f"{queue} | {text}", "end"]
    return assemble("\n".join([*lines, " ".join(["call b", *(buffer for buffer, _ in kinds)])]))
