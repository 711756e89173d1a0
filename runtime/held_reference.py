"""What the cards hold, as a checkpoint for the reference: weights that were quantised on loading, decoded again."""

from __future__ import annotations

import numpy as np

from ..isa.formats.quantise import dequantise, quantise
from ..isa.formats.scheme import QuantScheme
from ..isa.instruction import Array
from ..models.changed_store import Change, changed
from ..models.checkpoint import Checkpoint
from .plan import JobPlan


def held_checkpoint(plan: JobPlan, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint whose quantised tensors are what their codes and scales mean; itself where none are."""
    scheme = plan.holding.scheme
    if scheme is None:
        return checkpoint
    weights = [weight for rank in dict.fromkeys(plan.twins) for weight in plan.weights(rank)]
    pieces = [piece for weight in weights if weight.packed is not None for piece in weight.pieces]
    changes = {piece.tensor: _rounded(scheme, piece.expert is not None, piece.transposed) for piece in pieces}
    return changed(checkpoint, changes, f"projections and experts as {scheme.name}")


def _rounded(scheme: QuantScheme, stacked: bool, transposed: bool) -> Change:
    """A tensor to what its codes and scales mean, expert by expert and turned as the cards hold it."""

    def matrix(values: Array) -> Array:
        held = np.ascontiguousarray(values.T) if transposed else values
        meant: Array = dequantise(quantise(held, scheme))
        return meant.T if transposed else meant

    def change(values: Array) -> Array:
        return np.stack([matrix(expert) for expert in values]) if stacked else matrix(values)

    return change
