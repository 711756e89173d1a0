"""Clusters as data: which cards are joined how, by links of which speed, and on what evidence."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field, StrictInt, ValidationInfo, field_validator, model_validator

from ..isa.dtype import DType
from ..isa.errors import ConfigError
from .choices import Choice, ChoiceSpec, Group, ProtocolSpec, choose
from .collectives.protocol import Protocol
from .evidence import EvidenceKind, Quantity, weakest
from .kinds import KINDS, check_kind, wiring_of
from .levels import Built, LevelSpec, ShapeFields, build, cards_of, check_levels
from .link import LinkOverride, LinkSpec
from .link_columns import LinkColumns, Links
from .policy import Routing
from .specfile import read_mapping, validated
from .topology import Topology

CLUSTERS = Path(__file__).parent / "clusters"
HIERARCHY = "hierarchy"
UNWIRED: dict[str, Any] = {"description": "", "protocols": {}, "choices": (), "notes": ()}  # what no wire depends on
Part = TypeVar("Part", LinkSpec, LinkOverride)


class ClusterSpec(ShapeFields):
    """A cluster as users write it: `cards` joined by `kind`, every link like `link` save those named in `links`.

    Or a hierarchy of `levels`, innermost first, which says kinds, counts and links level by level; then `kind` is
    "hierarchy" and `cards` the product of the levels. `routing` is shortest ways where it is not given, over all planes
    of the outermost level, drawn by ECMP where the kind offers several. `protocols` are how the library sends (the
    first one is usual) and `choices` which algorithm a collective runs by. `notes` say what of the real machine is not
    modelled; reports repeat them.
    """

    name: str = Field(min_length=1)
    description: str = ""
    kind: str
    cards: StrictInt
    link: LinkSpec | None = None
    links: tuple[LinkOverride, ...] = ()
    levels: tuple[LevelSpec, ...] = ()
    routing: Routing | None = None
    protocols: dict[str, ProtocolSpec] = {}
    choices: tuple[ChoiceSpec, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, raw: Any) -> Any:
        """Fill in what levels or dims already say."""
        if not isinstance(raw, dict):
            return raw
        raw = dict(raw)
        if raw.get("levels"):
            raw.setdefault("kind", HIERARCHY)
            counts = [_count(level) for level in raw["levels"]] if isinstance(raw["levels"], list | tuple) else [0]
            if all(counts):
                raw.setdefault("cards", math.prod(counts))
        elif raw.get("dims") and isinstance(raw["dims"], list | tuple):
            if all(type(side) is int for side in raw["dims"]):
                raw.setdefault("cards", math.prod(raw["dims"]))
        return raw

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind != HIERARCHY and kind not in KINDS:
            _as_fault(lambda: check_kind(kind, 1))
        return kind

    @field_validator("cards")
    @classmethod
    def _cards_suit_the_kind(cls, cards: int, info: ValidationInfo) -> int:
        kind = info.data.get("kind", HIERARCHY)
        if kind != HIERARCHY:
            _as_fault(lambda: check_kind(kind, cards))
        return cards

    @model_validator(mode="after")
    def _fits_together(self) -> ClusterSpec:
        if (self.kind == HIERARCHY) != bool(self.levels):
            raise ValueError(f"kind {HIERARCHY} has `levels`, and no other kind has; got kind {self.kind}")
        if self.levels:
            flat = ("link", "dims", "leaf_cards", "pod_leaves", "oversubscription", "uplinks", "switch_reduces")
            if (extra := [name for name in flat if getattr(self, name)]) or self.planes != 1:
                raise ValueError(f"{(extra or ['planes'])[0]} stands at each of the levels, not beside them")
            _as_fault(lambda: check_levels(self.levels))
            if self.cards != cards_of(self.levels):
                raise ValueError(f"cards={self.cards}, and the levels hold {cards_of(self.levels)}")
        elif self.kind != "single":
            if self.link is None:
                raise ValueError("link: is missing; say what every link is like")
            _as_fault(lambda: wiring_of(self.kind, self.cards, self.kind_shape))
        if self.routing and self.routing.policy == "dimension_order" and self.kind not in ("ring", "mesh", "torus"):
            raise ValueError(f"dimension_order needs a ring, mesh or torus; this is a {self.kind}")
        self._check_links()
        self._check_choices()
        return self

    def _check_links(self) -> None:
        wires = _built(self).ends if self.links else set()
        seen: set[tuple[int, int]] = set()
        for index, link in enumerate(self.links):
            ends = (link.source, link.target)
            if ends in seen:
                raise ValueError(f"links: entry {index}: the link from {ends[0]} to {ends[1]} stands twice")
            if ends not in wires:
                raise ValueError(
                    f"links: entry {index}: {self.kind} of {self.cards} has no link from {ends[0]} to {ends[1]}"
                )
            seen.add(ends)

    def _check_choices(self) -> None:
        levels = [level.name for level in self.levels]
        for index, row in enumerate(self.choices):
            if row.protocol is not None and row.protocol not in self.protocols:
                known = ", ".join(self.protocols) or "none"
                raise ValueError(f"choices: entry {index}: no protocol {row.protocol!r} (known: {known})")
            for level in (row.within, row.beyond):
                if level is not None and level not in levels:
                    known = ", ".join(levels) or "none"
                    raise ValueError(f"choices: entry {index}: no level {level!r} (known: {known})")

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.cards, self.link, self.links, self.levels))

    def topology(self) -> Topology:
        """The nodes and directed links, built once for clusters that are wired alike."""
        return _topology(self.model_copy(update=UNWIRED))

    def protocol(self, name: str) -> Protocol:
        """A protocol of the library; ConfigError with those there are."""
        if name not in self.protocols:
            raise ConfigError(f"{self.name} has no protocol {name!r}; it has {', '.join(self.protocols) or 'none'}")
        return self.protocols[name].protocol(name)

    def protocol_for(self, collective: str, algorithm: str) -> Protocol | None:
        """The protocol by which the first row of `choices` sends this algorithm; None where no row says."""
        rows = (row for row in self.choices if (row.collective, row.algorithm) == (collective, algorithm))
        named = next((row.protocol for row in rows if row.protocol), None)
        return self.protocol(named) if named else None

    def group(self, ranks: Sequence[int]) -> Group:
        """Where these ranks, in group order, stand."""
        topology = self.topology()
        if outside := [rank for rank in ranks if not 0 <= rank < topology.cards]:
            raise ConfigError(f"rank {outside[0]} is no card; {self.name} has 0 to {topology.cards - 1}")
        return Group(tuple(ranks), topology, tuple(level.name for level in reversed(self.levels)))

    def choose(
        self, collective: str, size: int, ranks: Sequence[int], num_bytes: int, dtype: DType | None = None
    ) -> Choice:
        """The algorithm and protocol by which `ranks`, a group of `size`, run a collective of `num_bytes` in all.

        The first fitting row of `choices`, or what is usual; a switch adds elements of 16 bits or more. ConfigError for
        ranks that are no group of that size.
        """
        if len(ranks) != size:
            raise ConfigError(f"ranks {tuple(ranks)} are {len(ranks)}; the group has {size} members")
        named = {name: spec.protocol(name) for name, spec in self.protocols.items()}
        return choose(self.choices, named, collective, self.group(ranks), num_bytes, dtype)

    def evidence_of(self, field: str) -> Quantity:
        """The number behind a dotted field, as `link.latency_ps` or `levels.0.link.bandwidth_bytes_per_s`."""
        here: Any = self
        for part in field.split("."):
            if part.isdigit() and isinstance(here, tuple) and int(part) < len(here):
                here = here[int(part)]
            elif isinstance(here, dict) and part in here:
                here = here[part]
            elif isinstance(here, BaseModel) and part in type(here).model_fields:
                here = getattr(here, part)
            else:
                raise ConfigError(f"{self.name} has no field {field}")
        if not isinstance(here, Quantity):
            raise ConfigError(f"{field} of {self.name} is no number with evidence")
        return here

    def weakest_evidence(self) -> EvidenceKind:
        """What a time that depends on these links and protocols is worth; where there are none, nothing is assumed."""
        own = (self.link,) if self.link else ()
        parts: tuple[LinkSpec | LinkOverride | LevelSpec, ...] = (*own, *self.uplinks, *self.links, *self.levels)
        numbers = [number for part in parts for number in part.quantities()]
        numbers += [number for spec in self.protocols.values() for number in spec.quantities()]
        return weakest(number.evidence for number in numbers) if numbers else "measured"


def _count(level: Any) -> int:
    count = level.of if isinstance(level, LevelSpec) else level.get("of") if isinstance(level, dict) else None
    return count if type(count) is int and count > 0 else 0


def _as_fault(check: Any) -> None:
    """Check in the way pydantic wants to hear of it."""
    try:
        check()
    except ConfigError as error:
        raise ValueError(str(error)) from None


@lru_cache(maxsize=64)
def _topology(spec: ClusterSpec) -> Topology:
    built = _built(spec)
    kind = spec.levels[0].kind if len(spec.levels) == 1 else spec.kind
    grid = spec.levels[0] if len(spec.levels) == 1 else spec
    return Topology(
        kind,
        spec.cards,
        _links(spec, built),
        built.switches,
        spec.routing or _usual_routing(spec),
        grid.dims,
        tuple(level.of for level in reversed(spec.levels)),
        built.reducing,
    )


def _built(spec: ClusterSpec) -> Built:
    """The wires of a cluster."""
    levels = spec.levels
    if spec.kind == "single":
        levels = ()
    elif not levels:
        shape = {name: getattr(spec, name) for name in ShapeFields.model_fields}
        levels = (LevelSpec.model_construct(name=spec.kind, kind=spec.kind, of=spec.cards, link=spec.link, **shape),)
    return build(levels)


def _usual_routing(spec: ClusterSpec) -> Routing:
    levels = spec.levels or (spec,)
    branches = any(KINDS[level.kind].branches for level in levels)
    return Routing(policy="ecmp" if branches else "shortest", stripes=levels[-1].planes)


def _links(spec: ClusterSpec, built: Built) -> Links:
    """The links of a cluster: each like its wire's, unless the spec says otherwise of it."""
    facts = [like.facts() for like in built.links]
    per_s, latency_ps, overhead_ps, stores, packets = (
        np.array([fact[n] == "store_and_forward" if n == 3 else fact[n] for fact in facts])[built.like]
        if facts
        else np.zeros(0, np.int64)
        for n in range(5)
    )
    down = np.zeros(len(built.source), bool)
    for own in spec.links:
        where = (built.source == own.source) & (built.target == own.target)
        down[where] = own.down
        if own.bandwidth_bytes_per_s:
            per_s[where] = own.bandwidth_bytes_per_s.value
        if own.latency_ps:
            latency_ps[where] = own.latency_ps.value
    columns = built.source, built.target, per_s, latency_ps, overhead_ps, stores, packets, down, built.level
    cards = spec.cards
    return Links(LinkColumns(*columns), lambda node: str(node) if node < cards else f"s{node - cards}")


def cluster_names() -> tuple[str, ...]:
    """The clusters that are shipped."""
    return tuple(sorted(path.stem for path in CLUSTERS.glob("*.yaml")))


def load_cluster(name_or_path: str | Path) -> ClusterSpec:
    """The shipped cluster of this name, or the cluster in this YAML file.

    ConfigError names the file and field of whatever is wrong, or the clusters there are.
    """
    path = Path(name_or_path)
    if name_or_path in cluster_names():
        path = CLUSTERS / f"{name_or_path}.yaml"
    elif not (path.suffix in {".yaml", ".yml"} or path.is_file()):
        near = difflib.get_close_matches(str(name_or_path), cluster_names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(cluster_names())
        raise ConfigError(f"no cluster is called {str(name_or_path)!r}{hint} (shipped: {known}; or give a .yaml file)")
    return validated(ClusterSpec, read_mapping(path), path)


def make_cluster(
    kind: str,
    cards: int,
    bandwidth_bytes_per_s: int | Quantity,
    latency_ps: int | Quantity,
    name: str | None = None,
) -> ClusterSpec:
    """A cluster built in code, bandwidth and latency a direction of every link.

    A plain number counts as assumed; give a Quantity to carry better evidence. ConfigError as from a file.
    """
    link = {
        "bandwidth_bytes_per_s": _with_evidence(bandwidth_bytes_per_s),
        "latency_ps": _with_evidence(latency_ps),
    }
    name = name or f"{kind}-{cards}"
    return validated(ClusterSpec, {"name": name, "kind": kind, "cards": cards, "link": link}, f"cluster {name}")


def _with_evidence(number: int | Quantity) -> Any:
    if isinstance(number, Quantity):
        return number
    return {"value": number, "evidence": "assumed", "source": "given in code, without a source"}


def resized(spec: ClusterSpec, cards: int) -> ClusterSpec:
    """A cluster of the same kind and links with another number of cards.

    Fewer cards: they stand alone (3 of a ring of 8 are a ring of 3, not an arc of it). More: nobody has built it, so
    its links count as assumed. Overrides stay where their link still exists; a note says what was dropped. A `single`
    does not grow, for it has no link to grow by; a hierarchy gets more or fewer of its outermost units; a grid with
    dims keeps them. ConfigError when the kind does not take so many.
    """
    if cards == spec.cards:
        return spec
    where = f"{spec.name} resized to {cards} cards"
    content = {name: getattr(spec, name) for name in ClusterSpec.model_fields} | {"cards": cards, "links": ()}
    if spec.levels:
        unit = spec.cards // spec.levels[-1].of
        if cards < unit or cards % unit:
            raise ConfigError(f"{where}: it has units of {unit} cards, of which there may be more or fewer, but whole")
        content["levels"] = (*spec.levels[:-1], spec.levels[-1].model_copy(update={"of": cards // unit}))
    bare = validated(ClusterSpec, content, where)
    wires = _built(bare).ends
    kept = tuple(link for link in spec.links if (link.source, link.target) in wires)
    dropped = [f"{link.source}>{link.target}" for link in spec.links if link not in kept]
    note = f"resized from {spec.name}, {spec.cards} cards"
    note += f"; what it says of links {', '.join(dropped)} is dropped" if dropped else ""
    content |= {"links": kept, "notes": (*spec.notes, note)}
    if cards > spec.cards:
        content["link"] = _assumed(spec.link, where) if spec.link else None
        content["links"] = tuple(_assumed(link, where) for link in kept)
        content["uplinks"] = tuple(_assumed(link, where) for link in spec.uplinks)
        content["levels"] = tuple(_assumed_level(level, where) for level in bare.levels)
    return validated(ClusterSpec, content, where)


def _assumed(part: Part, where: str) -> Part:
    """The same numbers, no longer read anywhere but carried over."""
    weaker = {}
    for field in ("bandwidth_bytes_per_s", "latency_ps"):
        number: Quantity | None = getattr(part, field)
        if number is not None:
            weaker[field] = Quantity(value=number.value, evidence="assumed", source=f"{where}; was: {number.source}")
    return part.model_copy(update=weaker)


def _assumed_level(level: LevelSpec, where: str) -> LevelSpec:
    links = {"link": _assumed(level.link, where), "uplinks": tuple(_assumed(link, where) for link in level.uplinks)}
    return level.model_copy(update=links)


def usual_node(kind: str, cards: int, link: LinkSpec, node_cards: int) -> ClusterSpec:
    """`cards` of a layout in a card's usual node, which holds `node_cards` cards joined by `kind`.

    Fewer stand alone, and one needs no link. What is beyond the node's size counts as assumed, and a note says so.
    """
    if cards == 1:
        kind, node_cards = "single", 1
    built = min(cards, node_cards)
    name = f"usual-node-{kind}-{built}"
    return resized(make_cluster(kind, built, link.bandwidth_bytes_per_s, link.latency_ps, name), cards)
