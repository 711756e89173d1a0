"""The compiled decodes of packed weights equal isa's meaning to the bit, whatever the shape, the row and the code."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.kernels.formats import row_decoder
from siltwin.isa.dtype import DTYPES
from siltwin.isa.errors import ProgramError, UnsupportedError
from siltwin.isa.formats.quantise import Packed, Scales, dequantise, quantise
from siltwin.isa.formats.scheme import SCHEMES, QuantScheme

Array = np.ndarray[Any, Any]

ODD = {  # blocks that nobody ships, which the kernels must take just the same
    "int8_words": replace(SCHEMES["int8_g128"], name="int8_words", packing="words"),
    "int8_asymmetric": replace(SCHEMES["int8_channel"], name="int8_asymmetric", symmetric=False),
    "fp8_block3x5": replace(SCHEMES["fp8_e4m3_block128x128"], name="fp8_block3x5", block=(3, 5)),
    "int4_rows": replace(SCHEMES["int4_g128"], name="int4_rows", block=(1, 0)),
    "int4_split": replace(SCHEMES["int4_g32"], name="int4_split", block=(1, 5)),
    "mxfp4_split": replace(SCHEMES["mxfp4"], name="mxfp4_split", block=(2, 3)),
    "mxfp4_block7x6": replace(SCHEMES["mxfp4"], name="mxfp4_block7x6", block=(7, 6)),
}
ALL = {**SCHEMES, **ODD}


def same_bits(ours: Array, theirs: Array) -> bool:
    nan = np.isnan(theirs)
    return bool((np.isnan(ours) == nan).all() and (ours.view(np.uint32) == theirs.view(np.uint32))[~nan].all())


def any_bytes(seed: int, scheme: QuantScheme, *shape: int) -> Packed:
    """A packed tensor whose codes, scales and zero points are any bits at all, faults and padding included."""
    rng = np.random.default_rng(seed)

    def bits(like: Array) -> Array:
        return rng.integers(0, 256, like.nbytes, dtype=np.uint8).view(like.dtype).reshape(like.shape)

    packed = quantise(np.zeros(shape, np.float32), scheme)
    zero = packed.scales.zero_points
    least = -8 if scheme.element.bits == 4 else -128
    zero = None if zero is None else rng.integers(least, -least, zero.shape).astype(np.int8)
    scales = replace(packed.scales, codes=bits(packed.scales.codes), zero_points=zero)
    if scales.global_scale is not None:
        scales = replace(scales, global_scale=np.float32(3.7))
    return Packed(scheme, shape, bits(packed.codes), scales)


def decoded(packed: Packed) -> Array:
    out = np.full((int(np.prod(packed.shape[:-1])), packed.shape[-1]), -7, np.float32)
    row_decoder(packed)(out, 0)
    return out.reshape(packed.shape)


@pytest.mark.parametrize("name", list(ALL))
@settings(deadline=None, max_examples=20)
@given(
    lead=st.sampled_from([(), (1,), (3,), (2, 2)]),
    rows=st.integers(1, 140),
    cols=st.integers(1, 300),
    seed=st.integers(0, 999),
)
def test_decodes_are_those_of_the_meaning(name: str, lead: tuple[int, ...], rows: int, cols: int, seed: int) -> None:
    packed = any_bytes(seed, ALL[name], *lead, rows, cols)
    assert same_bits(decoded(packed), dequantise(packed))


@pytest.mark.parametrize("name", ["fp8_e4m3_tensor", "fp8_e5m2_tensor", "int8_tensor"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-126, 1e-40, 3e38, -0.1, 0.0, np.inf, np.nan])
def test_every_code_of_a_byte(name: str, scale: float) -> None:
    scheme = SCHEMES[name]
    codes = np.arange(256, dtype=np.uint8).view(scheme.element.storage).reshape(1, 256)
    packed = Packed(scheme, (1, 256), codes, Scales(np.full((1, 1), scale, np.float32)))
    assert same_bits(decoded(packed), dequantise(packed))


def test_every_pair_of_nibbles_under_every_e8m0_scale() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 16, axis=1)
    packed = Packed(SCHEMES["mxfp4"], (256, 512), codes, Scales(scales))
    ours = decoded(packed)
    assert same_bits(ours, dequantise(packed))
    assert np.isnan(ours[255]).all() and ours[127, 2:4].tolist() == [0.5, 0.0]
    assert ours[0, 2] == 2.0**-128  # half the smallest scale: a float32 subnormal, and not flushed


@pytest.mark.parametrize("name", ["fp8_e4m3_block128x128", "mxfp4", "int4_g128_asymmetric", "int8_tensor"])
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_any_run_of_rows_is_that_run_of_the_whole(name: str, data: st.DataObject) -> None:
    packed = any_bytes(5, SCHEMES[name], 3, 131, 70)
    first = data.draw(st.integers(0, 393))
    count = data.draw(st.integers(0, 393 - first))
    wide = np.full((count, 80), -7, np.float32)
    row_decoder(packed)(wide[:, 4:74], first)
    whole = dequantise(packed).reshape(393, 70)
    assert same_bits(wide[:, 4:74], whole[first : first + count])
    assert (wide[:, :4] == -7).all() and (wide[:, 74:] == -7).all()  # and nothing beside it is touched


def test_what_does_not_fit_is_named() -> None:
    decoder = row_decoder(any_bytes(0, SCHEMES["mxfp4"], 4, 64))
    with pytest.raises(ProgramError, match=r"rows of 64 decode into float32 \[n, 64\], not float32 \(4, 63\)"):
        decoder(np.zeros((4, 63), np.float32), 0)
    with pytest.raises(ProgramError, match="not float64"):
        decoder(np.zeros((4, 64)), 0)
    for first in (-1, 1):
        with pytest.raises(ProgramError, match=rf"rows \[{first}, {first + 4}\) are not within the 4 of the tensor"):
            decoder(np.zeros((4, 64), np.float32), first)
    halves = replace(SCHEMES["fp8_e4m3_channel"], name="halves", element=DTYPES["fp16"])
    with pytest.raises(UnsupportedError, match="halves: no kernel decodes fp16; known: fp8_e4m3"):
        row_decoder(quantise(np.zeros((1, 4), np.float32), halves))
