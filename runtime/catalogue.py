"""The cards and models that siltwin ships, as versioned schemas: what `siltwin cards` and `siltwin models` show."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..emulator.card_family import card_names
from ..emulator.evidence import Evidence
from ..emulator.spec import CardSpec, load_card, weakest_evidence
from ..interconnect.evidence import EvidenceKind, weakest
from ..isa.dtype import DTYPES
from ..isa.errors import SiltwinError
from ..models.checkpoint import open_checkpoint, open_config
from ..models.config import read_config
from ..models.facts import ModelFacts, describe
from ..models.shelf import ShelfEntry, list_models
from .report_base import Part
from .report_document import Document


class CardSummary(Part):
    """One card beside others. `peak_ops_per_s` is by element type; link and HBM bandwidth are of one direction.

    `tdp_w` is null where nothing is stated. `rests_on` is the weakest evidence of each figure: a peak's is that of the
    vendor's statement, or of the numbers it is computed from where there is none. `assumed_numbers` counts the entries
    of evidence that are only assumed, of `numbers` in all.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    description: str
    clock_hz: int
    cores: int
    peak_ops_per_s: dict[str, int]
    hbm_capacity_bytes: int
    hbm_reserved_bytes: int
    hbm_bandwidth_bytes_per_s: int
    link_ports: int
    link_bandwidth_bytes_per_s: int
    node_topology: str
    node_cards: int
    l2_capacity_bytes: int | None
    tdp_w: float | None
    kernels: str
    rests_on: dict[str, EvidenceKind]
    weakest_evidence: EvidenceKind
    assumed_numbers: int
    numbers: int


class CardsReport(Document):
    """Every shipped card."""

    cards: tuple[CardSummary, ...]


class CardDetail(Document):
    """One card with every number and what it rests on."""

    summary: CardSummary
    card: CardSpec

    def rows(self) -> Iterator[tuple[str, Any, Evidence | None]]:
        """(dotted path, value, evidence or None) of everything the card says, as `--set` spells it."""
        tree = self.card.model_dump(exclude={"evidence", "aliases", "name", "description"})
        for path, value in _leaves(tree, "", self.card.evidence):
            yield path, value, _evidence(self.card, path)


class FactsPart(Part):
    """A supported model, counted from its graph; KV bytes a token at 16 bits, of the layers that have no window.
    States of fixed size are those of one sequence.

    Active parameters are those that one token meets, with and without the input embedding.
    """

    family: str
    architecture: str
    total_params: int
    active_params: int
    active_params_excl_embedding: int
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied: bool
    dtype: str
    blocks: tuple[str, ...]


class ModelEntry(Part):
    """One model: `facts` where siltwin supports it, else `why_not`; `installed` is false where its weights are not.

    `skipped_tensors` stand in its files and are no part of the forward pass.
    """

    name: str
    family: str
    has_weights: bool
    installed: bool
    supported: bool
    facts: FactsPart | None
    why_not: str | None
    source: str | None = None
    skipped_tensors: tuple[str, ...] = ()


class ModelsReport(Document):
    """The models that may be named, or the one that was asked for."""

    models: tuple[ModelEntry, ...]


def cards_report() -> CardsReport:
    """All shipped cards in order of name."""
    return CardsReport(cards=tuple(_summary(load_card(name)) for name in card_names()))


def card_detail(name_or_file: str) -> CardDetail:
    """One card, by name or file; ConfigError as `load_card`."""
    card = load_card(name_or_file)
    return CardDetail(summary=_summary(card), card=card)


def models_report() -> ModelsReport:
    """Every model on the shelf, those with weights first."""
    return ModelsReport(models=tuple(_shelf_entry(entry) for entry in list_models()))


def model_report(model: str) -> ModelsReport:
    """The one model that a name, directory, .gguf or config.json means; the errors of `open_checkpoint`."""
    path, skipped = Path(model), tuple[str, ...]()
    if model and path.is_dir() and not any(path.glob("*.safetensors*")):
        config, source, weights = read_config(path), str(path), False
    else:
        checkpoint = open_checkpoint(model)
        config, source, skipped = checkpoint.config, checkpoint.source, checkpoint.skipped
        weights = "random weights" not in source
    entry = ModelEntry(
        name=config.name,
        family=config.family,
        has_weights=weights,
        installed=True,
        supported=True,
        facts=_facts(describe(config)),
        why_not=None,
        source=source,
        skipped_tensors=skipped,
    )
    return ModelsReport(models=(entry,))


def _summary(card: CardSpec) -> CardSummary:
    return CardSummary(
        name=card.name,
        aliases=card.aliases,
        vendor=card.vendor,
        description=card.description,
        clock_hz=card.clock_hz,
        cores=card.cores.count,
        peak_ops_per_s={name: card.peak_ops_per_s(DTYPES[name]) for name in card.tensor.rate},
        hbm_capacity_bytes=card.hbm.capacity_bytes,
        hbm_reserved_bytes=card.hbm.reserved_bytes,
        hbm_bandwidth_bytes_per_s=card.hbm.bandwidth_bytes_per_s,
        link_ports=card.link.ports,
        link_bandwidth_bytes_per_s=card.link.bandwidth_bytes_per_s,
        node_topology=card.node.topology,
        node_cards=card.node.cards,
        l2_capacity_bytes=card.l2.capacity_bytes if card.l2 else None,
        tdp_w=card.power.tdp_w,
        kernels=card.kernels,
        rests_on={figure: weakest_evidence(card, paths) for figure, paths in _figures(card).items()},
        weakest_evidence=weakest(item.evidence for item in card.evidence.values()),
        assumed_numbers=sum(item.evidence == "assumed" for item in card.evidence.values()),
        numbers=len(card.evidence),
    )


def _figures(card: CardSpec) -> dict[str, tuple[str, ...]]:
    """The numbers behind each figure of a summary, by dotted path."""
    found: dict[str, tuple[str, ...]] = {
        "clock": ("clock_hz",),
        "cores": ("cores.count",),
        "hbm_capacity": ("hbm.capacity_bytes",),
        "hbm_bandwidth": ("hbm.bandwidth_bytes_per_s",),
        "link": ("link.bandwidth_bytes_per_s", "link.ports"),
    }
    if card.link.stated_bytes_per_s is not None:
        found["link"] = ("link.stated_bytes_per_s",)
    if card.l2 is not None:
        found["l2"] = ("l2.capacity_bytes",)
    if card.power.tdp_w is not None:
        found["tdp"] = ("power.tdp_w",)
    geometry = ("clock_hz", "cores.count", "tensor.rows", "tensor.columns", "tensor.depth")
    for name in card.tensor.rate:
        stated = name in card.tensor.stated_peak_ops_per_s
        found[name] = (f"tensor.stated_peak_ops_per_s.{name}",) if stated else (*geometry, f"tensor.rate.{name}")
    return found


def _shelf_entry(entry: ShelfEntry) -> ModelEntry:
    facts, why_not = None, None
    if entry.path is None:
        why_not = "its weights are not installed"
    else:
        try:
            config = (
                open_config(entry.path) if entry.has_weights else read_config(entry.path, entry.name, entry.path.name)
            )
            facts = _facts(describe(config))
        except SiltwinError as error:
            why_not = str(error)
    return ModelEntry(
        name=entry.name,
        family=entry.family,
        has_weights=entry.has_weights,
        installed=entry.path is not None,
        supported=entry.supported,
        facts=facts,
        why_not=why_not,
    )


def _facts(facts: ModelFacts) -> FactsPart:
    return FactsPart(**{name: value for name, value in asdict(facts).items() if name != "name"})


def _leaves(node: Any, path: str, whole: Container[str]) -> Iterator[tuple[str, Any]]:
    """The values of a tree by dotted path; what one entry of evidence speaks for stays in one piece."""
    if isinstance(node, dict) and path not in whole:
        for key, entry in node.items():
            yield from _leaves(entry, f"{path}.{key}" if path else str(key), whole)
    elif isinstance(node, list | tuple) and any(isinstance(entry, dict) for entry in node):
        for index, entry in enumerate(node):
            yield from _leaves(entry, f"{path}.{index}", whole)
    elif node not in (None, (), [], {}):
        yield path, node


def _evidence(card: CardSpec, path: str) -> Evidence | None:
    parts = path.split(".")
    return next(
        (card.evidence[key] for end in range(len(parts), 0, -1) if (key := ".".join(parts[:end])) in card.evidence),
        None,
    )
