"""Tuning: every algorithm and protocol emulated by collective, group and message size; the fastest make the table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...interconnect.choices import Choice, ChoiceSpec, Group
from ...interconnect.cluster import CLUSTERS, ClusterSpec, cluster_names, load_cluster
from ...interconnect.collectives.protocol import PLAIN
from ...interconnect.specfile import validated
from ...isa.dtype import FP32
from ...isa.errors import ConfigError, NotYetError
from ..files import read_text, write_file
from .compare import comparable
from .emulate import Fabric
from .endpoints import ends
from .messages import COLLECTIVES, Collective, collective_of, message_of, whole_bytes
from .sizes import parse_sizes

USUAL_SIZES = "1KiB:1GiB"
USUAL_FACTOR = 4.0
USUAL_MOST_RANKS = 64
OWN_BLOCK = re.compile(r"(?:^# Choices of .*\n)?^choices:.*\n(?:(?:[ \t#-].*)?\n)*", re.MULTILINE)
Progress = Callable[[int, int | None, str], None]
Allow = Callable[[str, int, Choice], bool]


@dataclass(frozen=True)
class Case:
    """One kind of group that rows speak for: a group to emulate, and the sizes and places it stands for."""

    group: Group
    from_ranks: int
    up_to_ranks: int | None
    within: str | None
    beyond: str | None


@dataclass(frozen=True)
class TuneReport:
    """The table, and what it was made from."""

    cluster: ClusterSpec
    ends: str
    choices: tuple[ChoiceSpec, ...]
    emulated: int
    cases: int
    written_to: str | None


def tune(
    cluster: str,
    card: str | None = None,
    collectives: str | None = None,
    sizes: str | None = None,
    ranks: str | None = None,
    output: str | None = None,
    progress: Progress | None = None,
    factor: float = USUAL_FACTOR,
    allow: Allow = lambda collective, ranks, choice: True,
) -> TuneReport:
    """Emulate all candidates and write the cluster's file, its `choices` replaced, to `output` where one is given.

    `allow(collective, ranks, choice)` leaves out what a library cannot do.
    ConfigError for whatever is wrong with what was asked, before anything is emulated.
    """
    spec = load_cluster(cluster)
    end_card, said = ends(card)
    fabric = Fabric(spec, end_card)
    wanted = _collectives(collectives)
    lengths = parse_sizes(sizes or USUAL_SIZES, factor)
    cases = _cases(spec, fabric, _group_sizes(ranks, spec))
    rows: list[ChoiceSpec] = []
    emulated, work = 0, list(itertools.product(wanted, cases))
    for number, (collective, case) in enumerate(work):
        if progress:
            progress(number, len(work), f"{collective.name} of {len(case.group.ranks)}")
        fastest, count = _fastest(fabric, collective, case.group, lengths, allow)
        rows += _rows(collective.name, case, fastest)
        emulated += count
    choices = tuple(_merged(rows))
    if output is not None:
        text = tuned_text(cluster, choices, said)  # read before the file, which may be the same, is opened
        write_file(output, lambda stream: stream.write(text.encode()))
    return TuneReport(spec, said, choices, emulated, len(work), output)


def tuned_text(cluster: str, choices: Sequence[ChoiceSpec], said: str) -> str:
    """The cluster's own file, comments and all, with these choices in place of its own."""
    path = CLUSTERS / f"{cluster}.yaml" if cluster in cluster_names() else Path(cluster)
    text = OWN_BLOCK.sub("", read_text(str(path))).rstrip("\n")
    lines = [f"# Choices of `siltwin fabric tune`, {said.partition(',')[0]}", "choices:"]
    for row in choices:
        given = {key: value for key, value in row.model_dump(exclude_defaults=True).items() if value is not None}
        lines.append("  - {" + ", ".join(f"{key}: {value}" for key, value in given.items()) + "}")
    return "\n".join([text, *lines]) + "\n"


def _collectives(text: str | None) -> list[Collective]:
    if text is not None:
        named = [collective_of(name) for name in text.split(",")]
        if pairs := [collective.name for collective in named if collective.two_ranks]:
            raise ConfigError(
                f"--collectives {text!r}: {pairs[0]} has one algorithm, so nothing to choose; leave it out"
            )
        return named
    found = []
    for name in COLLECTIVES:
        try:
            found.append(collective_of(name))
        except NotYetError:
            continue
    return [collective for collective in found if not collective.two_ranks]


def _group_sizes(text: str | None, spec: ClusterSpec) -> list[int]:
    """The group sizes asked for, or powers of two and whole units up to 64 ranks."""
    if text is None:
        units = [count for count, _ in _units(spec)]
        doubled = (1 << power for power in range(1, 7))
        sizes = {size for size in [*doubled, *units] if 2 <= size <= min(spec.cards, USUAL_MOST_RANKS)}
        return sorted(sizes or {min(2, spec.cards)})
    found = set()
    for part in text.split(","):
        if not part.strip().isdecimal() or not 2 <= int(part.strip()[:9]) <= spec.cards:
            raise ConfigError(f"--ranks {text!r}: {part.strip()!r} must be from 2 to the cluster's {spec.cards} cards")
        found.add(int(part))
    return sorted(found)


def _units(spec: ClusterSpec) -> list[tuple[int, str | None]]:
    """(cards of a unit, the level's name) of every level, innermost first; a flat cluster is one unit."""
    counts = list(itertools.accumulate((level.of for level in spec.levels), lambda a, b: a * b))
    return list(zip(counts, [level.name for level in spec.levels], strict=True)) or [(spec.cards, None)]


def _cases(spec: ClusterSpec, fabric: Fabric, sizes: Sequence[int]) -> list[Case]:
    """Neighbours inside each unit, level by level; then one member from each of several units."""
    cases: list[Case] = []
    below = 1
    for unit, name in _units(spec):
        own = [size for size in sizes if below < size <= unit]
        outermost = unit == spec.cards
        for index, size in enumerate(own):
            least = own[index - 1] + 1 if index else 2
            most = None if index + 1 == len(own) else size
            cases.append(Case(fabric.group(range(size)), least, most, None if outermost else name, None))
        if not outermost:
            cases += _spread(spec, fabric, unit, str(name), sizes)
        below = unit
    inner_first = [case for case in cases if case.within] + [case for case in cases if case.beyond]
    return inner_first + [case for case in cases if not case.within and not case.beyond]


def _spread(spec: ClusterSpec, fabric: Fabric, unit: int, name: str, sizes: Sequence[int]) -> Iterator[Case]:
    """One member from each of several units: what replicas and pipeline stages communicate in."""
    outer = next(count for count, _ in _units(spec) if count > unit)
    least = 2
    for size in sizes:
        if size <= min(unit, outer // unit):
            yield Case(fabric.group(range(0, size * unit, unit)), least, size, None, name)
            least = size + 1


def _fastest(
    fabric: Fabric, collective: Collective, group: Group, sizes: Sequence[int], allow: Allow
) -> tuple[list[tuple[int, Choice]], int]:
    """(bytes by which tables are read, the fastest choice) at every size, and how many messages were emulated."""
    protocols = [spec.protocol(name) for name, spec in fabric.spec.protocols.items()] or [PLAIN]
    usable, _ = comparable(collective.name, group)
    every = [replace(choice, protocol=protocol) for choice in usable for protocol in protocols]
    tried = [choice for choice in every if allow(collective.name, len(group.ranks), choice)]
    if not tried:
        raise ConfigError(f"nothing is allowed for {collective.name} of {len(group.ranks)}; allow an algorithm")
    messages = [message_of(collective, max(size, 4), FP32, group.ranks) for size in sizes]
    times = {choice: [fabric.run(message, choice).time_ps for message in messages] for choice in tried}
    fastest = [min(times, key=lambda choice: times[choice][at]) for at in range(len(messages))]
    pairs = [(whole_bytes(message), choice) for message, choice in zip(messages, fastest, strict=True)]
    return pairs, len(tried) * len(messages)


def _rows(collective: str, case: Case, fastest: Sequence[tuple[int, Choice]]) -> Iterator[ChoiceSpec]:
    """A row for each run of sizes that one choice wins; between two sizes the geometric middle parts them."""
    runs = [list(run) for _, run in itertools.groupby(fastest, key=lambda entry: _named(entry[1]))]
    for index, run in enumerate(runs):
        algorithm, protocol = _named(run[0][1])
        row = {
            "collective": collective,
            "algorithm": algorithm,
            "protocol": None if protocol == PLAIN.name else protocol,
            "from_ranks": case.from_ranks,
            "up_to_ranks": case.up_to_ranks,
            "within": case.within,
            "beyond": case.beyond,
        }
        if index + 1 < len(runs):
            row["up_to_bytes"] = round((run[-1][0] * runs[index + 1][0][0]) ** 0.5)
        yield validated(ChoiceSpec, row, f"the choice for {collective}")


def _named(choice: Choice) -> tuple[str, str]:
    return choice.algorithm, choice.protocol.name


def _merged(rows: Sequence[ChoiceSpec]) -> Iterator[ChoiceSpec]:
    """Rows of neighbouring group sizes that say the same are joined."""
    sets: list[list[ChoiceSpec]] = []
    for _, run in itertools.groupby(rows, key=lambda row: (row.collective, row.from_ranks, row.within, row.beyond)):
        own = list(run)
        if sets and _alike(sets[-1], own):
            sets[-1] = [row.model_copy(update={"up_to_ranks": own[0].up_to_ranks}) for row in sets[-1]]
        else:
            sets.append(own)
    return itertools.chain.from_iterable(sets)


def _alike(first: Sequence[ChoiceSpec], second: Sequence[ChoiceSpec]) -> bool:
    """Whether two sets say the same of groups of neighbouring sizes."""
    if first[0].up_to_ranks is None or second[0].from_ranks != first[0].up_to_ranks + 1:
        return False
    counts = {"from_ranks": 1, "up_to_ranks": None}
    return [row.model_copy(update=counts) for row in first] == [row.model_copy(update=counts) for row in second]
