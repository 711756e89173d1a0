"""What in a card cannot be, or contradicts itself: each finding says where, what stands there, and what should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from ..interconnect.kinds import KINDS
from ..isa.dtype import BF16, DTYPES
from ..isa.errors import SiltwinError
from ..isa.work import MatmulShape, Unit, Work
from .spec import CardSpec, peak_faults
from .units.demand import demand

Severity = Literal["error", "warning"]
SLOWEST_CLOCK_HZ, FASTEST_CLOCK_HZ = 50_000_000, 10**10
LONG_DISPATCH_PS, IMPOSSIBLE_DISPATCH_PS = 50 * 10**6, 10**10
LONG_LATENCY_PS = 100 * 10**6
SHORTEST_READ_S, LONGEST_READ_S = 0.001, 10.0  # of the whole HBM
MOST_L2_TO_HBM = 50
SUSTAINED = 0.6  # of the full clock: large products of a card whose peak takes the power of more than TDP / this
LEAST_SUSTAINED = 0.25
TOLERANCE = 0.02


class Finding(NamedTuple):
    """One thing that is wrong (an error) or odd (a warning) at a dotted path; `value` and `expected` in words."""

    severity: Severity
    path: str
    value: str
    expected: str
    why: str


Check = Callable[[CardSpec], Iterator[Finding]]


def check_card(card: CardSpec) -> tuple[Finding, ...]:
    """Everything found in a card, errors first; none for a sound one."""
    found = [finding for check in CHECKS for finding in check(card)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "error"))


def _tera(value: float) -> str:
    return f"{value / 1e12:,.1f} T"


def _giga(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.1f} GB/s"


def _clock(card: CardSpec) -> Iterator[Finding]:
    clock = card.clock_hz
    if not SLOWEST_CLOCK_HZ <= clock <= FASTEST_CLOCK_HZ:
        limits = f"{SLOWEST_CLOCK_HZ / 1e9:g} to {FASTEST_CLOCK_HZ / 1e9:g} GHz"
        yield Finding("error", "clock_hz", f"{clock / 1e9:g} GHz", limits, "no accelerator has such a clock")
    for index, (above, step) in enumerate(pairwise((clock, *card.throttle_hz))):
        if step >= above:
            yield Finding(
                "error", f"throttle_hz.{index}", f"{step / 1e9:g} GHz", f"below {above / 1e9:g} GHz",
                "steps go down from the clock, highest first",
            )  # fmt: skip


def _peaks(card: CardSpec) -> Iterator[Finding]:
    for fault in peak_faults(card):
        yield Finding(
            "error", fault.path, _tera(fault.stated), _tera(fault.found),
            "cores.count x rows x columns x depth x rate x 2 x clock_hz gives another peak",
        )  # fmt: skip
    lanes = 2 * card.cores.count * card.vector.lanes_of(BF16.itemsize_bytes) * card.clock_hz
    if BF16.name in card.tensor.rate and lanes > (peak := card.peak_ops_per_s(BF16)):
        yield Finding(
            "warning", "vector.lanes.2", _tera(lanes), f"below {_tera(peak)}", "lanes outdo the matrix units in bf16"
        )  # fmt: skip


def _rates(card: CardSpec) -> Iterator[Finding]:
    bits = {name: DTYPES[name].bits for name in card.tensor.rate}
    for name, rate in card.tensor.rate.items():
        wider = {other: card.tensor.rate[other] for other in bits if bits[other] > bits[name]}
        other = max(wider, key=wider.__getitem__, default=name)
        if rate < card.tensor.rate[other]:
            yield Finding(
                "warning", f"tensor.rate.{name}", f"{rate:g}", f"{card.tensor.rate[other]:g} or more, as {other}",
                "narrower elements are usually no slower",
            )  # fmt: skip
        base = card.tensor.rate.get(BF16.name)
        if base is not None and bits[name] < BF16.bits and rate / base > BF16.bits / bits[name]:
            yield Finding(
                "warning", f"tensor.rate.{name}", f"{rate:g}", f"{base * BF16.bits / bits[name]:g} or less",
                f"over bf16 a type of {bits[name]} bits usually gains no more than its width",
            )  # fmt: skip


def _lanes(card: CardSpec) -> Iterator[Finding]:
    for (narrow, many), (wide, few) in pairwise(sorted(card.vector.lanes.items())):
        if many < few:
            yield Finding(
                "error", f"vector.lanes.{narrow}", str(many), f"{few} or more, as for {wide} bytes",
                "lanes for narrower elements are never fewer",
            )  # fmt: skip
    if (found := card.vector.exponentials_per_cycle) > (lanes := card.vector.lanes_of(4)):
        yield Finding(
            "warning", "vector.exponentials_per_cycle", str(found), f"{lanes} or less",
            "an exponential is slower than other operations of 4 bytes",
        )  # fmt: skip


def _hbm(card: CardSpec) -> Iterator[Finding]:
    hbm = card.hbm
    read_s = hbm.capacity_bytes / hbm.bandwidth_bytes_per_s
    if not SHORTEST_READ_S <= read_s <= LONGEST_READ_S:
        yield Finding(
            "error", "hbm.bandwidth_bytes_per_s", _giga(hbm.bandwidth_bytes_per_s),
            f"{_giga(hbm.capacity_bytes / LONGEST_READ_S)} to {_giga(hbm.capacity_bytes / SHORTEST_READ_S)}",
            f"all {hbm.capacity_bytes / 2**30:.4g} GiB would be read in {read_s:.3g} s; is a unit wrong?",
        )  # fmt: skip
    if hbm.reserved_bytes > hbm.capacity_bytes / 2:
        yield Finding(
            "warning", "hbm.reserved_bytes", f"{hbm.reserved_bytes / 2**30:.4g} GiB",
            f"under half of {hbm.capacity_bytes / 2**30:.4g} GiB", "little is left for programs",
        )  # fmt: skip
    if hbm.attainable_fraction < 0.5:
        yield Finding(
            "warning", "hbm.attainable_fraction", f"{hbm.attainable_fraction:g}", "0.5 to 1",
            "long streams of any memory reach more than half of its peak",
        )  # fmt: skip


def _loads(card: CardSpec) -> Iterator[Finding]:
    """Bytes a cycle against bandwidth: what cores, L2 and copy engines can take of the HBM's."""
    needed = card.hbm.attainable_bytes_per_s
    loads = card.cores.count * card.cores.load_bytes_per_cycle * card.clock_hz
    if loads < needed:
        least = -(-needed // (card.cores.count * card.clock_hz))
        yield Finding(
            "error", "cores.load_bytes_per_cycle", str(card.cores.load_bytes_per_cycle), f"{least} or more",
            f"all cores load {_giga(loads)}, less than the {_giga(needed)} that HBM gives",
        )  # fmt: skip
    copies = 2 * card.dma.engines * card.dma.bytes_per_cycle * card.clock_hz  # each byte is read and written
    if copies < needed:
        yield Finding(
            "warning", "dma.bytes_per_cycle", str(card.dma.bytes_per_cycle),
            f"{-(-needed // (2 * card.dma.engines * card.clock_hz))} or more",
            f"all engines read and write {_giga(copies)}, less than the {_giga(needed)} that HBM gives",
        )  # fmt: skip


def _l2(card: CardSpec) -> Iterator[Finding]:
    if card.l2 is None:
        return
    found, hbm = card.l2.bandwidth_bytes_per_s, card.hbm.attainable_bytes_per_s
    path = "l2.bandwidth_bytes_per_s"
    if found < hbm:
        yield Finding(
            "error", path, _giga(found), f"{_giga(hbm)} or more", "what HBM gives passes through L2, which is no slower"
        )
    elif found > MOST_L2_TO_HBM * hbm:
        yield Finding(
            "warning", path, _giga(found), f"{_giga(MOST_L2_TO_HBM * hbm)} or less",
            f"over {MOST_L2_TO_HBM} times what HBM gives; is a unit wrong?",
        )  # fmt: skip
    loads = card.cores.count * card.cores.load_bytes_per_cycle * card.clock_hz
    if found > TOLERANCE * loads + loads:
        yield Finding(
            "warning", path, _giga(found), f"{_giga(loads)} or less", "more than cores.load_bytes_per_cycle can take"
        )
    if card.l2.capacity_bytes >= card.hbm.capacity_bytes:
        yield Finding(
            "error", "l2.capacity_bytes", f"{card.l2.capacity_bytes / 2**30:.4g} GiB",
            f"below {card.hbm.capacity_bytes / 2**30:.4g} GiB", "a cache is smaller than the memory behind it",
        )  # fmt: skip


def _tiles(card: CardSpec) -> Iterator[Finding]:
    """A little matrix product of each element type, as a program would ask it."""
    refused: dict[str, str] = {}
    for name in card.tensor.rate:
        try:
            demand(Work(Unit.TENSOR, dtype=DTYPES[name], shape=MatmulShape(64, 64, 256)), card)
        except SiltwinError as error:
            refused[name] = str(error)
    if refused:
        sizes = ", ".join(f"{level.name} {level.capacity_bytes / 1024:g} KiB" for level in card.sram)
        yield Finding("error", "sram", sizes, f"room for a tile of {', '.join(refused)}", next(iter(refused.values())))


def _waits(card: CardSpec) -> Iterator[Finding]:
    for unit in Unit:
        waits = card.dispatch.of(unit)
        if waits > LONG_DISPATCH_PS:
            yield Finding(
                "error" if waits > IMPOSSIBLE_DISPATCH_PS else "warning", f"dispatch.{unit.value}_ps",
                f"{waits / 1e6:g} us", f"{LONG_DISPATCH_PS / 1e6:g} us or less",
                "an instruction that begins so late outlasts its work; is a unit wrong?",
            )  # fmt: skip
    latencies = {"hbm": card.hbm.latency_ps, "dma": card.dma.latency_ps, "link": card.link.latency_ps}
    for part, latency in latencies.items():
        if latency > LONG_LATENCY_PS:
            yield Finding(
                "warning", f"{part}.latency_ps", f"{latency / 1e6:g} us", f"{LONG_LATENCY_PS / 1e6:g} us or less",
                "no memory or wire on a board is so far; is a unit wrong?",
            )  # fmt: skip


def _links(card: CardSpec) -> Iterator[Finding]:
    link, node = card.link, card.node
    whole = link.ports * link.bandwidth_bytes_per_s
    stated = link.stated_bytes_per_s
    if stated is not None and abs(whole - stated) > TOLERANCE * stated:
        yield Finding(
            "error", "link.stated_bytes_per_s", _giga(stated), _giga(whole), "ports x bandwidth_bytes_per_s differs"
        )
    if whole > card.hbm.bandwidth_bytes_per_s:
        yield Finding(
            "warning", "link.bandwidth_bytes_per_s", _giga(link.bandwidth_bytes_per_s),
            f"{_giga(card.hbm.bandwidth_bytes_per_s / max(1, link.ports))} or less",
            "all ports together outrun the HBM that feeds them",
        )  # fmt: skip
    if node.topology not in KINDS:
        yield Finding(
            "error", "node.topology", node.topology, f"one of {', '.join(sorted(KINDS))}", "there is no such topology"
        )
    elif node.cards > (most := KINDS[node.topology].max_cards):
        yield Finding(
            "error", "node.cards", str(node.cards), f"{most} or less", f"the most that a {node.topology} is built for"
        )
    peers = {"full_mesh": node.cards - 1, "ring": min(2, node.cards - 1)}.get(node.topology, min(1, node.cards - 1))
    if node.ports_to_peer * peers > link.ports:
        yield Finding(
            "error", "node.ports_to_peer", str(node.ports_to_peer),
            f"{link.ports} ports for {peers} neighbours of a {node.topology}", "more ports are wired than there are",
        )  # fmt: skip
    if card.host.bandwidth_bytes_per_s > card.hbm.bandwidth_bytes_per_s:
        yield Finding(
            "warning", "host.bandwidth_bytes_per_s", _giga(card.host.bandwidth_bytes_per_s),
            f"below {_giga(card.hbm.bandwidth_bytes_per_s)}", "the host's link outruns the card's own memory",
        )  # fmt: skip


def _power(card: CardSpec) -> Iterator[Finding]:
    """Energy x peak against the TDP: what a card may draw that no clock step could bring down."""
    power, tdp = card.power, card.power.tdp_w
    if tdp is None:
        return
    idle = power.idle_w or 0.0
    if idle >= tdp:
        yield Finding(
            "error", "power.idle_w", f"{idle:g} W", f"below {tdp:g} W", "idle takes all that the card may draw"
        )
        return
    drawn = {
        f"power.energy_j_per_op.{name}": joules * card.peak_ops_per_s(DTYPES[name])
        for name, joules in power.energy_j_per_op.items()
        if name in card.tensor.rate
    }
    if power.energy_j_per_hbm_byte is not None:
        drawn["power.energy_j_per_hbm_byte"] = power.energy_j_per_hbm_byte * card.hbm.attainable_bytes_per_s
    path, watts = max(drawn.items(), key=lambda entry: entry[1], default=("", 0.0))
    if watts and (share := (tdp - idle) / watts) < SUSTAINED:
        yield Finding(
            "error" if share < LEAST_SUSTAINED else "warning", path, f"{watts:,.0f} W at the full rate",
            f"{(tdp - idle) / SUSTAINED:,.0f} W or less",
            f"{tdp:g} W less {idle:g} W idle sustain only {share:.0%} of it",
        )  # fmt: skip


def _heat(card: CardSpec) -> Iterator[Finding]:
    power = card.power
    ambient, limit = power.ambient_c, power.limit_c
    if ambient is None or limit is None:
        return
    if ambient >= limit:
        yield Finding(
            "error", "power.ambient_c", f"{ambient:g} C", f"below {limit:g} C", "the card is too hot when off"
        )
        return
    if power.idle_w and power.thermal_resistance_k_per_w:
        idle_c = ambient + power.idle_w * power.thermal_resistance_k_per_w
        if idle_c >= limit:
            yield Finding(
                "error", "power.thermal_resistance_k_per_w", f"{power.thermal_resistance_k_per_w:g} K/W",
                f"below {(limit - ambient) / power.idle_w:.3g} K/W", f"the idle card is at {idle_c:.0f} C",
            )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    _clock, _peaks, _rates, _lanes, _hbm, _loads, _l2, _tiles, _waits, _links, _power, _heat,
)  # fmt: skip
