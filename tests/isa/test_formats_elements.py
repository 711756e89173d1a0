"""Small floats and e8m0 against ml_dtypes, gfloat and torch: every code, and a million floats that try every corner."""

from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from format_oracles import GFLOAT, Array, all_codes, hostile_floats
from gfloat import RoundMode

from siltwin.isa.dtype import DTYPES, FP32
from siltwin.isa.errors import ConfigError
from siltwin.isa.formats.e8m0 import ceil_scale, decode_e8m0, floor_scale, nearest_e8m0
from siltwin.isa.formats.elements import (
    FLOAT_FORMATS,
    IEEE,
    SATURATE,
    CastRules,
    decode_float,
    encode_float,
    float_format,
    round_integer,
)

NAMES = list(FLOAT_FORMATS)
# gfloat cannot overflow e2m1, which has neither infinity nor NaN.
ENDS = [(name, saturates) for name in NAMES for saturates in (True, False) if saturates or name != "mxfp4"]
TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def same(ours: Array, theirs: Any) -> bool:
    """Equal values, signs of zeros included, NaN where they have NaN."""
    theirs = np.asarray(theirs, np.float32)
    nan = np.isnan(theirs)
    return bool((np.isnan(ours) == nan).all() and (ours.view(np.uint32) == theirs.view(np.uint32))[~nan].all())


def without_nan(values: Array, name: str) -> Array:
    return values[~np.isnan(values)] if FLOAT_FORMATS[name].nan is None else values


@pytest.mark.parametrize("name", NAMES)
def test_every_code_has_the_value_of_ml_dtypes_and_gfloat(name: str) -> None:
    fmt = FLOAT_FORMATS[name]
    codes = all_codes(fmt)
    ours = decode_float(codes, fmt)
    with np.errstate(invalid="ignore"):
        assert same(ours, codes.view(DTYPES[name].value).astype(np.float32))
        assert same(ours, gfloat.decode_ndarray(GFLOAT[name], codes.astype(np.int64)))


@pytest.mark.parametrize("name", NAMES)
def test_a_million_floats_round_as_in_ml_dtypes_where_it_does_not_saturate(name: str) -> None:
    values = without_nan(hostile_floats(name), name)
    assert values.size > 990_000
    fmt = FLOAT_FORMATS[name]
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = values.astype(DTYPES[name].value).view(fmt.code_dtype)
    ours, known = encode_float(values, fmt, IEEE), ~np.isnan(values)
    assert np.array_equal(ours[known], theirs[known])
    assert name == "fp16" or np.array_equal(ours, theirs)  # NaN too, save that NumPy's own fp16 keeps payloads


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero"])
@pytest.mark.parametrize(("name", "saturates"), ENDS)
def test_a_million_floats_round_as_in_gfloat_by_every_rule(name: str, rounding: Any, saturates: bool) -> None:
    values = without_nan(hostile_floats(name), name)
    mode = {"nearest_even": RoundMode.TiesToEven, "toward_zero": RoundMode.TowardZero}[rounding]
    with np.errstate(all="ignore"):
        theirs = gfloat.round_ndarray(GFLOAT[name], values.astype(np.float64), mode, saturates)
    rules = CastRules(rounding, "saturate" if saturates else "infinity")
    assert same(decode_float(encode_float(values, FLOAT_FORMATS[name], rules), FLOAT_FORMATS[name]), theirs)


@pytest.mark.parametrize("name", list(TORCH))
def test_a_million_floats_round_as_in_torch_which_saturates_e4m3_alone(name: str) -> None:
    torch = pytest.importorskip("torch")
    values, fmt = hostile_floats(name), FLOAT_FORMATS[name]
    theirs = torch.from_numpy(values).to(getattr(torch, TORCH[name])).float().numpy()
    rules = SATURATE if name == "fp8_e4m3" else IEEE
    assert same(decode_float(encode_float(values, fmt, rules), fmt), theirs)


def test_the_ends_of_e4m3_and_e5m2_by_hand() -> None:
    e4m3, e5m2 = FLOAT_FORMATS["fp8_e4m3"], FLOAT_FORMATS["fp8_e5m2"]
    beyond = np.array([464, np.nextafter(np.float32(464), np.float32(500)), np.inf, -np.inf], np.float32)
    assert encode_float(beyond, e4m3).tolist() == [0x7E, 0x7E, 0x7E, 0xFE]  # 464 is a tie, even is 448
    assert encode_float(beyond, e4m3, IEEE).tolist() == [0x7E, 0x7F, 0x7F, 0xFF]  # no infinity: NaN
    beyond = np.array([61439, 61440, np.inf, -1e9], np.float32)
    assert encode_float(beyond, e5m2).tolist() == [0x7B, 0x7B, 0x7B, 0xFB]
    assert encode_float(beyond, e5m2, IEEE).tolist() == [0x7B, 0x7C, 0x7C, 0xFC]
    down = CastRules("toward_zero", "infinity")
    assert encode_float(np.array([1e9, np.inf], np.float32), e5m2, down).tolist() == [0x7B, 0x7C]
    assert (e4m3.max, e5m2.max, FLOAT_FORMATS["mxfp4"].max) == (448.0, 57344.0, 6.0)
    assert [FLOAT_FORMATS[n].max_exponent for n in ("mxfp4", "fp8_e4m3", "fp8_e5m2")] == [2, 8, 15]


def test_e2m1_has_sixteen_values_and_halfway_cases_go_to_the_even_one() -> None:
    fmt = FLOAT_FORMATS["mxfp4"]
    assert decode_float(np.arange(8), fmt).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.25, -5.0], np.float32)
    assert encode_float(ties, fmt).tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 14]
    assert encode_float(ties, fmt, IEEE).tolist() == encode_float(ties, fmt).tolist()  # nothing but 6 lies beyond 6


def test_flushed_subnormals_are_zeros_of_their_sign_and_the_smallest_normal_stays() -> None:
    fmt = FLOAT_FORMATS["fp8_e4m3"]
    values = np.array([2.0**-6, -(2.0**-6), 2.0**-7, -(2.0**-7), 0.99 * 2.0**-6], np.float32)
    kept = [0x08, 0x88, 0x04, 0x84, 0x08]
    assert encode_float(values, fmt).tolist() == kept
    flushed = encode_float(values, fmt, CastRules(subnormals="flushed"))
    assert flushed.tolist() == [0x08, 0x88, 0x00, 0x80, 0x08]  # rounded first, then flushed


def test_integers_round_to_even_clamp_and_take_nan_as_zero() -> None:
    values = np.array([0.5, 1.5, -2.5, 126.5, 127.6, -128.5, -1e9, np.inf, np.nan], np.float32)
    assert round_integer(values, -128, 127).tolist() == [0, 2, -2, 126, 127, -128, -128, 127, 0]
    down = round_integer(values, -128, 127, CastRules("toward_zero"))
    assert down.tolist() == [0, 1, -2, 126, 127, -128, -128, 127, 0]


def test_what_cannot_be_encoded_says_so() -> None:
    fmt = FLOAT_FORMATS["mxfp4"]
    with pytest.raises(ConfigError, match="mxfp4 has no NaN, and 1 of 2 values are NaN"):
        encode_float(np.array([1, np.nan], np.float32), fmt)
    with pytest.raises(ConfigError, match="encoded from float32, not from float64"):
        encode_float(np.ones(2), fmt)
    with pytest.raises(ConfigError, match="codes of mxfp4 are integers from 0 to 15"):
        decode_float(np.array([16]), fmt)
    with pytest.raises(ConfigError, match="fp32 is not a small float; known: fp16, bf16"):
        float_format(FP32)
    with pytest.raises(ConfigError, match="saturation='wrap' is not a cast rule; choose saturate or infinity"):
        CastRules(saturation="wrap")  # type: ignore[arg-type]


def test_every_e8m0_code_is_its_power_of_two_and_255_is_nan() -> None:
    codes = np.arange(256, dtype=np.uint8)
    ours = decode_e8m0(codes)
    assert ours[[0, 127, 254]].tolist() == [2.0**-127, 1.0, 2.0**127] and np.isnan(ours[255])
    assert same(ours, codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    assert same(ours, gfloat.decode_ndarray(gfloat.formats.format_info_ocp_e8m0, codes.astype(np.int64)))


def test_the_cast_to_e8m0_is_that_of_ml_dtypes_for_a_million_floats() -> None:
    values = np.concatenate([hostile_floats("bf16"), (np.arange(1, 1 << 23, 97, dtype=np.uint32)).view(np.float32)])
    ties = (np.arange(0, 255, dtype=np.uint32) << 23 | 0x400000).view(np.float32)
    values = np.concatenate([values, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))])
    with np.errstate(invalid="ignore"):
        theirs = values.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    assert np.array_equal(nearest_e8m0(values), theirs)
    torch = pytest.importorskip("torch")
    positive = values[values > 0]
    assert np.array_equal(
        nearest_e8m0(positive), torch.from_numpy(positive).to(torch.float8_e8m0fnu).view(torch.uint8).numpy()
    )


def test_the_scale_of_a_block_is_floored_where_the_cast_would_round() -> None:
    assert nearest_e8m0(np.array([1.5], np.float32)).tolist() == [128]  # the cast: 2
    assert floor_scale(np.array([1.5], np.float32), 0).tolist() == [127]  # the rule: 1
    amax = np.array([0, 4, 7.9999, 8, 2.0**-126, 1e-45, 3.4e38, np.inf, np.nan], np.float32)
    assert floor_scale(amax, 2).tolist() == [0, 127, 127, 128, 0, 0, 252, 255, 255]


def test_floor_scales_are_those_of_gfloat() -> None:
    amax = np.abs(hostile_floats("fp8_e5m2", 2000))
    amax = amax[np.isfinite(amax)]
    for max_exponent in (2, 8, 15):
        theirs = [gfloat.block.compute_scale_amax(max_exponent, np.array([float(v)])) for v in amax]
        assert same(decode_e8m0(floor_scale(amax, max_exponent)), theirs)


def test_ceiled_scales_never_let_an_element_saturate_and_are_never_twice_too_large() -> None:
    assert ceil_scale(np.array([448, 449, 896, 0, np.nan], np.float32), 448).tolist() == [127, 128, 128, 0, 255]
    amax = (2 ** np.random.default_rng(0).uniform(-100, 100, 10000)).astype(np.float32)
    top = amax / decode_e8m0(ceil_scale(amax, 448.0))
    assert top.max() <= 448 and top.min() > 224 * (1 - 2.0**-23)
