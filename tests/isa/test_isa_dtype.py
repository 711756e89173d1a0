"""Element types: their sizes and names, and every bit of their values against torch and ml_dtypes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.dtype import ALIASES, BF16, DTYPES, FP16, FP32, DType, decode, dtype_of_code, encode, parse_dtype
from siltwin.isa.errors import ConfigError, NotYetError

BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "mxfp4": 4,
    "int8": 8,
    "int4": 4,
    "uint8": 8,
    "int32": 32,
    "int64": 64,
    "e8m0": 8,
}
TORCH = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
FLOATS = {  # what Python's float rounds to where the arithmetic is not trusted: (largest finite, smallest subnormal)
    "fp16": (65504.0, 2.0**-24),
    "bf16": (3.3895313892515355e38, 2.0**-133),
    "fp8_e4m3": (448.0, 2.0**-9),
    "fp8_e5m2": (57344.0, 2.0**-16),
}
CORNERS = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1.17549435e-38,
    3.4028235e38,
    -3.4028235e38,
    65519.99,
    65520,
]


def all_bits(dtype: DType) -> np.ndarray[Any, Any]:
    return np.arange(1 << dtype.bits, dtype=f"uint{dtype.bits}").view(dtype.storage)


def same(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> bool:
    """Equal to the bit, any NaN being as good as another."""
    nan = np.isnan(theirs)
    return bool((np.isnan(ours) == nan).all() and (ours.view(np.uint32) == theirs.view(np.uint32))[~nan].all())


def test_sizes() -> None:
    assert {name: dtype.bits for name, dtype in DTYPES.items()} == BITS
    for dtype in DTYPES.values():
        assert dtype.storage.itemsize * 8 >= dtype.bits and dtype.storage.itemsize == dtype.value.itemsize
        assert [dtype.bytes_of(n) for n in (0, 8)] == [0, dtype.bits]
        assert dtype.bits % 8 or dtype.itemsize_bytes == dtype.bits // 8
    assert [DTYPES["int4"].bytes_of(n) for n in (1, 2, 3)] == [1, 1, 2]
    with pytest.raises(ConfigError, match="mxfp4 packs 2 elements in a byte"):
        _ = DTYPES["mxfp4"].itemsize_bytes


def test_codes_are_for_ever() -> None:
    assert [dtype_of_code(code).name for code in range(len(BITS))] == list(BITS)
    for code in (-1, len(BITS)):
        with pytest.raises(ConfigError, match=f"no dtype has code {code}"):
            dtype_of_code(code)


def test_names_aliases_and_torch_names_are_read() -> None:
    assert all(parse_dtype(name) is dtype for name, dtype in DTYPES.items())
    assert all(parse_dtype(alias) is DTYPES[name] for alias, name in ALIASES.items())
    for text, name in {"torch.bfloat16": "bf16", " Float32 ": "fp32", "fp8": "fp8_e4m3", "half": "fp16"}.items():
        assert parse_dtype(text).name == name
    for name, theirs in TORCH.items():
        assert parse_dtype(f"torch.{theirs}") is DTYPES[name]
    assert not ALIASES.keys() & DTYPES.keys()


@pytest.mark.parametrize("text", ["", "float12", "torch.", "bf16\x00", "fp32 fp32"])
def test_an_unknown_name_lists_the_known(text: str) -> None:
    with pytest.raises(ConfigError, match="unknown dtype .*; known: fp32, fp16, bf16, .*aliases: bfloat16"):
        parse_dtype(text)


@pytest.mark.parametrize("name", TORCH)
def test_every_bit_pattern_means_what_torch_and_ml_dtypes_say(torch: Any, name: str) -> None:
    dtype, bits = DTYPES[name], all_bits(DTYPES[name])
    values = decode(bits, dtype)
    assert values.dtype == np.float32
    assert same(values, bits.view(dtype.value).astype(np.float32))
    assert same(
        values, torch.from_numpy(bits.view(f"int{dtype.bits}").copy()).view(getattr(torch, TORCH[name])).float().numpy()
    )
    largest, smallest = FLOATS[name]
    assert values[np.isfinite(values)].max() == largest and values[values > 0].min() == smallest


@pytest.mark.parametrize("name", TORCH)
def test_every_value_encodes_to_its_own_bits(name: str) -> None:
    dtype, bits = DTYPES[name], all_bits(DTYPES[name])
    values = decode(bits, dtype)
    finite = ~np.isnan(values)
    again = encode(values, dtype)
    assert again.dtype == dtype.storage and (again[finite] == bits[finite]).all()
    assert np.isnan(decode(again[~finite], dtype)).all()


@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=100, deadline=None)
@given(raw=st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=64))
def test_rounding_is_what_torch_and_ml_dtypes_do(torch: Any, name: str, raw: list[int]) -> None:
    dtype = DTYPES[name]
    values = np.concatenate([np.array(raw, np.uint32).view(np.float32), np.array(CORNERS, np.float32)])
    ours = decode(encode(values, dtype), dtype)
    theirs = torch.from_numpy(values).to(getattr(torch, TORCH[name])).float().numpy()
    shared = np.abs(values) < 464 if name == "fp8_e4m3" else np.full(len(values), True)  # beyond, torch saturates
    assert same(ours[shared], theirs[shared])
    with np.errstate(all="ignore"):
        assert same(ours, values.astype(dtype.value).astype(np.float32))


@pytest.mark.parametrize("name", TORCH)
def test_halfway_goes_to_the_even_neighbour_and_a_hair_more_goes_up(name: str) -> None:
    dtype = DTYPES[name]
    values = decode(all_bits(dtype)[: 1 << (dtype.bits - 1)], dtype)  # the positive half, in rising order
    values = values[np.isfinite(values)].astype(np.float64)
    low, high = values[:-1], values[1:]
    halfway = ((low + high) / 2).astype(np.float32)
    exact = halfway.astype(np.float64) * 2 == low + high
    even = np.where(np.arange(len(low)) % 2 == 0, low, high)
    assert (decode(encode(halfway, dtype), dtype)[exact] == even[exact]).all()
    above = np.nextafter(halfway, np.float32(np.inf))
    usable = exact & (halfway > 1e-37)  # below, a float32 neighbour may itself be lost as a subnormal
    assert (decode(encode(above, dtype), dtype)[usable] == high[usable]).all()


def test_overflow_is_infinity_where_there_is_one() -> None:
    over = np.array([1e39, -1e39, np.inf], np.float64)
    for dtype in (FP32, FP16, BF16, DTYPES["fp8_e5m2"]):
        assert decode(encode(over, dtype), dtype).tolist() == [np.inf, -np.inf, np.inf]
    assert np.isnan(decode(encode(over, DTYPES["fp8_e4m3"]), DTYPES["fp8_e4m3"])).all()
    assert decode(encode(np.float32([464.0, 465.0]), DTYPES["fp8_e4m3"]), DTYPES["fp8_e4m3"])[0] == 448.0


def test_fp32_passes_every_bit_through() -> None:
    bits = np.array([0, 1 << 31, 1, 0x7F800000, 0x7FC00001, 0x00800000, 0xFFFFFFFF], np.uint32)
    assert (decode(bits.view(np.float32), FP32).view(np.uint32) == bits).all()
    assert (encode(bits.view(np.float32), FP32).view(np.uint32) == bits).all()


def test_integers_are_themselves_if_they_fit() -> None:
    int8, int64 = DTYPES["int8"], DTYPES["int64"]
    assert encode(np.array([-128, 127]), int8).tolist() == [-128, 127]
    assert encode(np.array([2**63 - 1, -(2**63)]), int64).tolist() == [2**63 - 1, -(2**63)]
    assert decode(np.array([5], np.int32), DTYPES["int32"]).dtype == np.int32
    assert encode(np.array([], np.int64), int8).size == 0
    for wrong in ([128], [-129], [0.5], [float("nan")]):
        with pytest.raises(ConfigError, match="int8 takes integers from -128 to 127"):
            encode(np.array(wrong), int8)
    with pytest.raises(ConfigError, match="int64 takes integers"):
        encode(np.array([2**63], np.uint64), int64)


@pytest.mark.parametrize("name", ["int4", "mxfp4"])
def test_packed_types_have_bytes_and_no_values_yet(name: str) -> None:
    for way in (encode, decode):
        with pytest.raises(NotYetError, match=f"{name} packs 2 elements in a byte"):
            way(np.zeros(2, np.uint8), DTYPES[name])


def test_encoding_makes_a_copy_and_takes_any_layout() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for dtype in (FP32, BF16):
        stored = encode(values.T, dtype)
        assert stored.shape == (4, 3) and not np.shares_memory(stored, values)
        assert (decode(stored, dtype) == values.T).all()
    assert ml_dtypes.bfloat16(1.5) == decode(encode(np.float32(1.5), BF16), BF16)
