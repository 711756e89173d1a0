"""Card files from cards: every value beside its evidence, as they are written by hand."""

from __future__ import annotations

from typing import Any

import yaml

from ...emulator.evidence import Evidence
from ...emulator.spec import CardSpec

LINE_LENGTH = 110


def card_yaml(card: CardSpec) -> str:
    """The text of a card file that reads as this card."""
    values = card.model_dump(mode="json", exclude={"evidence"}, exclude_none=True)
    tree = {key: _marked(value, key, card.evidence) for key, value in values.items()}
    return yaml.safe_dump(tree, sort_keys=False, width=LINE_LENGTH, allow_unicode=True)


def _marked(node: Any, path: str, evidence: dict[str, Evidence]) -> Any:
    """A node of the tree with the evidence of it, and of what lies in it, beside the values."""
    value = node
    if isinstance(node, dict):
        value = {key: _marked(entry, f"{path}.{key}", evidence) for key, entry in node.items()}
    elif isinstance(node, list):
        value = [_marked(entry, f"{path}.{index}", evidence) for index, entry in enumerate(node)]
    if path in evidence:
        return {"value": value, **evidence[path].model_dump(exclude_none=True)}
    return value
