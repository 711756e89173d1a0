"""Alerts: thresholds of a run that a user sets, and where each was crossed first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..emulator.evidence import parse_number
from ..emulator.hbm import Hbm
from ..isa.errors import ConfigError
from .report import AlertReport, RequestReport

if TYPE_CHECKING:
    from .run import RunState

AlertName = Literal["memory", "ttft", "tpot"]
ALERTS: tuple[AlertName, ...] = ("memory", "ttft", "tpot")
PS_PER_S = 10**12
FORM = "write memory=0.9 (a share of a card's capacity), ttft=2s or tpot=50ms"


@dataclass(frozen=True)
class Alert:
    """A threshold: `limit` is a share of a card's HBM (the reserve counts as taken), or seconds of a request."""

    name: AlertName
    limit: float


def parse_alert(text: str) -> Alert:
    """`memory=0.9`, `ttft=2s` or `tpot=50ms`; ConfigError for anything else."""
    key, _, value = (part.strip() for part in text.partition("="))
    name = next((known for known in ALERTS if known == key), None)
    if name is None:
        raise ConfigError(f"--alert {text!r} names none of {', '.join(ALERTS)}; {FORM}")
    try:
        limit = parse_number(value, "count" if name == "memory" else "picoseconds")
    except ValueError as error:
        raise ConfigError(f"--alert {text!r}: {error}; {FORM}") from None
    if name == "memory":
        if not 0 < limit <= 1:
            raise ConfigError(f"--alert {text!r}: a share of a card's capacity is above 0 and at most 1; {FORM}")
        return Alert(name, limit)
    if limit <= 0 or not re.search("[a-z]", value):
        raise ConfigError(f"--alert {text!r}: a time is above 0 and has a unit, such as ms; {FORM}")
    return Alert(name, limit / PS_PER_S)


def alert_reports(state: RunState, requests: Sequence[RequestReport]) -> tuple[AlertReport, ...]:
    """What became of every alert of a run."""
    return tuple(_report(state, requests, parse_alert(text)) for text in state.prepared.job.alerts)


def _report(state: RunState, requests: Sequence[RequestReport], alert: Alert) -> AlertReport:
    if alert.name == "memory":
        return _memory(state, alert)
    times = [request.ttft_s if alert.name == "ttft" else request.tpot_s for request in requests]
    known = {index: value for index, value in enumerate(times) if value is not None}
    crossed = [index for index, value in known.items() if value > alert.limit]
    told = state.first_token_ps if alert.name == "ttft" else state.last_token_ps
    first = min(crossed, key=lambda index: (told[index], index), default=None)
    now_ps = None if first is None else told[first]
    ended = [record.step.index for record in state.records if record.end_ps == now_ps]
    return AlertReport(
        name=alert.name,
        limit=alert.limit,
        most=max(known.values(), default=0.0),
        crossed=len(crossed),
        request=first,
        step=ended[0] if ended else None,
        time_ps=now_ps,
    )


def _memory(state: RunState, alert: Alert) -> AlertReport:
    hbms, most = state.memory.hbm, 0.0
    crossed: dict[int, int] = {}
    known: dict[int, tuple[float, int | None]] = {}
    for rank in sorted(hbms):
        hbm = hbms[rank]
        if id(hbm) not in known:
            known[id(hbm)] = _filled(hbm, alert.limit)
        share, now_ps = known[id(hbm)]
        most = max(most, share)
        if now_ps is not None:
            crossed[rank] = now_ps
    card = min(crossed, key=lambda rank: (crossed[rank], rank), default=None)
    at_ps = None if card is None else crossed[card]
    began = [record.step.index for record in state.records if record.start_ps == at_ps and at_ps]
    return AlertReport(
        name=alert.name,
        limit=alert.limit,
        most=most,
        crossed=len(crossed),
        card=card,
        step=began[0] if began else None,
        time_ps=at_ps,
    )


def _filled(hbm: Hbm, limit: float) -> tuple[float, int | None]:
    """The largest share of a card's HBM that was taken, and when more than `limit` of it first was."""
    taken = most = hbm.reserved_bytes
    first: int | None = None
    for now_ps, delta, _ in hbm.history():
        taken += delta
        most = max(most, taken)
        if first is None and taken > limit * hbm.capacity_bytes:
            first = now_ps
    return most / hbm.capacity_bytes, first
