"""Clusters as data: which cards are joined how, by links of which speed, and on what evidence."""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationInfo, field_validator

from ..isa.errors import ConfigError
from .evidence import Evidence, Quantity, weakest
from .kinds import wiring_of
from .link import Link, LinkOverride, LinkSpec
from .specfile import read_mapping, validated
from .topology import Topology

CLUSTERS = Path(__file__).parent / "clusters"
Part = TypeVar("Part", LinkSpec, LinkOverride)


class ClusterSpec(BaseModel):
    """A cluster as users write it: `cards` joined by `kind`, every link like `link` save those named in `links`.

    `notes` say what of the real machine is not modelled; reports repeat them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    description: str = ""
    kind: str
    cards: StrictInt
    link: LinkSpec
    links: tuple[LinkOverride, ...] = ()
    notes: tuple[str, ...] = ()

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        return _as_fault(kind, 1)

    @field_validator("cards")
    @classmethod
    def _cards_suit_the_kind(cls, cards: int, info: ValidationInfo) -> int:
        if "kind" in info.data:
            _as_fault(info.data["kind"], cards)
        return cards

    @field_validator("links")
    @classmethod
    def _links_exist_once(cls, links: tuple[LinkOverride, ...], info: ValidationInfo) -> tuple[LinkOverride, ...]:
        if not links or not {"kind", "cards"} <= info.data.keys():
            return links
        kind, cards = info.data["kind"], info.data["cards"]
        wires = set(wiring_of(kind, cards).wires)
        seen: set[tuple[int, int]] = set()
        for index, link in enumerate(links):
            ends = (link.source, link.target)
            if ends in seen:
                raise ValueError(f"entry {index}: the link from {ends[0]} to {ends[1]} stands twice")
            if ends not in wires:
                raise ValueError(f"entry {index}: {kind} of {cards} has no link from {ends[0]} to {ends[1]}")
            seen.add(ends)
        return links

    def topology(self) -> Topology:
        """The nodes and directed links, built once."""
        return _topology(self)

    def evidence_of(self, field: str) -> Quantity:
        """The number behind a dotted field, as `link.latency_ps` or `links.0.bandwidth_bytes_per_s`."""
        here: Any = self
        for part in field.split("."):
            if part.isdigit() and isinstance(here, tuple) and int(part) < len(here):
                here = here[int(part)]
            elif isinstance(here, BaseModel) and part in type(here).model_fields:
                here = getattr(here, part)
            else:
                raise ConfigError(f"{self.name} has no field {field}")
        if not isinstance(here, Quantity):
            raise ConfigError(f"{field} of {self.name} is no number with evidence")
        return here

    def weakest_evidence(self) -> Evidence:
        """What a time that depends on these links is worth."""
        optional = [(link.bandwidth_bytes_per_s, link.latency_ps) for link in self.links]
        numbers = [self.link.bandwidth_bytes_per_s, self.link.latency_ps, *(n for pair in optional for n in pair)]
        return weakest(number.evidence for number in numbers if number is not None)


def _as_fault(kind: str, cards: int) -> str:
    """Check a kind and count in the way pydantic wants to hear of it."""
    try:
        wiring_of(kind, cards)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return kind


@lru_cache(maxsize=64)
def _topology(spec: ClusterSpec) -> Topology:
    wiring = wiring_of(spec.kind, spec.cards)
    overrides = {(link.source, link.target): link for link in spec.links}
    links = []
    for source, target in wiring.wires:
        own = overrides.get((source, target))
        bandwidth = own and own.bandwidth_bytes_per_s or spec.link.bandwidth_bytes_per_s
        latency = own and own.latency_ps or spec.link.latency_ps
        links.append(Link(source, target, bandwidth.value, latency.value, f"{source}>{target}"))
    return Topology(spec.kind, spec.cards, tuple(links), wiring.switches)


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
    does not grow, for it has no link to grow by. ConfigError when the kind does not take so many.
    """
    if cards == spec.cards:
        return spec
    where = f"{spec.name} resized to {cards} cards"
    wires = set(wiring_of(spec.kind, cards).wires)
    kept = tuple(link for link in spec.links if (link.source, link.target) in wires)
    dropped = [f"{link.source}>{link.target}" for link in spec.links if link not in kept]
    note = f"resized from {spec.name}, {spec.cards} cards"
    note += f"; what it says of links {', '.join(dropped)} is dropped" if dropped else ""
    content = {name: getattr(spec, name) for name in ClusterSpec.model_fields}
    content |= {"cards": cards, "links": kept, "notes": (*spec.notes, note)}
    if cards > spec.cards:
        content["link"] = _assumed(spec.link, where)
        content["links"] = tuple(_assumed(link, where) for link in kept)
    return validated(ClusterSpec, content, where)


def _assumed(part: Part, where: str) -> Part:
    """The same numbers, no longer read anywhere but carried over."""
    weaker = {}
    for field in ("bandwidth_bytes_per_s", "latency_ps"):
        number: Quantity | None = getattr(part, field)
        if number is not None:
            weaker[field] = Quantity(value=number.value, evidence="assumed", source=f"{where}; was: {number.source}")
    return part.model_copy(update=weaker)


def usual_node(kind: str, cards: int, link: LinkSpec, node_cards: int) -> ClusterSpec:
    """`cards` of a layout in a card's usual node, which holds `node_cards` cards joined by `kind`.

    Fewer stand alone, and one needs no link. What is beyond the node's size counts as assumed, and a note says so.
    """
    if cards == 1:
        kind, node_cards = "single", 1
    built = min(cards, node_cards)
    name = f"usual-node-{kind}-{built}"
    return resized(make_cluster(kind, built, link.bandwidth_bytes_per_s, link.latency_ps, name), cards)
