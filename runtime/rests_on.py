"""What the figures of a report rest on: which of a card's numbers time and memory read, and what they are worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..emulator.evidence import USER_SET, Evidence
from ..emulator.spec import CardSpec
from ..interconnect.cluster import ClusterSpec
from ..interconnect.evidence import EvidenceKind, weakest
from ..isa.errors import GateError
from .report import EvidenceReport

TIME_SECTIONS = (
    "native",
    "clock_hz",
    "cores",
    "tensor",
    "vector",
    "sram",
    "l2",
    "hbm",
    "dma",
    "dispatch",
    "host",
    "tuning",
    "power",
)
LINK_SECTIONS = ("link", "node")
POWER = "power"  # what energy and temperatures are computed from, and the clock that products sustain
OF_HEAT = tuple(
    f"{POWER}.{name}"
    for name in (
        "energy_j_per_vector_op",
        "energy_j_per_link_byte",
        "thermal_resistance_k_per_w",
        "thermal_capacity_j_per_k",
        "ambient_c",
        "limit_c",
    )
)
MEMORY_PATHS = ("hbm.capacity_bytes", "hbm.reserved_bytes")
# Numbers in those sections that no time is computed from.
TIMELESS = (*MEMORY_PATHS, *OF_HEAT, "l2.capacity_bytes", "tensor.stated_peak_ops_per_s", "node.cards", "link.ports")
# What a named cluster says in the card's place.
OF_THE_CLUSTER = ("node", "link.bandwidth_bytes_per_s", "link.latency_ps", "tuning.collective")
BETWEEN_CARDS = ("dispatch.link_ps", "tuning.collective")
NUMBERS = "numbers."  # rules of rounding: no figure, but every result
LISTED = 6  # numbers named in an error
TILED_SRAM = ("operand", "accumulator")  # the levels whose size decides which tiles fit


def evidence_reports(
    card: CardSpec, cluster: ClusterSpec, cards: int, named: bool, extrapolated: bool = False
) -> tuple[EvidenceReport, ...]:
    """What the times and the bytes of a job on `cards` cards rest on; `named`: the cluster is not the card's own.

    `extrapolated`: some instruction was of sizes that the card's calibration had not seen.
    """
    time = dict(_time(card, cards, named))
    if cards > 1:
        time[f"cluster {cluster.name}"] = Evidence(evidence=cluster.weakest_evidence(), source=cluster.name)
    memory = {path: card.evidence_of(path) for path in MEMORY_PATHS}
    if card.evidence.get("native") == USER_SET:  # what is composed needs room between its parts
        memory["native"] = USER_SET
    return _figure("time", time).model_copy(update={"extrapolated": extrapolated}), _figure("memory", memory)


def weakest_power(card: CardSpec) -> EvidenceKind:
    """What the card's numbers of energy and heat are worth."""
    return weakest(evidence.evidence for path, evidence in card.evidence.items() if path.partition(".")[0] == POWER)


def refuse_weak(figures: Iterable[EvidenceReport]) -> None:
    """What `--strict` asks: GateError for figures that rest on assumed numbers or lie outside what was calibrated."""
    faults = []
    for said in figures:
        weak = (*said.set_by_user, *said.assumed)
        if said.extrapolated:
            faults.append(f"{said.figure} lies outside what was calibrated")
        elif said.weakest == "assumed":
            more = f" and {len(weak) - LISTED} more" if len(weak) > LISTED else ""
            faults.append(f"{said.figure} rests on assumed numbers: {', '.join(weak[:LISTED])}{more}")
    if faults:
        raise GateError(
            f"--strict: {'; '.join(faults)}. Give a card whose numbers are measured, calibrated or of a data sheet, "
            "or leave --strict out"
        )


def settings_without_effect(card: CardSpec, cards: int, named: bool) -> tuple[str, ...]:
    """The numbers that the user set and no figure of such a job reads."""
    read = {*dict(_time(card, cards, named)), *MEMORY_PATHS}
    return tuple(path for path in user_set(card) if path not in read and not path.startswith((NUMBERS, POWER)))


def learned_off(card: CardSpec) -> list[str]:
    """What a calibration learned that does not count, as numbers of the card were changed; nothing where it counts."""
    kinds = card.calibration.kinds if card.calibration is not None else {}
    off = [kind for kind, told in kinds.items() if told.is_off]
    if not off:
        return []
    learned = f"what was learned of {', '.join(off)} beyond the fitted constants"
    return [f"{learned} is off: this is not the card that was measured"]


def user_set(card: CardSpec) -> dict[str, str]:
    """The value of every number that the user set, by dotted path."""
    found = {}
    for path, evidence in card.evidence.items():
        if evidence == USER_SET:
            value: object = card.model_dump(mode="json", exclude={"evidence"})
            for part in path.split("."):
                value = value[int(part)] if isinstance(value, list) else value[part]  # type: ignore[index]
            found[path] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found


def _time(card: CardSpec, cards: int, named: bool) -> Iterator[tuple[str, Evidence]]:
    sections = TIME_SECTIONS + (LINK_SECTIONS if cards > 1 else ())
    idle = TIMELESS + (OF_THE_CLUSTER if named else ()) + (() if cards > 1 else BETWEEN_CARDS)
    for path, evidence in card.evidence.items():
        parts = path.split(".")
        if parts[0] not in sections or any(path == other or path.startswith(f"{other}.") for other in idle):
            continue
        if parts[0] == "sram" and len(parts) > 1 and card.sram[int(parts[1])].role not in TILED_SRAM:
            continue
        yield path, evidence


def _figure(name: str, found: Mapping[str, Evidence]) -> EvidenceReport:
    own = tuple(path for path, evidence in found.items() if evidence == USER_SET)
    assumed = tuple(path for path, item in found.items() if item.evidence == "assumed" and item != USER_SET)
    return EvidenceReport(
        figure=name, weakest=weakest(item.evidence for item in found.values()), assumed=assumed, set_by_user=own
    )
