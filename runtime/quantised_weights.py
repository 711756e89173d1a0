"""Weights quantised on loading: which scheme --weights and --group ask for, and the codes and scales of each piece."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..isa.dtype import FP32
from ..isa.errors import ConfigError
from ..isa.formats.quantise import quantise
from ..isa.formats.scheme import SCHEMES, QuantScheme
from ..isa.formats.window import cut
from ..isa.instruction import Array
from ..models.checkpoint import Checkpoint
from .lowering.weights import Piece

# Format to its schemes by group, the first the default; None is a whole row. A block never spans two rows.
_SCHEMES: Mapping[str, Mapping[int | None, str]] = {
    "int8": {None: "int8_channel", 128: "int8_g128"},
    "int4": {128: "int4_g128", 32: "int4_g32"},
    "fp8": {None: "fp8_e4m3_channel"},
    "mxfp8": {32: "mxfp8_e4m3"},
    "mxfp4": {32: "mxfp4"},
}


def weight_scheme(name: str, group: int | None) -> QuantScheme:
    """The scheme of a format and a group; ConfigError with those there are."""
    if name not in _SCHEMES:
        raise ConfigError(f"--weights {name!r} is no format of weights; choose {', '.join(_SCHEMES)}")
    groups = _SCHEMES[name]
    if group is None:
        return SCHEMES[next(iter(groups.values()))]
    if group not in groups:
        sized = ", ".join(str(size) for size in groups if size is not None) or "none: a scale covers a row"
        raise ConfigError(f"--group {group} is no group of --weights {name}; there is {sized}")
    return SCHEMES[groups[group]]


def weights_warnings(scheme: QuantScheme | None) -> list[str]:
    """What a report must say of quantised weights."""
    if scheme is None:
        return []
    return [
        f"projections and experts are quantised to {scheme.name} on loading, without calibration, held so in HBM and "
        "dequantised by an instruction before each product; embedding, head, norms, routers and what linear attention "
        "projects its input by are not"
    ]


def quantised_piece(checkpoint: Checkpoint, piece: Piece, scheme: QuantScheme) -> tuple[Array, Array]:
    """Codes and scales [rows, ...] of one piece; a cut along the inputs keeps the scales of the uncut rows.

    ConfigError where the cut would divide a block.
    """
    rows = piece.axis == 0 and piece.expert is None
    if rows:
        whole = checkpoint.load(piece.tensor, FP32, piece.start, piece.stop)
    elif piece.expert is None:
        whole = checkpoint.load(piece.tensor, FP32)
    else:
        whole = checkpoint.load(piece.tensor, FP32, piece.expert, piece.expert + 1)[0]
        whole = np.ascontiguousarray(whole.T) if piece.transposed else whole
    packed = quantise(whole, scheme)
    if piece.axis == 1:
        packed = cut(packed, 1, piece.start, piece.stop)
    index = slice(piece.start, piece.stop, piece.step) if piece.axis == 0 and not rows else slice(None)
    return packed.codes[index], packed.scales.codes[index]
