"""The door for modules that are slow to load and seldom needed: they load when something of them is first read."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def late(name: str, package: str | None = None) -> Any:
    """The module of this name (relative to `package` where it begins with a dot), loaded at its first use."""
    name = importlib.util.resolve_name(name, package)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no module {name}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
