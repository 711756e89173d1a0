"""A card that nobody measured, under constants that were fitted on another: its own data sheet, the other's kernels."""

from __future__ import annotations

from .evidence import Evidence
from .spec import CardSpec

FITTED = "tuning"


def transferred(card: CardSpec, fitted: CardSpec) -> CardSpec:
    """`card` with the constants of kernels, and the kernel library, that `fitted` has.

    What was calibrated on another card is only assumed of this one, and its evidence says from which it came.
    """
    evidence = {path: found for path, found in card.evidence.items() if not _is_fitted(path)}
    for path, found in fitted.evidence.items():
        if _is_fitted(path):
            source = f"carried over from {fitted.name} ({found.evidence}): {found.source}"
            evidence[path] = Evidence(evidence="assumed", source=source)
    carried = {"tuning": fitted.tuning, "kernels": fitted.kernels, "evidence": evidence}
    return CardSpec.model_validate({**card.model_dump(exclude={"evidence"}), **carried})


def _is_fitted(path: str) -> bool:
    return path == FITTED or path.startswith(f"{FITTED}.")
