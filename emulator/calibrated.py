"""What a card file says of its calibration: which kinds were fitted, from what, how well, and over which sizes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, InstanceOf

from ..isa.work import AttentionShape, MatmulShape, Work
from .card_parts import CardPart
from .grid import Grid
from .trees import Trees

Fit = Literal["points", "physics", "full"]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sizes = dict[str, float]
TOLERANCE = 1e-6


class Errors(CardPart):
    """Relative errors on rows of groups that the fit did not see; `noise` is what repeats of one row differ by."""

    rows: Annotated[int, Field(ge=0)]
    mean: Share
    median: Share
    p90: Share
    noise: Share | None = None


class KindCalibration(CardPart):
    """How the constants of one kind were fitted: to `rows` rows of `library`, all within `ranges` of sizes.

    `errors` are those of all rows that were held out, `usual` those of the ones that models mostly ask.

    `learned` is the digest of `correction`, what was learned over the fit: a grid of products, trees of attention. It
    is no part of the card's own file, and a card that is changed in any number loses it: it is of the measured card.
    """

    fit: Fit
    library: str
    rows: Annotated[int, Field(ge=0)]
    errors: Errors
    usual: Errors
    ranges: dict[str, tuple[float, float]]
    learned: str = ""
    correction: InstanceOf[Trees] | InstanceOf[Grid] | None = Field(default=None, exclude=True, repr=False)

    @property
    def is_off(self) -> bool:
        """Whether something was learned that does not count, as the card is no longer the one that was measured."""
        return bool(self.learned) and self.correction is None

    def beyond(self, sizes: Sizes) -> list[str]:
        """Which sizes lie outside of what was measured."""
        return [
            name
            for name, (low, high) in self.ranges.items()
            if not low * (1 - TOLERANCE) <= sizes[name] <= high * (1 + TOLERANCE)
        ]


class Calibration(CardPart):
    """All of a calibration: kinds as `emulator.tuning` names them, and what can be told of its data.

    `sources` name the files read with a digest of each. The file `beside` the card's own holds the hashes of all rows
    that a fit saw, of which `seen` is a digest, and what was learned.
    """

    seed: int
    sources: dict[str, str]
    kinds: dict[str, KindCalibration]
    beside: str = ""
    seen: str = ""


def sizes_of(work: Work) -> tuple[str, Sizes] | None:
    """The kind of kernel that an instruction is and the sizes by which calibrations know it; None for all others.

    No size falls as m, n, k, a length or the number of sequences grows.
    """
    shape = work.shape
    if isinstance(shape, MatmulShape):
        return "matmul", {"m": shape.m * shape.batch, "n": shape.n, "k": shape.k, **_amounts(work)}
    if isinstance(shape, AttentionShape) and shape.q_lens:
        longest = max(shape.q_lens)
        if longest > 1 and shape.q_lens != shape.kv_lens:
            return None  # some tokens were cached before: no table times that
        sizes = {
            "longest": max(shape.kv_lens), "items": len(shape.q_lens) * shape.num_kv_heads,
            "group": shape.num_heads // shape.num_kv_heads, "head_dim": shape.qk_dim, **_amounts(work),
        }  # fmt: skip
        return ("prefill" if longest > 1 else "decode"), sizes
    return None


def _amounts(work: Work) -> Sizes:
    return {"operations": work.ops, "bytes": work.read_bytes + work.write_bytes}


def is_plain(work: Work) -> bool:
    """Whether kernels take their usual way: no window, chunks or caps, and a cache of the type of the queries."""
    shape = work.shape
    if not isinstance(shape, AttentionShape) or work.dtype is None:
        return isinstance(shape, MatmulShape) and shape.batch == 1 and work.dtype is not None
    queries = sum(shape.q_lens) * shape.num_heads * shape.qk_dim
    cached = sum(shape.kv_lens) * shape.num_kv_heads * (shape.qk_dim + shape.v_dim)
    limited = shape.window or shape.chunk or shape.soft_capped
    return not limited and work.read_bytes == work.dtype.bytes_of(queries) + work.dtype.bytes_of(cached)
