"""Figures by matplotlib, which is loaded only here and only when something is drawn."""

from __future__ import annotations

from typing import Any

from ..isa.errors import ConfigError


def figure_of(width: float, height: float) -> Any:
    """An empty figure of this many inches; ConfigError says what to install where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("drawing this needs matplotlib: pip install 'siltwin[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")
