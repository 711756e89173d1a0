"""Compressed all-reduce: few bytes on the wire, one result for all, and an error that is reported and bounded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.interconnect.cluster import make_cluster
from siltwin.interconnect.collectives.amounts import group_amounts
from siltwin.interconnect.collectives.compressed import (
    Compression,
    compressed_all_reduce,
    compressed_sizes,
)
from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.plan import Plan
from siltwin.isa.dtype import BF16, DTYPES, FP32, INT32, DType, encode
from siltwin.isa.errors import ConfigError, ProgramError

INT8, E4M3, E5M2 = (DTYPES[name] for name in ("int8", "fp8_e4m3", "fp8_e5m2"))


def test_codes_are_rounded_to_the_nearest_step_of_their_block() -> None:
    """Block 1 reaches 127, so its step is 1; block 2 reaches 2.54, so its step is 0.02; a block of zeros stays zero."""
    values = np.float32([127.0, 0.4, 0.5, 1.5, 2.54, 0.011, 0.009, -2.54, 0, 0, 0])
    found = Compression(INT8, block=4).rounded(values)
    assert np.allclose(found, [127.0, 0.0, 0.0, 2.0, 2.54, 0.02, 0.0, -2.54, 0, 0, 0], rtol=1e-6)


def test_the_wire_carries_codes_and_a_scale_a_block() -> None:
    assert Compression(INT8, block=128).wire_bytes(1000) == 1000 + 8 * 4
    plan = expand("all_reduce", 4, "direct")
    assert compressed_sizes(plan, 4 * 256, Compression(E4M3)) == (256 + 8,) * 4


def test_compression_takes_about_a_quarter_of_the_time_of_float32() -> None:
    """1 MiB of fp32 elements over 8 cards: (1 + 4/128) / 4 = 0.258 of the bytes on every link."""
    net, plan = make_cluster("full_mesh", 8, 10**9, 0).topology(), expand("all_reduce", 8, "direct")
    count = 8 * 2**15
    small = group_amounts(plan, compressed_sizes(plan, count, Compression(INT8)), range(8), net)
    plain = group_amounts(plan, [4 * count // 8] * 8, range(8), net)
    assert small.flow_ps / plain.flow_ps == pytest.approx((1 + 4 / 128) / 4)


PLANS = [expand("all_reduce", 6, name) for name in ("direct", "ring", "halving_doubling", "double_binary_tree")]


@pytest.mark.parametrize("wire", [INT8, E4M3, E5M2], ids=repr)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.algorithm)
def test_all_members_hold_the_same_bits_and_the_error_is_that_of_the_sum(plan: Plan, wire: DType) -> None:
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(1000).astype(np.float32) for _ in range(6)]
    buffers = [values.copy() for values in inputs]
    error = compressed_all_reduce(plan, buffers, FP32, Compression(wire))
    assert len({buffer.tobytes() for buffer in buffers}) == 1
    exact = np.sum([values.astype(np.float64) for values in inputs], axis=0)
    assert error.max_abs == np.abs(buffers[0] - exact).max()
    assert error.relative_rms == pytest.approx(np.linalg.norm(buffers[0] - exact) / np.linalg.norm(exact))
    # A rounding is off by a relative rms of about 0.6 % (int8: 2.9 sigma / 127 / sqrt(12)), 2.6 % (e4m3), 5.2 % (e5m2).
    one = {"int8": 0.0066, "fp8_e4m3": 0.0264, "fp8_e5m2": 0.0528}[wire.name]
    roundings = {"direct": 2, "ring": 4.5, "halving_doubling": 3, "double_binary_tree": 4}[plan.algorithm]
    assert 0.6 * one < error.relative_rms < 1.5 * one * roundings**0.5
    assert error.cosine > 0.99


def test_a_ring_rounds_at_every_hop_and_so_errs_more_than_direct() -> None:
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(4096).astype(np.float32) for _ in range(16)]
    errors = {
        name: compressed_all_reduce(
            expand("all_reduce", 16, name), [v.copy() for v in inputs], FP32, Compression(INT8)
        ).relative_rms
        for name in ("direct", "ring")
    }
    assert 1.5 < errors["ring"] / errors["direct"] < 4


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 300), st.integers(0, 100))
def test_the_error_of_a_direct_one_stays_below_its_bound(size: int, count: int, seed: int) -> None:
    """Every contribution but the owner's is off by half a step of its block at most, and so is the sum."""
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-1, 1, count).astype(np.float32) for _ in range(size)]
    buffers = [values.copy() for values in inputs]
    error = compressed_all_reduce(expand("all_reduce", size, "direct"), buffers, FP32, Compression(INT8, block=32))
    assert error.max_abs <= ((size - 1) + size * 1.01) * 0.5 / 127 + 1e-5
    if size == 1:
        assert error.max_abs == 0


def test_other_float_types_are_summed_in_float32_and_rounded_once() -> None:
    buffers = [encode(np.float32([256.0, 1.0]), BF16), encode(np.float32([1.0, 1.0]), BF16)]
    compressed_all_reduce(expand("all_reduce", 2, "direct"), buffers, BF16, Compression(INT8, block=1))
    assert (buffers[0].view(BF16.value).astype(float).tolist()) == [256.0, 2.0]


def test_what_cannot_be_compressed_is_refused() -> None:
    with pytest.raises(ConfigError, match="fp32 is no wire format .* choose int8, fp8_e4m3, fp8_e5m2"):
        Compression(FP32)
    with pytest.raises(ConfigError, match="blocks of 0 elements"):
        Compression(INT8, block=0)
    with pytest.raises(ProgramError, match="compression is for all_reduce"):
        compressed_all_reduce(expand("all_gather", 2), [np.zeros(2, np.float32)] * 2, FP32, Compression())
    with pytest.raises(ProgramError, match="over int32: compression is for all_reduce between members, of floats"):
        compressed_all_reduce(expand("all_reduce", 2), [np.zeros(2, np.int32)] * 2, INT32, Compression())
    with pytest.raises(ProgramError, match="give 2 flat arrays of one length, float32"):
        compressed_all_reduce(expand("all_reduce", 2), [np.zeros(2, np.float32)], FP32, Compression())
    with pytest.raises(ProgramError, match="a value that is not finite"):
        compressed_all_reduce(expand("all_reduce", 2), [np.float32([np.inf])] * 2, FP32, Compression())
