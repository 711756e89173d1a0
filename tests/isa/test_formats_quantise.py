"""Quantised tensors: hand-worked blocks, exact bytes, gfloat's MX blocks, and laws that hold for every scheme."""

import math
from dataclasses import replace
from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.dtype import DTYPES
from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.isa.formats.blocks import spread
from siltwin.isa.formats.e8m0 import decode_e8m0
from siltwin.isa.formats.elements import FLOAT_FORMATS, IEEE, INTEGER_RANGES
from siltwin.isa.formats.packing import pack_nibbles, pack_words, signed_nibbles, unpack_nibbles, unpack_words
from siltwin.isa.formats.quantise import (
    Packed,
    Scales,
    dequantise,
    element_values,
    quantise,
    scale_values,
    scales_from_amax,
    scales_of,
)
from siltwin.isa.formats.scheme import SCHEMES, QuantScheme

Array = np.ndarray[Any, Any]
NAMES = list(SCHEMES)
SYMMETRIC = [name for name, scheme in SCHEMES.items() if scheme.symmetric]


def tensor(seed: int, *shape: int, spread_bits: float = 6.0) -> Array:
    """Normal numbers whose rows and columns differ in size by some powers of two."""
    rng = np.random.default_rng(seed)
    sizes = 2 ** rng.uniform(-spread_bits, spread_bits, shape)
    return (rng.standard_normal(shape) * sizes).astype(np.float32)


def test_mxfp4_by_hand() -> None:
    row = np.zeros((1, 40), np.float32)
    row[0, :6] = [10.0, -3.0, 0.6, 1.25, -0.0, 100.0]  # floor(log2 100) - 2 = 4: the scale is 16
    row[0, 32:35] = [6.0, 0.25, -7.9]  # floor(log2 7.9) - 2 = 0: the scale is 1
    packed = quantise(row, SCHEMES["mxfp4"])
    assert packed.scales.codes.tolist() == [[131, 127]]
    # 10/16 = 0.625 -> 0.5 (1), -3/16 -> -0 (8), 0.6/16 -> 0, 0, -0 (8), 100/16 = 6.25 -> 6 (7)
    assert packed.codes[0, :3].tolist() == [0x81, 0x00, 0x78]
    # 6 (7), 0.25 -> 0, -7.9 -> -6 (15)
    assert packed.codes[0, 16:18].tolist() == [0x07, 0x0F]
    values = dequantise(packed)
    assert values[0, [0, 1, 2, 5, 32, 33, 34]].tolist() == [8, 0, 0, 96, 6, 0, -6]
    assert packed.nbytes == 20 + 2


def test_nvfp4_by_hand() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, 0], row[0, 1], row[0, 16] = 12.0, 5.0, 3.0
    packed = quantise(row, SCHEMES["nvfp4"])
    assert packed.scales.global_scale == np.float32(2688 / 12)  # 448 x 6 over the largest, 224
    assert packed.scales.codes.tolist() == [[0x7E, 0x6E]]  # 224 x 12/6 = 448 and 224 x 3/6 = 112
    # 5 / 2 = 2.5 is a tie between 2 and 3: even is 2 (code 4)
    assert packed.codes[0, 0] == 0x47 and packed.codes[0, 8] == 0x07
    assert dequantise(packed)[0, [0, 1, 16]].tolist() == [12, 4, 3]
    assert packed.nbytes == 16 + 2 + 4


def test_int4_and_its_zero_points_by_hand() -> None:
    row = np.array([[7.0, -3.5, 0.5, 1.5, -7.0]], np.float32)
    packed = quantise(row, SCHEMES["int4_g32"])
    assert packed.scales.codes.tolist() == [[0x3F80]] and packed.scales.codes.dtype == np.uint16  # 1.0 in bf16
    assert packed.codes.tolist() == [[0xC7, 0x20, 0x09]]  # 7, -4 | 0, 2 | -7: ties to even, low nibble first
    assert dequantise(packed).tolist() == [[7, -4, 0, 2, -7]]
    packed = quantise(np.array([[0.0, 3.0, 15.0]], np.float32), SCHEMES["int4_g128_asymmetric"])
    assert packed.scales.zero_points is not None and packed.scales.zero_points.tolist() == [[-8]]
    assert packed.codes.view(np.uint32).tolist() == [[0xF30]]  # -8, -5, 7, each with 8 added
    assert dequantise(packed).tolist() == [[0, 3, 15]]


def test_int8_by_hand() -> None:
    rows = np.array([[127.0, 0.5, -1.5], [-254.0, 2.0, 3.0]], np.float32)
    by_row = quantise(rows, SCHEMES["int8_channel"])
    assert by_row.scales.codes.tolist() == [[1.0], [2.0]]
    assert by_row.codes.tolist() == [[127, 0, -2], [-127, 1, 2]]
    whole = quantise(rows, SCHEMES["int8_tensor"])
    assert whole.scales.codes.tolist() == [[2.0]] and whole.codes.tolist() == [[64, 0, -1], [-127, 1, 2]]


def test_fp8_blocks_take_partial_last_blocks() -> None:
    values = np.ones((130, 300), np.float32)
    values[129, 299] = 896.0
    packed = quantise(values, SCHEMES["fp8_e4m3_block128x128"])
    assert packed.scales.codes.shape == (2, 3)
    assert packed.scales.codes[1, 2] == 2.0 and packed.scales.codes[0, 0] == np.float32(1 / 448)
    assert packed.codes[129, 299] == 0x7E and packed.codes[129, 298] == 0x30  # 448 and 1/2
    assert packed.nbytes == 130 * 300 + 4 * 6


@pytest.mark.parametrize(
    ("scheme", "shape", "num_bytes"),
    [
        ("fp8_e4m3_block1x128", (1, 512), 512 + 4 * 4),  # an MLA latent; 64 rope values in bf16 make it 656
        ("fp8_e4m3_block128x128", (7168, 2112), 7168 * 2112 + 4 * 56 * 17),  # 16.5 blocks are 17
        ("fp8_e4m3_block128x128_ue8m0", (7168, 2112), 7168 * 2112 + 56 * 17),
        ("fp8_e4m3_tensor", (4, 5, 6), 120 + 4 * 4),  # four experts, a scale each
        ("fp8_e5m2_token", (9, 64), 9 * 64 + 9 * 4),
        ("int8_channel", (10, 33), 330 + 40),
        ("int8_channel", (33,), 33 + 4),
        ("int4_g128", (4, 300), 4 * 150 + 4 * 3 * 2),
        ("int4_g32", (3, 33), 3 * 17 + 3 * 2 * 2),  # 33 nibbles are 17 bytes
        ("int4_g32_words", (3, 33), 3 * 5 * 4 + 3 * 2 * 2),  # and 5 words
        ("int4_g128_asymmetric", (9, 256), 9 * 32 * 4 + 9 * 2 * 2 + 2 * 2 * 4),  # zero points of 9 rows: 2 words
        ("mxfp4", (2, 3, 100), 6 * 50 + 6 * 4),
        ("mxfp8_e4m3", (3, 100), 300 + 3 * 4),
        ("nvfp4", (3, 100), 150 + 3 * 7 + 4),
        ("mxfp4", (0, 64), 0),
    ],
)
def test_bytes_are_exact(scheme: str, shape: tuple[int, ...], num_bytes: int) -> None:
    assert SCHEMES[scheme].bytes_of(shape) == num_bytes
    assert quantise(np.zeros(shape, np.float32), SCHEMES[scheme]).nbytes == num_bytes


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_arrays(name: str) -> None:
    packed = quantise(tensor(1, 2, 19, 77), SCHEMES[name])
    scales = packed.scales
    total = packed.codes.nbytes + scales.codes.nbytes + (4 if scales.global_scale is not None else 0)
    if scales.zero_points is not None:
        total += pack_words(scales.zero_points.swapaxes(-1, -2), 4).nbytes
    assert packed.nbytes == total


@pytest.mark.parametrize(
    ("name", "theirs"), [("mxfp4", "mxfp4_e2m1"), ("mxfp8_e4m3", "mxfp8_e4m3"), ("mxfp8_e5m2", "mxfp8_e5m2")]
)
def test_mx_blocks_are_those_of_gfloat(name: str, theirs: str) -> None:
    info = getattr(gfloat.formats, f"format_info_{theirs}")
    values = tensor(3, 40, 32, spread_bits=12)
    values[0] = 0
    ours = dequantise(quantise(values, SCHEMES[name]))
    for row in range(40):
        expected = gfloat.quantize_block(info, values[row].astype(np.float64), gfloat.block.compute_scale_amax)
        assert np.array_equal(ours[row], expected.astype(np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_the_nearest_code_to_its_quotient(name: str) -> None:
    """Within half a step of its own binade, or clamped to the largest."""
    scheme = SCHEMES[name]
    values = tensor(5, 150, 300, spread_bits=3)
    packed = quantise(values, scheme)
    step = spread(scale_values(scheme, packed.scales), scheme, values.shape)
    zero = packed.scales.zero_points
    shift = 0 if zero is None else spread(zero, scheme, values.shape).astype(np.float32)
    quotient, codes = (values / step).astype(np.float64) + shift, element_values(packed).astype(np.float64)
    if scheme.element.name in INTEGER_RANGES:
        low, high = INTEGER_RANGES[scheme.element.name]
        room = np.full(values.shape, 0.5)
    else:
        fmt = FLOAT_FORMATS[scheme.element.name]
        low, high = -fmt.max, fmt.max
        binade = np.floor(np.log2(np.maximum(np.abs(quotient), 2.0 ** (1 - fmt.bias))))
        room = 2.0 ** (binade - fmt.mantissa_bits - 1)
    error = np.abs(np.clip(quotient, low, high) - codes)
    assert (error <= room * (1 + 2.0**-22)).all()
    assert error.max() > 0


@pytest.mark.parametrize("name", NAMES)
def test_what_was_quantised_stays_as_it_is_under_its_own_scales(name: str) -> None:
    scheme = SCHEMES[name]
    packed = quantise(tensor(7, 140, 260), scheme)
    again = quantise(dequantise(packed), scheme, scales=packed.scales)
    assert np.array_equal(element_values(again), element_values(packed))


@pytest.mark.parametrize("name", SYMMETRIC)
def test_quantising_twice_with_fresh_scales_changes_nothing_beyond_a_scale_rounding(name: str) -> None:
    scheme = SCHEMES[name]
    once = dequantise(quantise(tensor(8, 140, 260), scheme))
    twice = dequantise(quantise(once, scheme))
    if scheme.scale_rule == "floor":
        assert np.array_equal(once, twice)
    else:
        assert np.allclose(once, twice, rtol=2.0**-6 if scheme.scale.name in ("bf16", "fp8_e4m3") else 2.0**-22)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(power=st.integers(-40, 40), seed=st.integers(0, 2**32 - 1))
def test_a_power_of_two_passes_through(name: str, power: int, seed: int) -> None:
    scheme, values = SCHEMES[name], tensor(seed, 5, 70, spread_bits=4)
    first = quantise(values, scheme)
    second = quantise(np.ldexp(values, power), scheme)
    assert np.array_equal(first.codes, second.codes)
    assert np.array_equal(np.ldexp(dequantise(first), power), dequantise(second))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_order_is_kept_within_a_block(name: str, seed: int) -> None:
    scheme = SCHEMES[name]
    values = np.sort(tensor(seed, 1, 16, spread_bits=8))
    assert (np.diff(dequantise(quantise(values, scheme))) >= 0).all()


@pytest.mark.parametrize("name", SYMMETRIC)
def test_a_sign_passes_through(name: str) -> None:
    values = tensor(9, 130, 140)
    assert np.array_equal(dequantise(quantise(-values, SCHEMES[name])), -dequantise(quantise(values, SCHEMES[name])))


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SYMMETRIC)
def test_a_fault_shows_in_its_whole_block_and_in_no_other(name: str, fault: float) -> None:
    scheme = SCHEMES[name]
    values = tensor(10, 3, 300)
    clean = dequantise(quantise(values, scheme))
    values[1, 150] = fault
    faulty = dequantise(quantise(values, scheme))
    amax = np.zeros(scheme.scales_shape(values.shape), bool)
    rows, cols = scheme.block_of(values.shape)
    amax[1 // rows, 150 // cols] = True
    block = spread(amax, scheme, values.shape)
    assert np.isnan(faulty[block]).all()
    if not scheme.has_global_scale:
        assert np.array_equal(faulty[~block], clean[~block])
    assert np.isfinite(faulty[~block]).all()


@pytest.mark.parametrize("name", NAMES)
def test_zeros_and_very_small_and_large_floats_come_back_finite(name: str) -> None:
    scheme = SCHEMES[name]
    assert not dequantise(quantise(np.zeros((3, 200), np.float32), scheme)).any()
    for value in (1e-45, 1.2e-38, 1e38):
        values = np.full((2, 200), value, np.float32)
        back = dequantise(quantise(values, scheme))
        assert np.isfinite(back).all() and (back >= 0).all() and (back <= values * 2).all()


def test_given_scales_saturate_as_the_card_says() -> None:
    scheme = SCHEMES["fp8_e4m3_tensor"]
    calibrated = scales_from_amax(np.array([[448.0]], np.float32), scheme)
    values = np.array([[1000.0, 448.0, -1e9]], np.float32)
    assert dequantise(quantise(values, scheme, scales=calibrated)).tolist() == [[448, 448, -448]]
    loud = dequantise(quantise(values, scheme, IEEE, calibrated))
    assert np.isnan(loud[0, [0, 2]]).all() and loud[0, 1] == 448
    e5m2 = SCHEMES["fp8_e5m2_tensor"]
    loud = dequantise(quantise(np.float32([[70000.0, -1e9]]), e5m2, IEEE, Scales(np.ones((1, 1), np.float32))))
    assert loud.tolist() == [[np.inf, -np.inf]]


def test_the_ceiling_rule_saturates_nothing_where_the_floor_rule_may() -> None:
    values = np.full((1, 128), 500.0, np.float32)
    assert dequantise(quantise(values, SCHEMES["mxfp8_e4m3"]))[0, 0] == 448  # floor(log2 500) - 8 = 0: saturates
    packed = quantise(values, SCHEMES["fp8_e4m3_block1x128_ue8m0"])
    assert decode_e8m0(packed.scales.codes)[0, 0] == 2 and dequantise(packed)[0, 0] == 512  # 250 -> 256, x 2


def test_experts_never_share_a_scale() -> None:
    values = np.stack([np.full((4, 4), 1.0), np.full((4, 4), 100.0)]).astype(np.float32)
    scales = scales_of(values, SCHEMES["int8_tensor"]).codes
    assert scales.shape == (2, 1, 1) and scales[1, 0, 0] == np.float32(100 / 127)


def test_nibbles_and_words_by_hand() -> None:
    assert pack_nibbles(np.array([[1, 2, -8]])).tolist() == [[0x21, 0x08]]
    assert unpack_nibbles(np.array([[0x21, 0x08]], np.uint8), 3).tolist() == [[1, 2, 8]]
    assert signed_nibbles(np.array([7, 8, 15], np.uint8)).tolist() == [7, -8, -1]
    words = pack_words(np.array([[-8, -7, 0, 7, 0, 0, 0, 7, -8]]), 4)
    assert words.view(np.uint32).tolist() == [[0xF888F810, 0]]
    assert unpack_words(words, 4, 9).tolist() == [[-8, -7, 0, 7, 0, 0, 0, 7, -8]]
    assert pack_words(np.array([[-128, 127, 0, 1, 5]]), 8).view(np.uint32).tolist() == [[0x8180FF00, 0x85]]


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 64, 129])
def test_packing_loses_nothing_whatever_the_length(count: int) -> None:
    codes = np.random.default_rng(count).integers(-8, 8, (3, count)).astype(np.int8)
    assert np.array_equal(signed_nibbles(unpack_nibbles(pack_nibbles(codes), count)), codes)
    assert np.array_equal(unpack_words(pack_words(codes, 4), 4, count), codes)
    even = codes[:, : count & ~1]
    if even.size:
        low_first = even.astype(ml_dtypes.int4).astype(np.uint8) & 15
        assert np.array_equal(pack_nibbles(even), low_first[:, ::2] | low_first[:, 1::2] << 4)


def test_schemes_stand_under_their_names_and_say_what_shares_a_scale() -> None:
    assert all(scheme.name == name for name, scheme in SCHEMES.items())
    kinds = ("int8_tensor", "int8_token", "int4_g32", "mxfp4", "fp8_e4m3_block128x128")
    assert [SCHEMES[name].granularity for name in kinds] == ["tensor", "row", "group", "group", "block"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"element": DTYPES["int32"]}, "element=int32; it must be one of fp16"),
        ({"scale": DTYPES["int8"]}, "scale=int8; it must be one of fp32"),
        ({"block": (-1, 2)}, r"block=\(-1, 2\); it must be \(rows, cols\), each 1 or more"),
        ({"amax_code": 0.0}, "amax_code=0.0; it must be above 0"),
        ({"scale_rule": "floor"}, "scale_rule='floor'; it must be 'floor' or 'ceil' for e8m0"),
        ({"packing": "nibbles"}, "packing='nibbles'; it must be one of plain for fp8_e4m3"),
        ({"symmetric": False}, "floats have no zero point"),
    ],
)
def test_schemes_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SCHEMES["fp8_e4m3_tensor"], **change)


def test_packed_tensors_hold_what_their_scheme_says() -> None:
    packed = quantise(tensor(0, 4, 64), SCHEMES["mxfp4"])
    with pytest.raises(ConfigError, match=r"codes of mxfp4 \[4, 66\] are uint8 \[4, 33\], not uint8 \[4, 32\]"):
        replace(packed, shape=(4, 66))
    with pytest.raises(ConfigError, match=r"scales of mxfp4 \[4, 64\] are uint8 \[4, 2\], not uint8 \[4, 1\]"):
        replace(packed, scales=Scales(packed.scales.codes[:, :1]))
    with pytest.raises(ConfigError, match="mxfp4 has no global scale"):
        replace(packed, scales=replace(packed.scales, global_scale=np.float32(1)))
    with pytest.raises(ConfigError, match="int4_g32_asymmetric has its zero points"):
        good = quantise(tensor(0, 4, 64), SCHEMES["int4_g32_asymmetric"])
        Packed(good.scheme, good.shape, good.codes, replace(good.scales, zero_points=None))


def test_what_cannot_be_quantised_says_so() -> None:
    with pytest.raises(ConfigError, match="mxfp4 quantises float32, not float64"):
        quantise(np.ones((2, 2)), SCHEMES["mxfp4"])
    with pytest.raises(ConfigError, match="a scalar cannot be quantised"):
        quantise(np.float32(1), SCHEMES["mxfp4"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="asymmetric: its scales need"):
        scales_from_amax(np.ones((1, 1), np.float32), SCHEMES["int4_g32_asymmetric"])
    with pytest.raises(UnsupportedError, match="codes of 3 bits in 32-bit words"):
        pack_words(np.zeros((1, 3), np.int8), 3)
    with pytest.raises(ConfigError, match="a nibble holds integers from -8 to 15"):
        pack_nibbles(np.array([16]))
    with pytest.raises(ConfigError, match="4-bit codes run from -8 to 7"):
        pack_words(np.array([[8]]), 4)
    with pytest.raises(
        ConfigError, match=r"9 codes of 4 bits a row are packed as int32 \[..., 2\], not int32 \[1, 1\]"
    ):
        unpack_words(np.zeros((1, 1), np.int32), 4, 9)
    with pytest.raises(ConfigError, match=r"5 nibbles a row are packed as uint8 \[..., 3\]"):
        unpack_nibbles(np.zeros((1, 2), np.uint8), 5)


def test_a_scheme_is_a_value_and_other_observers_are_one_field_away() -> None:
    theirs = replace(SCHEMES["int4_g32"], name="int4_g32_observer", amax_code=7.5)
    row = np.array([[7.5, -7.5, 1.0]], np.float32)
    assert dequantise(quantise(row, theirs)).tolist() == [[7, -8, 1]]
    assert math.isclose(float(scale_values(theirs, scales_of(row, theirs))[0, 0]), 1.0)
    assert isinstance(theirs, QuantScheme) and hash(theirs) != hash(SCHEMES["int4_g32"])
