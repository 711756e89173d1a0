"""Linear attention's instructions by hand: convolution tails, the delta rule, and its chunked form."""

from __future__ import annotations

import numpy as np
import pytest

from siltwin.isa.dtype import BF16, FP32, INT32
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import TensorType
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.program import Binding, Block
from siltwin.isa.recurrent import CAUSAL_CONV, CHUNK_TOKENS, GATED_DELTA

LENGTHS = {"i": INT32, "q": INT32, "n": INT32}


def memory(arrays: dict[str, np.ndarray], q_lens: list[int], kv_lens: list[int], slots: list[int]) -> ArrayMemory:
    arrays |= {name: np.array(v, np.int32) for name, v in (("i", slots), ("q", q_lens), ("n", kv_lens))}
    kinds = {name: LENGTHS.get(name, FP32) for name in arrays}
    params = tuple((name, TensorType(kinds[name], array.shape)) for name, array in arrays.items())
    extents = {"ql": tuple(q_lens), "kl": tuple(kv_lens)}
    return ArrayMemory(Block("b", params, (), ()), {}, Binding(extents, {}), arrays)


CONV = CAUSAL_CONV(*map(Ref, "oxwsiqn"), "ql", "kl")


def delta(heads: int, key_heads: int, key_dim: int, value_dim: int, bound: float = 0.0) -> GATED_DELTA:
    refs = [Ref(name) for name in ("o", "x", "k", "v", "g", "b", "a", "t", "s", "i", "q", "n")]
    return GATED_DELTA(*refs, "ql", "kl", heads, key_heads, key_dim, value_dim, bound)


def test_a_convolution_reaches_back_into_the_tail_and_leaves_a_new_one() -> None:
    arrays = {
        "o": np.zeros((3, 1), np.float32),
        "x": np.array([[1], [2], [3]], np.float32),
        "w": np.array([[100, 10, 1]], np.float32),
        "s": np.array([[7, 7], [5, 6]], np.float32),
    }
    bench = memory(arrays, [1, 2], [4, 2], [1, 0])
    CONV.execute(bench)
    # slot 1 goes on after 5, 6; slot 0 begins anew, whatever it held
    sums = np.array([500 + 60 + 1, 2, 20 + 3], np.float32)
    np.testing.assert_allclose(arrays["o"][:, 0], sums / (1 + np.exp(-sums)), rtol=1e-6)
    assert arrays["s"].tolist() == [[2, 3], [6, 1]]


def test_a_delta_step_by_hand() -> None:
    """One head of one key channel and one value: S = 2 decays by exp(-e^0 * softplus(0)) = 1/2, then learns v."""
    arrays = {name: np.zeros((1, 1), np.float32) for name in ("o", "g", "b")}
    arrays |= {"x": np.array([[3]], np.float32), "k": np.array([[-2]], np.float32), "v": np.array([[5]], np.float32)}
    arrays |= {"a": np.zeros(1, np.float32), "t": np.zeros(1, np.float32), "s": np.array([[2]], np.float32)}
    bench = memory(arrays, [1], [9], [0])
    delta(1, 1, 1, 1).execute(bench)
    # kept 1; k = -1 reads -1; beta = 1/2 learns (5 + 1) / 2 = 3, so S = 1 - 3 = -2; q = 1
    np.testing.assert_allclose(arrays["s"], [[-2]], rtol=1e-5)
    np.testing.assert_allclose(arrays["o"], [[-2]], rtol=1e-5)


def test_a_lower_bound_replaces_the_softplus() -> None:
    arrays = {name: np.zeros((1, 1), np.float32) for name in ("o", "g", "b", "x", "k", "v")}
    arrays |= {"a": np.zeros(1, np.float32), "t": np.zeros(1, np.float32), "s": np.array([[2]], np.float32)}
    delta(1, 1, 1, 1, -5.0).execute(memory(arrays, [1], [9], [0]))
    np.testing.assert_allclose(arrays["s"], [[2 * np.exp(-2.5)]], rtol=1e-6)  # -5 * sigmoid(0)


def random_arrays(tokens: int, heads: int, key_heads: int, dims: tuple[int, int], per_channel: bool) -> dict:
    rng = np.random.default_rng(tokens)
    key_dim, value_dim = dims
    channels = heads * key_dim if per_channel else heads
    shapes = {
        "o": (tokens, heads * value_dim),
        "x": (tokens, key_heads * key_dim),
        "k": (tokens, key_heads * key_dim),
        "v": (tokens, heads * value_dim),
        "g": (tokens, channels),
        "b": (tokens, heads),
        "a": (heads,),
        "t": (channels,),
        "s": (2, heads * key_dim * value_dim),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("per_channel", [False, True])
def test_steps_of_any_size_give_the_same_numbers(per_channel: bool) -> None:
    arrays = random_arrays(20, 4, 2, (5, 3), per_channel)
    whole = {name: array.copy() for name, array in arrays.items()}
    delta(4, 2, 5, 3).execute(memory(whole, [20], [20], [1]))
    at = 0
    for count in (7, 1, 1, 11):
        rows = {n: (a[at : at + count].copy() if n in "oxkvgb" else a) for n, a in arrays.items() if n not in LENGTHS}
        delta(4, 2, 5, 3).execute(memory(rows, [count], [at + count], [1]))
        np.testing.assert_array_equal(rows["o"], whole["o"][at : at + count])
        at += count
    np.testing.assert_array_equal(arrays["s"], whole["s"])


def chunked(arrays: dict[str, np.ndarray], dims: tuple[int, int], chunk: int) -> np.ndarray:
    """The chunked form of one head in float64: a triangular solve a chunk (Yang, Kautz, Hatamizadeh 2024)."""
    q, k = (arrays[n].astype(np.float64) for n in "xk")
    q, k = (x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-6) for x in (q, k))
    q, v = q * dims[0] ** -0.5, arrays["v"].astype(np.float64)
    beta = 1 / (1 + np.exp(-arrays["b"].astype(np.float64)))
    g = -np.exp(arrays["a"][0]) * np.logaddexp(0, arrays["g"].astype(np.float64) + arrays["t"])
    g = np.broadcast_to(g, q.shape)
    state, out = np.zeros(dims), []
    for at in range(0, len(q), chunk):
        qc, kc, vc, bc, sums = (x[at : at + chunk] for x in (q, k, v, beta, g))
        sums = sums.cumsum(0)
        pairs = np.tril(np.ones((len(qc), len(qc))))[..., None] * np.exp(np.minimum(sums[:, None] - sums[None, :], 0))
        system = np.eye(len(qc)) + np.tril(bc * np.einsum("id,jd,ijd->ij", kc, kc, pairs), -1)
        change = np.linalg.solve(system, bc * (vc - (kc * np.exp(sums)) @ state))
        out.append((qc * np.exp(sums)) @ state + np.einsum("id,jd,ijd->ij", qc, kc, pairs) @ change)
        state = state * np.exp(sums[-1])[:, None] + (kc * np.exp(sums[-1] - sums)).T @ change
    return np.concatenate(out)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("chunk", [4, 64])
def test_the_chunked_form_gives_the_same_numbers(chunk: int, per_channel: bool) -> None:
    arrays = random_arrays(100, 1, 1, (8, 6), per_channel)
    want = chunked(arrays, (8, 6), chunk)
    delta(1, 1, 8, 6).execute(memory(arrays, [100], [100], [0]))
    assert np.abs(arrays["o"] - want).max() < 2e-6


def test_work_counts_the_states_of_sequences_that_have_new_tokens() -> None:
    arrays = random_arrays(9, 4, 2, (5, 3), False)
    work = delta(4, 2, 5, 3).work(memory(arrays, [8, 1, 0], [8, 6, 4], [0, 1, 1]))
    inputs = 4 * (2 * 9 * 10 + 9 * 12 + 2 * 9 * 4 + 4 + 4)
    state = 4 * 4 * 5 * 3
    assert (work.read_bytes, work.write_bytes) == (inputs + state, 4 * 9 * 12 + 2 * state)
    assert CHUNK_TOKENS == 64
    depth = 3 * 5 + 56  # within a chunk of 8: 8 * (3 * 5 + 2 * 3) / 3 = 56
    assert work.ops == 2 * 9 * 4 * 3 * depth
    one = delta(4, 2, 5, 3).work(memory(random_arrays(1, 4, 2, (5, 3), False), [1], [6], [0]))
    assert one.ops == 2 * 4 * 3 * 15, "a decode step is three products with the state"


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "slots", "message"),
    [
        ([3], [2], [0], "3 new tokens of a sequence of 2"),
        ([2], [2], [0], "3 rows for 2 new tokens"),
        ([3], [3], [2], "slot 2 is outside 0 to 1"),
        ([3], [3], [-1], "slot -1 is outside 0 to 1"),
    ],
)
def test_lengths_and_slots_that_cannot_be_are_named(q_lens, kv_lens, slots, message: str) -> None:
    arrays = {
        "o": np.zeros((3, 1), np.float32),
        "x": np.zeros((3, 1), np.float32),
        "w": np.zeros((1, 3), np.float32),
        "s": np.zeros((2, 2), np.float32),
    }
    with pytest.raises(ProgramError, match=message):
        CONV.execute(memory(arrays, q_lens, kv_lens, slots))


def test_a_state_is_never_kept_in_fewer_bits() -> None:
    assert BF16 is not FP32
    arrays = random_arrays(1, 1, 1, (2, 2), False)
    bench = memory(arrays, [1], [1], [0])
    params = tuple((n, TensorType(BF16, k.shape) if n == "s" else k) for n, k in bench.block.params)
    with pytest.raises(ProgramError, match="must be fp32"):
        delta(1, 1, 2, 2).check(ArrayMemory(Block("b", params, (), ()), {}, bench.binding, arrays))
