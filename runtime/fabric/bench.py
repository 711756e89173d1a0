"""The bench: one collective at many sizes, by the cluster's choice or the user's, and where another gets faster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...interconnect.choices import Choice, Group, candidates
from ...interconnect.cluster import ClusterSpec, load_cluster
from ...interconnect.collectives.expand import expand
from ...interconnect.collectives.registry import algorithms_for
from ...isa.dtype import FP32, DType, parse_dtype
from ...isa.errors import ConfigError
from ..rank_lists import parse_ranks
from .compare import comparable
from .emulate import Fabric, Measured
from .endpoints import ends
from .messages import Collective, Message, collective_of, message_of, whole_bytes
from .sizes import parse_sizes

ALL = "all"
CROSSOVER_RATIO = 1.06  # sizes between which a crossover is told
Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Ask:
    """What `siltwin fabric bench` was asked; texts as the user wrote them."""

    cluster: str
    collective: str = "all_reduce"
    ranks: int | None = None
    sizes: str = "1KiB:1GiB"
    factor: float = 2.0
    algorithm: str | None = None
    protocol: str | None = None
    card: str | None = None
    dtype: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Crossover:
    """At `size_bytes` and above, `to` is faster; just below it is `before` (both emulated)."""

    before: str
    to: str
    below_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class BenchReport:
    """Rows in order of size; `others` are the algorithms compared, by name, and `left_out` those too large for it."""

    cluster: ClusterSpec
    collective: Collective
    group: tuple[int, ...]
    ends: str
    dtype: str
    rows: tuple[Measured, ...]
    others: dict[str, tuple[Measured, ...]]
    crossovers: tuple[Crossover, ...]
    left_out: tuple[str, ...]

    def to_json(self) -> str:
        """The rows as a JSON list, times in integer picoseconds."""
        entries = [
            {
                "collective": row.message.collective.name,
                "algorithm": row.choice.algorithm,
                "ranks": len(row.message.group),
                "size_bytes": row.message.size_bytes,
                "time_ps": row.time_ps,
                "algbw_bytes_per_s": row.algbw_bytes_per_s,
                "busbw_bytes_per_s": row.busbw_bytes_per_s,
            }
            for row in self.rows
        ]
        return json.dumps(entries, indent=1) + "\n"


class Bench:
    """A bench made ready: everything that was asked is checked, nothing emulated yet."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.collective = collective_of(ask.collective)
        self.dtype = _dtype(ask.dtype, self.collective)
        self.card, self.ends = ends(ask.card)
        self.cluster = load_cluster(ask.cluster)
        self.fabric = Fabric(self.cluster, self.card)
        self.group = self.fabric.group(_ranks(ask, self.cluster))
        self.messages = _messages(self.collective, parse_sizes(ask.sizes, ask.factor), self.dtype, self.group.ranks)
        self.named = _named(ask.algorithm, self.collective, self.group)
        self.protocol = None if ask.protocol is None else self.cluster.protocol(ask.protocol)

    def choices(self, message: Message) -> tuple[Choice, ...]:
        """By what a message runs: the named algorithms, or the one that the cluster chooses."""
        chosen = self.chosen(message)
        if self.ask.algorithm is None:
            return (chosen,)
        return tuple(self.sent(choice, chosen) for choice in self.named)

    def sent(self, choice: Choice, chosen: Choice) -> Choice:
        """A choice under the protocol that the cluster pairs its algorithm with, or else that of the chosen one."""
        paired = self.cluster.protocol_for(self.collective.name, choice.algorithm)
        return self.under(replace(choice, protocol=paired or chosen.protocol))

    def chosen(self, message: Message) -> Choice:
        """What the cluster runs a message by, under the protocol that was asked for."""
        ranks, num_bytes = self.group.ranks, whole_bytes(message)
        return self.under(self.cluster.choose(self.collective.name, len(ranks), ranks, num_bytes, self.dtype))

    def under(self, choice: Choice) -> Choice:
        """The choice with the protocol that was asked for."""
        return choice if self.protocol is None else replace(choice, protocol=self.protocol)


def _dtype(text: str | None, collective: Collective) -> DType:
    dtype = FP32 if text is None else parse_dtype(text)
    if collective.reduces and not dtype.is_float:
        raise ConfigError(f"--dtype {dtype.name}: {collective.name} adds floats; choose fp32, bf16 or fp16")
    return dtype


def run_bench(ask: Ask, progress: Progress | None = None) -> BenchReport:
    """Emulate every size; ConfigError for whatever is wrong with what was asked."""
    bench = Bench(ask)
    say = progress or (lambda done, total, text: None)
    others, left_out = _others(bench)
    total = len(bench.messages) * (1 + len(others))
    rows: list[Measured] = []
    for number, message in enumerate(bench.messages):
        say(number, total, f"{message.size_bytes} bytes")
        rows += [bench.fabric.run(message, choice) for choice in bench.choices(message)]
    compared: dict[str, tuple[Measured, ...]] = {}
    for name, choice in others.items():
        say(len(bench.messages) * (1 + len(compared)), total, name)
        compared[name] = tuple(
            bench.fabric.run(message, bench.sent(choice, bench.chosen(message))) for message in bench.messages
        )
    return BenchReport(
        cluster=bench.cluster,
        collective=bench.collective,
        group=bench.group.ranks,
        ends=bench.ends,
        dtype=bench.dtype.name,
        rows=tuple(rows),
        others=compared,
        crossovers=_crossovers(bench, compared),
        left_out=left_out,
    )


def _others(bench: Bench) -> tuple[dict[str, Choice], tuple[str, ...]]:
    """The algorithms to compare, each once, and those that are too large to; one alone is compared with nothing."""
    if len(bench.group.ranks) < 2:
        return {}, ()
    too_large: tuple[str, ...] = ()
    known = bench.named
    if not known:
        known, too_large = comparable(bench.collective.name, bench.group)
        known = (*known, *(bench.chosen(message) for message in bench.messages))  # emulated anyway
    named: dict[str, Choice] = {}
    for choice in known:
        named.setdefault(choice.algorithm, choice)
    left_out = tuple(name for name in too_large if name not in named)
    return (named if len(named) > 1 else {}), left_out


def _crossovers(bench: Bench, compared: dict[str, tuple[Measured, ...]]) -> tuple[Crossover, ...]:
    """Where the fastest algorithm changes from one size to the next, narrowed by emulating sizes between them."""
    found: list[Crossover] = []
    if not compared:
        return ()
    for index in range(len(bench.messages) - 1):
        low, high = (min(compared, key=lambda name: compared[name][at].time_ps) for at in (index, index + 1))
        if low != high:
            found.append(_narrowed(bench, compared, index, low, high))
    return tuple(found)


def _narrowed(bench: Bench, compared: dict[str, tuple[Measured, ...]], index: int, low: str, high: str) -> Crossover:
    below, above = bench.messages[index].count, bench.messages[index + 1].count
    by = {name: compared[name][index].choice for name in (low, high)}
    while above > below * CROSSOVER_RATIO and above > below + 1:
        middle = max(below + 1, round((below * above) ** 0.5))
        message = replace(bench.messages[index], count=middle)
        times = {name: bench.fabric.run(message, choice).time_ps for name, choice in by.items()}
        below, above = (below, middle) if times[high] < times[low] else (middle, above)
    sizes = (replace(bench.messages[index], count=count).size_bytes for count in (below, above))
    return Crossover(low, high, *sizes)


def _ranks(ask: Ask, cluster: ClusterSpec) -> tuple[int, ...]:
    if ask.group is not None:
        ranks = parse_ranks("--group", ask.group)
        if ask.ranks is not None and ask.ranks != len(ranks):
            raise ConfigError(f"--ranks {ask.ranks} and --group of {len(ranks)} ranks differ; give one of them")
        return ranks
    count = cluster.cards if ask.ranks is None else ask.ranks
    if not 1 <= count <= cluster.cards:
        raise ConfigError(f"--ranks {count}: {cluster.name} has {cluster.cards} cards; choose 1 to {cluster.cards}")
    return tuple(range(count))


def _messages(
    collective: Collective, sizes: Sequence[int], dtype: DType, group: tuple[int, ...]
) -> tuple[Message, ...]:
    made = [message_of(collective, size, dtype, group) for size in sizes]
    return tuple({message.count: message for message in made}.values())


def _named(text: str | None, collective: Collective, group: Group) -> tuple[Choice, ...]:
    """The algorithms that the user names, with the options that such a group gives them."""
    if text is None:
        return ()
    possible = {choice.algorithm: choice for choice in candidates(collective.name, group)}
    if text.strip() == ALL:
        return tuple(possible.values())
    names = list(dict.fromkeys(name.strip().replace("-", "_") for name in text.split(",")))
    for name in names:
        if name not in algorithms_for(collective.name):
            expand(collective.name, len(group.ranks), name)  # says which there are
        if name not in possible:
            raise ConfigError(
                f"--algorithm {name}: ranks {_short(group.ranks)} cannot run {collective.name} by it on this cluster; "
                f"choose {', '.join(possible)} (of {', '.join(algorithms_for(collective.name))})"
            )
    return tuple(possible[name] for name in names)


def _short(ranks: tuple[int, ...]) -> str:
    return ",".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}..{ranks[-1]}"
