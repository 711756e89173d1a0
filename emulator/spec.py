"""CardSpec: one accelerator card as data, every number with its evidence, read from YAML and changed key by key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from ..interconnect.evidence import EvidenceKind, weakest
from ..isa.dtype import DTYPES, DType
from ..isa.errors import ConfigError, UnsupportedError
from ..isa.work import Unit
from .calibrated import Calibration
from .calibration_file import with_learned
from .card_family import CARDS, card_names, read_card_tree
from .card_parts import (
    L2,
    CardPart,
    Cores,
    Dispatch,
    Dma,
    HbmSpec,
    HostLink,
    LinkPorts,
    Name,
    Node,
    NumberRules,
    Package,
    Power,
    Queue,
    Sram,
    TensorUnit,
    VectorUnit,
)
from .evidence import USER_SET, Evidence, Hertz, split_evidence
from .native import EVERYTHING, NativeEntry, native_instructions
from .tuning import UNTOLD, Tuning

PEAK_TOLERANCE = 0.02
LISTED_KEYS = 12
OPEN_MAPPINGS = ("tensor.rate", "tensor.stated_peak_ops_per_s", "vector.lanes", "power.energy_j_per_op")


class CardSpec(CardPart):
    """One card (one die, where a package holds several), with the evidence of every number by dotted path.

    Numbers are plain ints and floats in the unit of their name: `card.hbm.bandwidth_bytes_per_s`. Two specs are equal,
    and hash alike, when every value and all evidence are equal.
    """

    name: Name
    aliases: tuple[Name, ...] = ()
    vendor: str
    description: str
    package: Package
    node: Node
    kernels: Name
    native: tuple[NativeEntry, ...] = EVERYTHING
    clock_hz: Hertz
    throttle_hz: tuple[Hertz, ...] = ()
    queues: tuple[Queue, ...]
    cores: Cores
    tensor: TensorUnit
    vector: VectorUnit
    sram: tuple[Sram, ...]
    l2: L2 | None = None
    hbm: HbmSpec
    dma: Dma
    dispatch: Dispatch
    link: LinkPorts
    host: HostLink
    power: Power = Power()
    tuning: Tuning = Tuning()
    calibration: Calibration | None = None
    numbers: NumberRules
    evidence: dict[str, Evidence] = Field(repr=False)

    def queue_for(self, unit: Unit) -> str:
        """The name of the first queue that may use this unit."""
        return next(queue.name for queue in self.queues if unit in queue.units)

    def sram_bytes(self, role: str) -> int:
        """Bytes a core has for operands, accumulators or vectors."""
        return sum(level.capacity_bytes for level in self.sram if level.role == role)

    def native_dtypes(self, unit: Unit) -> tuple[str, ...]:
        """The element types this unit computes in; units that only move bytes take them all."""
        if unit is Unit.TENSOR:
            return tuple(self.tensor.rate)
        return self.vector.dtypes if unit is Unit.VECTOR else tuple(DTYPES)

    def peak_ops_per_s(self, dtype: DType) -> int:
        """What all cores' tensor units do at the card's clock; UnsupportedError when they have no such dtype."""
        if dtype.name not in self.tensor.rate:
            native = ", ".join(self.tensor.rate)
            raise UnsupportedError(f"{self.name} has no tensor unit for {dtype.name}; native: {native}")
        return int(self.cores.count * self.tensor.ops_per_cycle(dtype.name) * self.clock_hz)

    @cached_property
    def instructions(self) -> frozenset[str]:
        """The mnemonics that the card executes itself; all others are composed of these, or refused."""
        return native_instructions(self.native)

    @property
    def native_evidence(self) -> EvidenceKind:
        """What the list of native instructions rests on; a card that states none is assumed to have all."""
        return self.evidence["native"].evidence if "native" in self.evidence else "assumed"

    def evidence_of(self, path: str) -> Evidence:
        """What the number (or the marked list or mapping) at a dotted path rests on; ConfigError where there is none.

        The nearest mark speaks: the number's own, else that of the list or mapping it stands in.
        """
        if path not in self.evidence and path not in _number_paths(self):
            raise ConfigError(_no_such_key(self, path))
        while path not in self.evidence:
            path = path.rpartition(".")[0]
        return self.evidence[path]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every value and all evidence: equal for equal cards, on every machine."""
        values = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(values.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, CardSpec) and self.fingerprint == other.fingerprint

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = [queue.name for queue in self.queues]
        if len(set(names)) < len(names):
            raise ValueError(f"queues: the names {names} are not all different")
        for unit in Unit:
            if not any(unit in queue.units for queue in self.queues):
                raise ValueError(f"queues: no queue may use the unit {unit.value}; add it to one queue's units")
        for role in ("operand", "accumulator"):
            if not self.sram_bytes(role):
                raise ValueError(f"sram: no level has the role {role}, which the tensor unit needs")
        bare = [path for path in _numbers(self) if not _covered(path, self.evidence)]
        if self.native != EVERYTHING and "native" not in self.evidence:
            bare.append("native")
        if bare:
            raise ValueError(f"{bare[0]} has no evidence; write {{value: ..., evidence: ..., source: ...}}")
        return self


def load_card(name_or_path: str | Path) -> CardSpec:
    """The shipped card of this name or alias, or the card of a YAML file (a path that ends in .yaml or .yml).

    ConfigError names the file and the field when anything in it is missing, unknown, of a wrong type or inconsistent.
    """
    text = str(name_or_path)
    if Path(text).suffix.lower() in {".yaml", ".yml"}:
        return _peaks_agree(read_card(text), text)
    if text in card_names():
        return _shipped_card(text)
    shipped = _shipped()
    if text.lower() not in shipped:
        near = get_close_matches(text.lower(), shipped, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"unknown card {text!r}{hint or ';'} known: {', '.join(card_names())}; a file's name must end in .yaml"
        )
    return shipped[text.lower()]


def read_card(path: str | Path) -> CardSpec:
    """The card of a YAML file, its stated peaks not yet held against its geometry; ConfigError as `load_card`."""
    card = _card_of(read_card_tree(Path(path)), str(path))
    return card if card.calibration is None else _learned(card, Path(path))


def _learned(card: CardSpec, path: Path) -> CardSpec:
    """A calibrated card with what stands beside its file."""
    assert card.calibration is not None
    return CardSpec.model_validate({**dict(card), "calibration": with_learned(card.calibration, path)})


@lru_cache(maxsize=64)
def _shipped_card(name: str) -> CardSpec:
    return _peaks_agree(_card_of(read_card_tree(CARDS / f"{name}.yaml"), f"{name}.yaml"), f"{name}.yaml")


@lru_cache(maxsize=1)
def _shipped() -> dict[str, CardSpec]:
    cards = map(_shipped_card, card_names())
    found: dict[str, CardSpec] = {}
    for card in cards:
        for name in (card.name, *card.aliases):
            assert name not in found, f"the card name {name} belongs to {found[name].name} and {card.name}"
            found[name] = card
    return found


def override(card: CardSpec, changes: Mapping[str, str]) -> CardSpec:
    """The card with the values at dotted keys replaced, as `--set hbm.bandwidth_bytes_per_s=3.2e12` does.

    Text is read by the field's own type and unit ("64GiB", "1.8GHz"); a list is written with commas. A number so set
    is `assumed`, "set by the user". The vendor's stated peak is not held against a changed card. ConfigError for an
    unknown key (with the legal keys near it) or an illegal value.
    """
    tree, evidence = _tree(card), dict(card.evidence)
    legal = _settable(tree)
    for key, text in changes.items():
        parent, _, last = key.rpartition(".")
        if key not in legal and parent not in OPEN_MAPPINGS:
            raise ConfigError(_no_such_key(card, key))
        listed = isinstance(legal.get(key), list)
        node: Any = tree
        for part in parent.split(".") if parent else ():
            node = node[int(part)] if isinstance(node, list) else node[part]
        value = [part.strip() for part in text.split(",") if part.strip()] if listed else text
        node[int(last) if isinstance(node, list) else last] = value
        evidence[key] = USER_SET
    return _validated({**tree, "evidence": evidence}, f"{card.name} with {', '.join(changes)} set")


def weakest_evidence(card: CardSpec, paths: Iterable[str]) -> EvidenceKind:
    """The weakest evidence among the numbers at these dotted paths."""
    return weakest(card.evidence_of(path).evidence for path in paths)


def _card_of(tree: dict[str, Any], where: str) -> CardSpec:
    if "evidence" in tree:
        raise ConfigError(f"{where}: evidence stands beside each number, not at the top")
    values, found = split_evidence(tree)
    return _validated({**values, "evidence": {"tuning": UNTOLD, **found}}, where)


class PeakFault(NamedTuple):
    """A stated peak that the geometry does not give, both in operations a second."""

    path: str
    stated: int
    found: int


def peak_faults(card: CardSpec) -> Iterator[PeakFault]:
    """The stated peaks that are further than `PEAK_TOLERANCE` from what cores, array, rate and clock give."""
    for name, stated in card.tensor.stated_peak_ops_per_s.items():
        peak = card.peak_ops_per_s(DTYPES[name]) if name in card.tensor.rate else 0
        if abs(peak - stated) > PEAK_TOLERANCE * stated:
            yield PeakFault(f"tensor.stated_peak_ops_per_s.{name}", stated, peak)


def _peaks_agree(card: CardSpec, where: str) -> CardSpec:
    for fault in peak_faults(card):
        raise ConfigError(
            f"{where}: {fault.path}={fault.stated:.4g}, but cores.count x rows x columns x "
            f"depth x rate x 2 x clock_hz gives {fault.found:.4g}, over {PEAK_TOLERANCE:.0%} away; correct one of them"
        )
    return card


def _validated(tree: dict[str, Any], where: str) -> CardSpec:
    try:
        return CardSpec.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_explain(error)}") from error


def _explain(error: ValidationError) -> str:
    lines = []
    for entry in error.errors()[:3]:
        place = ".".join(str(part) for part in entry["loc"])
        message = entry["msg"].removeprefix("Value error, ")
        if entry["type"] == "missing":
            message = "this field is missing"
        elif entry["type"] == "extra_forbidden":
            message = "there is no such field"
        elif entry["type"] != "value_error":
            message = f"{message}, not {str(entry['input'])[:60]!r}"
        lines.append(f"{place}: {message}" if place else message)
    left = error.error_count() - len(lines)
    return "; ".join(lines) + (f"; and {left} more" if left > 0 else "")


def _tree(card: CardSpec) -> dict[str, Any]:
    return card.model_dump(mode="json", exclude={"evidence"})


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        pairs = [(str(key), entry) for key, entry in node.items()]
    elif isinstance(node, list):
        pairs = [(str(index), entry) for index, entry in enumerate(node)]
    else:
        yield path, node
        return
    for key, entry in pairs:
        yield from _leaves(entry, f"{path}.{key}" if path else key)


def _numbers(card: CardSpec) -> list[str]:
    return [path for path, value in _leaves(_tree(card)) if type(value) in (int, float)]


@lru_cache(maxsize=64)
def _number_paths(card: CardSpec) -> frozenset[str]:
    return frozenset(_numbers(card))


def _covered(path: str, evidence: Mapping[str, Evidence]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in evidence for length in range(1, len(parts) + 1))


def _settable(tree: dict[str, Any]) -> dict[str, Any]:
    """Every dotted key that holds one value or a list of plain values, with what it holds now.

    What a card says of its calibration is no setting: it is what was found.
    """
    keys: dict[str, Any] = {}
    for path, value in _leaves({key: held for key, held in tree.items() if key != "calibration"}):
        parent, _, last = path.rpartition(".")
        keys[path] = value
        if last.isdigit() and parent not in OPEN_MAPPINGS:
            keys[parent] = []
    keys.setdefault("throttle_hz", [])
    keys.setdefault("native", [])
    return keys


def _no_such_key(card: CardSpec, key: str) -> str:
    legal = list(_settable(_tree(card)))
    near = get_close_matches(key, legal, n=LISTED_KEYS, cutoff=0.6)
    section = key.split(".")[0]
    near += [path for path in legal if path.split(".")[0] == section and path not in near]
    shown = near[:LISTED_KEYS] or sorted({path.split(".")[0] for path in legal})
    return f"{card.name} has no number or setting {key!r}; near it: {', '.join(shown)}"
