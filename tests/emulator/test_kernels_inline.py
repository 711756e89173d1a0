"""What kernels are built of: conversions to the bit, exp and erf within their ulps, tiles and threads."""

import math
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from siltwin.emulator.kernels import inline, moves
from siltwin.emulator.kernels.inline import erf, exp, largest, rounded, value_of
from siltwin.emulator.kernels.tensor_binders import column_tiles
from siltwin.emulator.kernels.threads import host_threads, over_rows, over_tiles, scratch, set_host_threads
from siltwin.isa.errors import ConfigError


@njit
def round_all(x, out):
    for i in range(x.size):
        out[i] = rounded(out, x[i])


@njit
def load_all(x, out):
    for i in range(x.size):
        out[i] = value_of(x[i])


@njit
def exp_all(x, out):
    for i in range(x.size):
        out[i] = exp(x[i])


@njit
def erf_all(x, out):
    for i in range(x.size):
        out[i] = erf(x[i])


def any_floats(count: int) -> np.ndarray:
    """Random bits (infinities, NaN, subnormals among them) and numbers near the range of fp16."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = (rng.standard_normal(count) * np.exp(8 * rng.standard_normal(count))).astype(np.float32)
    return np.concatenate([bits, near, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65520, -65520])])


@pytest.mark.parametrize(("value", "storage"), [(ml_dtypes.bfloat16, np.uint16), (np.float16, np.int16)])
def test_rounding_and_loading_are_exact_for_any_bits(value: type, storage: type) -> None:
    x = any_floats(200_000)
    out = np.empty(x.size, storage)
    round_all(x, out)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(value)
    nan = np.isnan(x)
    np.testing.assert_array_equal(out[~nan], want.view(storage)[~nan])
    assert np.isnan(out.view(value).astype(np.float32)[nan]).all()
    every = np.arange(65536, dtype=np.uint16)
    loaded = np.empty(65536, np.float32)
    load_all(every.view(storage), loaded)
    np.testing.assert_array_equal(loaded, every.view(value).astype(np.float32))


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    return float((np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))).max())


def test_exp_is_within_two_ulp_over_its_whole_range() -> None:
    x = np.linspace(-87.3, 88.7, 500_001).astype(np.float32)
    out = np.empty_like(x)
    exp_all(x, out)
    assert ulps(out, np.exp(x.astype(np.float64))) < 2


def test_exp_ends_in_zero_infinity_and_nan() -> None:
    x = np.float32([-np.inf, -1000, -87.34, 0, 88.73, np.inf, np.nan])
    out = np.empty_like(x)
    exp_all(x, out)
    np.testing.assert_array_equal(out, np.float32([0, 0, 0, 1, np.inf, np.inf, np.nan]))


def test_erf_is_within_six_ulp() -> None:
    x = np.concatenate([np.linspace(-6, 6, 100_001), np.geomspace(1e-20, 1, 1000)]).astype(np.float32)
    out = np.empty_like(x)
    erf_all(x, out)
    want = np.array([math.erf(value) for value in x.tolist()])
    nonzero = want != 0
    assert ulps(out[nonzero], want[nonzero]) < 6
    np.testing.assert_array_equal(out[~nonzero], 0)


def test_largest_is_the_maximum_of_any_run() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 2, 7, 16, 33, 500):
        x = rng.standard_normal(size).astype(np.float32)
        assert largest(x) == x.max()
        assert largest(-np.abs(x)) == (-np.abs(x)).max()
    assert largest(np.float32([-np.inf, -np.inf])) == -np.inf


def test_a_kernel_on_disk_is_as_old_as_what_it_inlines() -> None:
    stamp = moves.cast._cache._cache_file._source_stamp
    stat = os.stat(Path(inline.__file__))
    assert (stat.st_mtime, stat.st_size) in stamp


def test_tiles_cover_the_columns_once_and_follow_from_the_shape() -> None:
    for m, k, n in [(1, 1, 1), (17, 64, 33), (512, 512, 512), (512, 512, 2816), (40, 300, 1111), (64, 4096, 51865)]:
        tiles = column_tiles(m, k, n)
        assert [tiles[0][0], *(last for _, last in tiles)] == [*(first for first, _ in tiles), n]
        assert all(last > first for first, last in tiles)
    assert column_tiles(4, 16, 64) == [(0, 64)]
    assert len(column_tiles(512, 512, 512)) == 2


@pytest.fixture
def threads():
    before = host_threads()
    yield set_host_threads
    set_host_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_rows_and_tiles_are_all_run_once_and_the_first_bad_row_is_told(threads, count: int) -> None:
    threads(count)
    assert host_threads() == count
    seen = np.zeros(1000, np.int64)

    def run(first: int, last: int) -> int:
        seen[first:last] += 1
        return next((row for row in (990, 400, 700) if first <= row < last), -1)

    assert over_rows(run, 300, 10**9) == -1
    assert over_rows(run, 1000, 10**9) in (990, 400)  # one range stops where `run` says, more at their first
    over_tiles(lambda tile: seen.__setitem__(tile, seen[tile] + 1), 1000)
    assert (seen[:300] == 3).all() and (seen[300:] == 2).all()


def test_a_failing_tile_raises_and_leaves_the_pool_usable(threads) -> None:
    threads(2)

    def run(tile: int) -> None:
        if tile == 3:
            raise ValueError("tile 3")

    with pytest.raises(ValueError, match="tile 3"):
        over_tiles(run, 5)
    over_tiles(lambda tile: None, 5)


def test_host_threads_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="host threads must be 1 or more, not 0"):
        set_host_threads(0)


def test_scratch_is_kept_by_name_and_grows() -> None:
    small = scratch("test", 2, 3)
    assert small.shape == (2, 3) and scratch("test", 3, 2).base is small.base
    assert scratch("test", 40, 50).shape == (40, 50)
