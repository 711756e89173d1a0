"""Sizes as users of nccl-tests write them."""

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime.fabric.sizes import parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("7", 7),
        ("7B", 7),
        ("1KiB", 1024),
        ("1k", 1024),
        ("8M", 8 << 20),
        ("1 GiB", 1 << 30),
        ("2KB", 2000),
        ("1.5MiB", 3 << 19),
        ("1TB", 10**12),
    ],
)
def test_a_size_is_read_in_its_unit(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


def test_a_range_doubles_and_keeps_both_ends() -> None:
    assert parse_sizes("1KiB:8KiB") == (1024, 2048, 4096, 8192)


def test_a_range_grows_by_its_factor_and_stops_at_its_end() -> None:
    assert parse_sizes("1KiB:1MiB", 4) == tuple(1024 * 4**power for power in range(6))
    assert parse_sizes("100:350", 1.5) == (100, 150, 225, 337)


def test_a_list_is_sorted_and_says_nothing_twice() -> None:
    assert parse_sizes("1MiB, 1KiB,1024, 2KiB:4KiB") == (1024, 2048, 4096, 1 << 20)


def test_a_range_of_one_size_is_that_size() -> None:
    assert parse_sizes("64MiB:64MiB") == (64 << 20,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "whole number of bytes from 1"),
        ("0.3KiB", "whole number of bytes"),
        ("-1KiB", "is no size"),
        ("1XiB", "in B, KiB, MiB, GiB"),
        ("", "names no size"),
        (" , ", "names no size"),
        ("1MiB:1KiB", "write the smaller one first"),
        ("1KiB:2KiB:4KiB", "is no size"),
        ("1:1GiB:", "is no size"),
        ("17TiB", "whole number of bytes from 1 to 17592186044416"),
        ("1e6", "is no size"),
    ],
)
def test_what_is_no_size_is_refused_with_the_form(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sizes(text)


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0, float("nan"), float("inf")])
def test_a_factor_must_grow(factor: float) -> None:
    with pytest.raises(ConfigError, match="must be above 1"):
        parse_sizes("1KiB:1MiB", factor)


def test_too_many_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than 256 sizes; raise it"):
        parse_sizes("1:1GiB", 1.01)
