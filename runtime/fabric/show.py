"""The clusters that are shipped, and one in full: what `siltwin cluster` shows, as versioned schemas."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from ...interconnect.cluster import ClusterSpec, cluster_names, load_cluster
from ...interconnect.evidence import EvidenceKind, Quantity
from ...interconnect.measures import bisections, diameter, link_kinds
from ...interconnect.routing import route
from ...interconnect.topology import Topology
from ..report_base import Part
from ..report_document import Document
from .text_drawing import text_drawing

MOST_EXAMPLES = 4


class ClusterSummary(Part):
    """One cluster beside others; `levels` from the innermost, as `node: 8 x switch`."""

    name: str
    description: str
    kind: str
    cards: int
    switches: int
    links: int
    levels: tuple[str, ...]
    weakest_evidence: EvidenceKind


class LinkKindPart(Part):
    """Directed links that are alike; `down` of them carry nothing."""

    level: str
    ends: str
    count: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    down: int


class CutPart(Part):
    """Two halves of the cards, and what can flow between them in the narrower direction: the exact minimum cut."""

    halves: str
    bandwidth_bytes_per_s: int


class RoutePart(Part):
    """The way from one card to another: the nodes it passes, and its latency."""

    source: int
    target: int
    nodes: tuple[str, ...]
    latency_ps: int


class NumberPart(Part):
    """One number of the cluster's file by dotted path, and what it rests on."""

    path: str
    value: int
    evidence: EvidenceKind
    source: str
    error: float | None


class ClusterDetail(Document):
    """One cluster: its wires, what they amount to, and every number with its evidence.

    `bisection_bytes_per_s` is the narrowest of `bisections`; null where cards have no equal halves.
    Diameters are over the routes that messages take, `diameter_method` says between which cards.
    """

    summary: ClusterSummary
    link_kinds: tuple[LinkKindPart, ...]
    bisection_bytes_per_s: int | None
    bisections: tuple[CutPart, ...]
    diameter_hops: int
    diameter_latency_ps: int
    diameter_method: str
    routing: str
    routes: tuple[RoutePart, ...]
    protocols: tuple[str, ...]
    choices: int
    numbers: tuple[NumberPart, ...]
    drawing: tuple[str, ...]
    notes: tuple[str, ...]


class ClustersReport(Document):
    """Every shipped cluster."""

    clusters: tuple[ClusterSummary, ...]


def clusters_report() -> ClustersReport:
    """All shipped clusters in order of name."""
    return ClustersReport(clusters=tuple(_summary(load_cluster(name)) for name in cluster_names()))


def cluster_detail(name_or_file: str) -> ClusterDetail:
    """One cluster, by name or file; ConfigError as `load_cluster`, or naming the cut between cards that are apart."""
    spec = load_cluster(name_or_file)
    topology = spec.topology()
    far = diameter(topology)
    cuts = bisections(topology)
    return ClusterDetail(
        summary=_summary(spec),
        link_kinds=tuple(LinkKindPart(**vars(kind)) for kind in link_kinds(spec)),
        bisection_bytes_per_s=cuts[0].bandwidth_bytes_per_s if cuts else None,
        bisections=tuple(CutPart(**vars(cut)) for cut in cuts),
        diameter_hops=far.hops,
        diameter_latency_ps=far.latency_ps,
        diameter_method=far.method,
        routing=_routing(topology),
        routes=tuple(_routes(spec, topology)),
        protocols=tuple(spec.protocols),
        choices=len(spec.choices),
        numbers=tuple(NumberPart(path=path, **number.model_dump()) for path, number in numbers(spec)),
        drawing=tuple(text_drawing(spec)),
        notes=spec.notes,
    )


def _summary(spec: ClusterSpec) -> ClusterSummary:
    topology = spec.topology()
    return ClusterSummary(
        name=spec.name,
        description=spec.description,
        kind=spec.kind,
        cards=topology.cards,
        switches=topology.switches,
        links=len(topology.links),
        levels=tuple(f"{level.name}: {level.of} x {level.kind}" for level in spec.levels),
        weakest_evidence=spec.weakest_evidence(),
    )


def _routing(topology: Topology) -> str:
    policy = topology.routing
    words = [policy.policy.replace("_", " "), f"by {policy.metric}"]
    words += [f"seed {policy.seed}"] if policy.policy == "ecmp" else []
    words += [f"every message over {policy.stripes} planes"] if policy.stripes > 1 else []
    return ", ".join(words)


def _routes(spec: ClusterSpec, topology: Topology) -> Iterator[RoutePart]:
    """From card 0 to its neighbour, to the first card beyond each level, and to the card furthest by number."""
    targets, inside = [1], 1
    for level in spec.levels:
        inside *= level.of
        targets.append(inside)
    shown = [target for target in targets[:MOST_EXAMPLES] if target < topology.cards]
    for target in dict.fromkeys([*shown, topology.cards - 1] if topology.cards > 1 else []):
        links = [topology.links[link] for link in route(topology, 0, target)]
        nodes = (topology.node_name(0), *(topology.node_name(link.target) for link in links))
        yield RoutePart(source=0, target=target, nodes=nodes, latency_ps=sum(link.latency_ps for link in links))


def numbers(spec: ClusterSpec) -> Iterator[tuple[str, Quantity]]:
    """(dotted path, number) of everything in the file that carries evidence."""
    yield from _quantities(spec, "")


def _quantities(node: object, path: str) -> Iterator[tuple[str, Quantity]]:
    if isinstance(node, Quantity):
        yield path, node
    elif isinstance(node, BaseModel):
        for name in type(node).model_fields:
            yield from _quantities(getattr(node, name), f"{path}.{name}" if path else name)
    elif isinstance(node, dict):
        for key, entry in node.items():
            yield from _quantities(entry, f"{path}.{key}")
    elif isinstance(node, tuple):
        for index, entry in enumerate(node):
            yield from _quantities(entry, f"{path}.{index}")
