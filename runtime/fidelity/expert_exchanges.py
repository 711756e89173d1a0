"""Exchanges of tokens with experts as DeepEP's READMEs time them, beside all-to-alls on an emulated cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...emulator.spec import CardSpec, load_card
from ...interconnect.cluster import ClusterSpec, load_cluster, resized
from ...isa.dtype import parse_dtype
from ...isa.errors import ConfigError
from ..fabric.emulate import Fabric
from ..fabric.messages import collective_of, message_of, whole_bytes
from .records import records
from .typed import PS_PER_US, Beside, h800

TEXTS = ("source", "mode", "dispatch_dtype", "combine_dtype")
COUNTS = ("ep", "tokens_per_rank", "hidden", "topk")
NODE = 8
# Bytes of an element, and of the scales of a token of so many elements: fp8 has one for 128, int8 one in all.
ELEMENT_BYTES = {"bf16": 2, "fp8": 1, "int8": 1}
SCALE_BYTES = {"bf16": 0.0, "fp8": 4 / 128, "int8": 0.0}
SYSTEMS = {"DeepEP V1": "h800-4x8", "DeepEP-Ascend": "cloudmatrix-384"}


@dataclass(frozen=True)
class Exchange:
    """Tokens on their way to experts (`dispatch`) or back: as many bytes a rank, and the figure that is stated.

    `microseconds` where the row has a time; else `gigabytes_per_s`, what crosses a rank's links.
    """

    name: str
    system: str
    ranks: int
    rank_bytes: int
    microseconds: float | None
    gigabytes_per_s: float


def stated_exchanges(path: Path) -> tuple[Exchange, ...]:
    """The rows of a CSV file that an all-to-all stands for, dispatch and combine each.

    These are low-latency ones, which send every token to each of its experts, and others within a node. Between nodes
    those send a token once to a node, and the rate they state is not of these bytes. Rows of other systems are left
    out; ConfigError names the line and what is wrong in it.
    """
    found = records(path, (*TEXTS, *COUNTS), "a table of exchanges")
    return tuple(own for record, where in found for own in _exchanges(record, where))


def _exchanges(record: Mapping[str, str], where: str) -> Iterator[Exchange]:
    system = next((own for name, own in SYSTEMS.items() if record["source"].startswith(name)), None)
    ranks, tokens, hidden, choices = (int(_number(record, name, where)) for name in COUNTS)
    if system is None or (record["mode"] != "low_latency" and ranks > NODE):
        return
    for way in ("dispatch", "combine"):
        kind = record[f"{way}_dtype"]
        if kind not in ELEMENT_BYTES:
            raise ConfigError(f"{where}: {way}_dtype={kind!r} is none of {', '.join(ELEMENT_BYTES)}")
        token_bytes = hidden * (ELEMENT_BYTES[kind] + SCALE_BYTES[kind])
        yield Exchange(
            name=f"{record['source']}, {record['mode']}, {ranks} ranks, {way}",
            system=system,
            ranks=ranks,
            rank_bytes=int(tokens * choices * token_bytes),
            microseconds=_number(record, f"{way}_us", where) if record[f"{way}_us"] else None,
            gigabytes_per_s=_number(record, f"{way}_GBps", where),
        )


def _number(record: Mapping[str, str], name: str, where: str) -> float:
    try:
        value = float(record[name])
    except (KeyError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{where}: {name}={record.get(name)!r} must be a number above 0")
    return value


def exchanges_beside(exchanges: Iterable[Exchange]) -> Iterator[Beside]:
    """Each exchange on its system's cluster: microseconds, or gigabytes a second of a rank's links."""
    for own in exchanges:
        cluster, card = _system(own)
        group = tuple(range(own.ranks))
        message = message_of(collective_of("all_to_all"), own.rank_bytes, parse_dtype("int8"), group)
        choice = cluster.choose("all_to_all", own.ranks, group, whole_bytes(message))
        found = Fabric(cluster, card).run(message, choice)
        if own.microseconds is not None:
            yield Beside(own.name, "us", own.microseconds, found.time_ps / PS_PER_US)
        else:
            yield Beside(own.name, "GB/s", own.gigabytes_per_s, found.busbw_bytes_per_s / 1e9)


def _system(own: Exchange) -> tuple[ClusterSpec, CardSpec]:
    cluster = load_cluster(own.system)
    if own.system == "cloudmatrix-384":
        return cluster, load_card("ascend-910c")
    return resized(cluster, max(NODE, own.ranks)), h800()
