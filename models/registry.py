"""The registry of families: every module in families/ that holds a FAMILY, found by looking."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from . import families
from .family import Family


@cache
def known_families() -> dict[str, Family]:
    """Families by `model_type`, in alphabetical order. A name claimed twice is our bug and stops the import."""
    found: dict[str, Family] = {}
    for module in sorted(pkgutil.iter_modules(families.__path__), key=lambda module: module.name):
        family = getattr(importlib.import_module(f"{families.__name__}.{module.name}"), "FAMILY", None)
        if isinstance(family, Family):
            assert family.name not in found, f"model_type {family.name} is claimed by two files in families/"
            found[family.name] = family
    return dict(sorted(found.items()))


def family_of_gguf(architecture: str) -> Family | None:
    """The family that llama.cpp files of this architecture belong to, or None."""
    for family in known_families().values():
        if architecture in family.gguf_architectures:
            return family
    return None
