"""Card files that say `extends: NAME`: a shipped card with a few numbers stated anew, and the rest assumed alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..interconnect.specfile import read_mapping
from ..isa.errors import ConfigError
from .evidence import is_marked

CARDS = Path(__file__).parent / "cards"
OWN_KEYS = ("name", "aliases", "description")


def card_names() -> tuple[str, ...]:
    """The names of the shipped cards, in order."""
    return tuple(sorted(path.stem for path in CARDS.glob("*.yaml")))


def read_card_tree(path: Path, children: tuple[str, ...] = ()) -> dict[str, Any]:
    """The whole tree of a card file, numbers still marked with their evidence.

    What the file takes from the card it extends is `assumed`, "as NAME: ..." (another card's data sheet is not its
    own); what it states itself stands alone. Name, aliases and description are never taken over.
    """
    tree = read_mapping(path)
    if "extends" not in tree:
        return tree
    base = tree.pop("extends")
    if not isinstance(base, str) or base not in card_names():
        raise ConfigError(f"{path}: extends: {base!r} is no shipped card; choose from {', '.join(card_names())}")
    if base in children:
        raise ConfigError(f"{path}: extends: {base} extends this card itself; state one of the two in full")
    inherited = read_card_tree(CARDS / f"{base}.yaml", (*children, base))
    taken = {key: _assumed(entry, base) for key, entry in inherited.items() if key not in OWN_KEYS}
    merged: dict[str, Any] = _merged(taken, tree)
    return merged


def _assumed(node: Any, base: str) -> Any:
    if is_marked(node):
        return {"value": node["value"], "evidence": "assumed", "source": f"as {base}: {node.get('source', '')}"}
    if isinstance(node, dict):
        return {key: _assumed(entry, base) for key, entry in node.items()}
    return [_assumed(entry, base) for entry in node] if isinstance(node, list) else node


def _merged(base: Any, own: Any) -> Any:
    """`own` over `base`: sections are merged key by key; a marked value, a list or a plain value replaces."""
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)) or is_marked(own) or is_marked(base):
        return own
    return {**base, **{key: _merged(base.get(key), entry) for key, entry in own.items()}}
