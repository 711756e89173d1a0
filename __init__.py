"""siltwin: a hardware emulator and digital twin of AI accelerator cards."""

from __future__ import annotations

import importlib
from typing import Any

_DOORS = {"Twin": "siltwin.runtime.twin", "Report": "siltwin.runtime.report"}
__all__ = ["Report", "Twin"]  # noqa: F822 - they come through the door below, so that the command line starts fast


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_DOORS[name]), name)
