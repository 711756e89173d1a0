"""Argmax and sampling: the candidates by brute force, the draw by its distribution, the hash by published numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.errors import ProgramError
from siltwin.isa.vector import uniform

# SplitMix64 (Steele, Lea, Flood 2014), the first outputs for seed 0 and for 1234567, as published with the reference C
# code and as Rosetta Code lists them. Output n + 1 of a seed is the first output of the seed plus n golden gammas.
GAMMA = 0x9E3779B97F4A7C15
PUBLISHED = {
    0: (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC),
    1234567: (
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ),
}


def test_the_hash_is_splitmix64() -> None:
    for seed, outputs in PUBLISHED.items():
        for step, output in enumerate(outputs):
            assert uniform(seed + step * GAMMA) == (output >> 11) / 2**53
    assert uniform(-1) == uniform(2**64 - 1), "a key is 64 bits, signed or not"


def test_the_hash_is_uniform_over_consecutive_keys() -> None:
    draws = np.array([uniform(key) for key in range(20_000)])
    assert 0 <= draws.min() and draws.max() < 1
    counts = np.bincount((draws * 50).astype(int), minlength=50)
    assert ((counts - 400) ** 2 / 400).sum() < 85  # chi-square, 49 degrees of freedom: p = 0.001


def test_argmax_takes_the_first_of_equals(bench: Any) -> None:
    x = [[1, 3, 3, 2], [5, 5, 5, 5], [-np.inf, -np.inf, -3, -3], [0, 0, np.inf, 1]]
    out = bench.run("argmax dst=%d x=%x", {"x": x}, d="int32[4]", x="bf16[4, 4]")
    assert out["d"].tolist() == [1, 0, 2, 2]


def sample(bench: Any, x: Any, keys: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    x = np.asarray(x, np.float32)
    result: np.ndarray = bench.run(
        f"sample dst=%d x=%x keys=%k temperature={temperature!r} top_k={top_k} top_p={top_p!r}",
        {"x": x, "k": keys},
        d=f"int32[{len(x)}]",
        x=f"fp32[{len(x)}, {x.shape[1]}]",
        k=f"int64[{len(x)}]",
    )["d"]
    return result


def kept_by_brute_force(x: np.ndarray, temperature: float, top_k: int, top_p: float) -> dict[int, float]:
    """The candidates and their exact probabilities, by sorting and adding one at a time."""
    order = sorted(range(len(x)), key=lambda index: (-x[index], index))[: top_k or None]
    mass = [float(np.exp((float(x[index]) - float(x[order[0]])) / temperature)) for index in order]
    kept, total = [], 0.0
    for index, part in zip(order, mass, strict=True):
        kept.append((index, part))
        total += part / sum(mass)
        if total >= top_p:
            break
    whole = sum(part for _, part in kept)
    return {index: part / whole for index, part in kept}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (3.0, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.7), (0.8, 5, 0.9), (1.0, 99, 1.0)],
)
def test_draws_follow_the_exact_probabilities(bench: Any, temperature: float, top_k: int, top_p: float) -> None:
    x = np.array([0.5, 2.0, 2.0, -1.0, 1.0, 0.0, 1.5, -0.5], np.float32)
    draws = 4000
    picked = sample(bench, np.tile(x, (draws, 1)), np.arange(draws) * 7919 - 12345, temperature, top_k, top_p)
    exact = kept_by_brute_force(x, temperature, top_k, top_p)
    counts = np.bincount(picked, minlength=len(x))
    assert {index for index in range(len(x)) if counts[index]} == exact.keys()
    chi_square = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in exact.items())
    assert chi_square < 24.4  # 7 degrees of freedom or fewer: p = 0.001


@settings(max_examples=60, deadline=None)
@given(
    x=st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=8),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.1, 0.5, 0.77, 0.93, 1.0]),
)
def test_candidates_are_those_of_brute_force(
    bench: Any, x: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    row = np.array(x, np.float32)
    picked = sample(bench, np.tile(row, (60, 1)), np.arange(60), temperature, top_k, top_p)
    exact = kept_by_brute_force(row, temperature, top_k, top_p)
    nearly = kept_by_brute_force(row, temperature, top_k, min(1.0, top_p + 1e-9))  # a sum may fall either way
    assert set(picked.tolist()) <= exact.keys() | nearly.keys()


def test_ties_go_to_the_lower_index_when_top_k_cuts_between_them(bench: Any) -> None:
    assert set(sample(bench, np.tile([1, 2, 2, 2], (200, 1)), np.arange(200), top_k=2).tolist()) == {1, 2}
    assert set(sample(bench, np.tile([1, 2, 2, 2], (50, 1)), np.arange(50), top_k=1).tolist()) == {1}


def test_top_p_keeps_the_token_that_reaches_it_and_never_nothing(bench: Any) -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))

    def kept(top_p: float) -> set[int]:
        return set(sample(bench, np.tile(row, (300, 1)), np.arange(300), top_p=top_p).tolist())

    assert [kept(p) for p in (1e-9, 0.49, 0.51, 0.74, 0.76, 0.9, 1.0)] == [
        {0},
        {0},
        {0, 1},
        {0, 1},
        {0, 1, 2},
        {0, 1, 2, 3},
        {0, 1, 2, 3},
    ]


def test_a_draw_depends_on_its_key_and_not_on_the_batch(bench: Any) -> None:
    x = np.random.default_rng(9).normal(size=(6, 50)).astype(np.float32)
    keys = np.array([3, -1, 2**62, 0, 3, -(2**63)])
    together = sample(bench, x, keys)
    alone = [int(sample(bench, x[i : i + 1], keys[i : i + 1])[0]) for i in range(6)]
    assert together.tolist() == alone


def test_a_cold_temperature_is_argmax_and_impossible_tokens_are_never_drawn(bench: Any) -> None:
    x = np.random.default_rng(10).normal(size=(40, 30)).astype(np.float32) * 1e30
    assert (sample(bench, x, np.arange(40), temperature=1e-300) == x.argmax(axis=1)).all()
    assert set(sample(bench, np.tile([-np.inf, 0, -np.inf, 0], (99, 1)), np.arange(99)).tolist()) == {1, 3}


@pytest.mark.parametrize("row", [[np.nan, 1], [1, np.nan], [np.inf, 1], [-np.inf, -np.inf]])
def test_scores_that_make_no_distribution_are_refused(bench: Any, row: list[float]) -> None:
    with pytest.raises(ProgramError, match="sample: the largest score is .*: no distribution to draw from"):
        sample(bench, [row], [1])
