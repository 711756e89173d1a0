"""Norms, rope, gates, element-wise work and softmax against torch and against rotation matrices."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.errors import ProgramError

RNG = np.random.default_rng


def wide(torch: Any, array: np.ndarray) -> Any:
    return torch.from_numpy(array.astype(np.float64))


def test_rmsnorm_by_hand(bench: Any) -> None:
    buffers = {"d": "fp32[1, 4]", "x": "fp32[1, 4]", "w": "fp32[2]"}
    values = {"x": [[1, 7, 3, 3]], "w": [1, 2]}  # runs (1, 7) and (3, 3): root mean squares 5 and 3
    out = bench.run("rmsnorm dst=%d x=%x weight=%w eps=0.0 plus_one=no", values, **buffers)
    assert np.allclose(out["d"], [[0.2, 2.8, 1, 2]], rtol=1e-6)
    out = bench.run("rmsnorm dst=%d x=%x weight=%w eps=0.0 plus_one=yes", values, **buffers)
    assert np.allclose(out["d"], [[0.4, 4.2, 2, 3]], rtol=1e-6)
    out = bench.run("rmsnorm dst=%d x=%x weight=%w eps=16.0 plus_one=no", values, **buffers)
    assert np.allclose(out["d"], [[1 / 41**0.5, 14 / 41**0.5, 0.6, 1.2]], rtol=1e-6)


@pytest.mark.parametrize(("rows", "run"), [(5, 48), (3, 16), (0, 48)])
def test_rmsnorm_is_torchs(bench: Any, torch: Any, rows: int, run: int) -> None:
    rng = RNG(2)
    values = {"x": rng.normal(size=(rows, 48)), "w": rng.normal(size=run)}
    out = bench.run(
        "rmsnorm dst=%d x=%x weight=%w eps=1e-05 plus_one=no",
        values,
        d=f"fp32[{rows}, 48]",
        x=f"fp32[{rows}, 48]",
        w=f"fp32[{run}]",
    )
    x = wide(torch, out["x"]).reshape(-1, run)
    theirs = torch.nn.functional.rms_norm(x, (run,), wide(torch, out["w"]), 1e-5)
    assert np.allclose(out["d"], theirs.reshape(rows, 48), atol=2e-6)


def test_rmsnorm_in_bf16_rounds_before_the_weight_and_after_it(bench: Any, torch: Any) -> None:
    rng = RNG(3)
    values = {"x": rng.normal(size=(4, 32)) * 3, "w": rng.normal(size=32)}
    types = {"d": "bf16[4, 32]", "x": "bf16[4, 32]", "w": "bf16[32]"}
    out = bench.run("rmsnorm dst=%d x=%x weight=%w eps=1e-06 plus_one=no", values, **types)
    x, w = (torch.from_numpy(out[name]) for name in ("x", "w"))
    normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)  # as transformers' LlamaRMSNorm computes it
    theirs = (w.bfloat16() * normal.bfloat16()).float().numpy()
    assert (np.abs(out["d"] - theirs) <= np.abs(theirs) * 2.0**-7).all() and (out["d"] == theirs).mean() > 0.95
    out = bench.run("rmsnorm dst=%d x=%x weight=%w eps=1e-06 plus_one=yes", values, **types)
    theirs = (normal * (1 + w)).bfloat16().float().numpy()  # and GemmaRMSNorm
    assert (np.abs(out["d"] - theirs) <= np.abs(theirs) * 2.0**-7).all() and (out["d"] == theirs).mean() > 0.95


def test_add_rmsnorm_is_the_add_and_then_the_norm_of_the_rounded_sum(bench: Any) -> None:
    rng = RNG(4)
    values = {"x": rng.normal(size=(3, 16)), "y": rng.normal(size=(3, 16)), "w": rng.normal(size=16)}
    types = {"d": "bf16[3, 16]", "x": "bf16[3, 16]", "y": "bf16[3, 16]", "w": "bf16[16]"}
    fused = bench.run("add_rmsnorm dst=%d x=%x delta=%y weight=%w eps=1e-05 plus_one=no", values, **types)
    apart = bench.run(
        "q | add dst=%x a=%x b=%y\nq | rmsnorm dst=%d x=%x weight=%w eps=1e-05 plus_one=no", values, **types
    )
    assert (fused["x"] == apart["x"]).all() and (fused["d"] == apart["d"]).all()
    assert (fused["y"] == values["y"].astype(ml_dtypes.bfloat16).astype(np.float32)).all()


@pytest.mark.parametrize("bias", ["%b", "-"])
def test_layernorm_is_torchs(bench: Any, torch: Any, bias: str) -> None:
    rng = RNG(5)
    values = {"x": rng.normal(size=(5, 24)) * 4 + 100, "w": rng.normal(size=24), "b": rng.normal(size=24)}
    types = {"d": "fp32[5, 24]", "x": "fp32[5, 24]", "w": "fp32[24]", "b": "fp32[24]"}
    out = bench.run(f"layernorm dst=%d x=%x weight=%w bias={bias} eps=1e-05", values, **types)
    theirs = torch.nn.functional.layer_norm(
        wide(torch, out["x"]), (24,), wide(torch, out["w"]), wide(torch, out["b"]) if bias != "-" else None, 1e-5
    )
    assert np.allclose(out["d"], theirs, atol=2e-5)  # the mean of 100 costs fp32 two digits


def rotation_oracle(x: np.ndarray, angles: np.ndarray, head_dim: int, rotary_dim: int, interleaved: bool) -> np.ndarray:
    """Every token and head through one orthogonal matrix, in fp64; angles are [tokens, rotary_dim / 2]."""
    out = x.astype(np.float64).copy()
    half = rotary_dim // 2
    for token, row in enumerate(angles):
        matrix = np.eye(head_dim)
        for pair, angle in enumerate(row):
            i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
            matrix[[i, i, j, j], [i, j, i, j]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
        for head in range(x.shape[1] // head_dim):
            part = slice(head * head_dim, (head + 1) * head_dim)
            out[token, part] = matrix @ out[token, part]
    return out


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 8), (8, 4), (6, 2), (16, 12)])
def test_rope_is_a_rotation_of_pairs(bench: Any, interleaved: bool, head_dim: int, rotary_dim: int) -> None:
    rng = RNG(6)
    angle = rng.uniform(-4, 4, size=(11, rotary_dim // 2))
    positions = [10, 0, 3, 3, 7]
    values = {"x": rng.normal(size=(5, 3 * head_dim)), "c": np.cos(angle), "s": np.sin(angle), "p": positions}
    types = {"x": f"fp32[5, {3 * head_dim}]", "c": f"fp32[11, {rotary_dim // 2}]", "p": "int32[5]"}
    out = bench.run(
        f"rope x=%x cos=%c sin=%s positions=%p head_dim={head_dim} rotary_dim={rotary_dim} "
        f"interleaved={'yes' if interleaved else 'no'}",
        values,
        **types,
        s=types["c"],
    )
    expected = rotation_oracle(values["x"], angle[positions], head_dim, rotary_dim, interleaved)
    assert np.allclose(out["x"], expected, atol=1e-6)


def test_rope_of_columns_leaves_the_others_alone(bench: Any) -> None:
    types = {"x": "fp32[1, 6]", "c": "fp32[1, 1]", "s": "fp32[1, 1]", "p": "int32[1]"}
    out = bench.run(
        "rope x=%x[2:4] cos=%c sin=%s positions=%p head_dim=2 rotary_dim=2 interleaved=no",
        {"x": [[1, 2, 3, 4, 5, 6]], "c": [[0]], "s": [[1]]},
        **types,
    )
    assert out["x"].tolist() == [[1, 2, -4, 3, 5, 6]]
    for position in (1, -1):
        with pytest.raises(ProgramError, match=f"rope: position {position} is outside 0 to 0"):
            bench.run(
                "rope x=%x cos=%c sin=%s positions=%p head_dim=2 rotary_dim=2 interleaved=no",
                {"p": [position]},
                **types,
            )


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=20))
def test_gates_are_torchs(bench: Any, torch: Any, activation: str, gate: list[float]) -> None:
    x = np.array([gate + [-1e4, 1e4, 0.0, -0.0], [1.5] * (len(gate) + 4)], np.float32).reshape(1, -1)
    half = x.shape[1] // 2
    out = bench.run(
        f"gated dst=%d x=%x activation={activation}", {"x": x}, d=f"fp32[1, {half}]", x=f"fp32[1, {2 * half}]"
    )
    functional, given_gate = torch.nn.functional, wide(torch, x[:, :half])
    activated = (
        functional.silu(given_gate)
        if activation == "silu"
        else functional.gelu(given_gate, approximate="tanh" if activation == "gelu_tanh" else "none")
    )
    assert np.allclose(out["d"], 1.5 * activated, rtol=2e-5, atol=1e-6)


def test_add_scale_and_cast_compute_in_fp32_and_round_once(bench: Any) -> None:
    rng = RNG(7)
    values = {"a": rng.normal(size=(4, 9)), "b": rng.normal(size=(4, 9)) * 100}
    types = {"d": "bf16[4, 9]", "a": "fp32[4, 9]", "b": "bf16[4, 9]"}

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)

    out = bench.run("add dst=%d a=%a b=%b", values, **types)
    assert (out["d"] == rounded(out["a"] + out["b"])).all()
    out = bench.run("scale dst=%d x=%a factor=0.1", values, **types)
    assert (out["d"] == rounded(out["a"] * np.float32(0.1))).all()
    out = bench.run("cast dst=%d x=%a", values, **types)
    assert (out["d"] == rounded(out["a"])).all()


@pytest.mark.parametrize("rows", [0, 4])
def test_softmax_is_torchs_and_does_not_overflow(bench: Any, torch: Any, rows: int) -> None:
    x = RNG(8).normal(size=(rows, 17)).astype(np.float32) * 50
    x[:1, :3] = [-np.inf, 1e4, 1e4]
    out = bench.run("softmax dst=%d x=%x", {"x": x}, d=f"fp32[{rows}, 17]", x=f"fp32[{rows}, 17]")
    assert np.allclose(out["d"], torch.softmax(wide(torch, x), -1), atol=1e-6)
    assert np.allclose(out["d"].sum(axis=1), 1, atol=1e-6)


def test_no_row_and_no_token_is_no_error(bench: Any) -> None:
    bench.run("gated dst=%d x=%x activation=gelu", {}, d="fp32[0, 5]", x="fp32[0, 10]")
    bench.run("argmax dst=%d x=%x", {}, d="int32[0]", x="fp32[0, 5]")
    sample = "sample dst=%d x=%x keys=%k temperature=1.0 top_k=0 top_p=1.0"
    bench.run(sample, {}, d="int32[0]", x="fp32[0, 5]", k="int64[0]")
    rope = "rope x=%x cos=%c sin=%s positions=%p head_dim=4 rotary_dim=4 interleaved=yes"
    bench.run(rope, {}, x="fp32[0, 8]", c="fp32[9, 2]", s="fp32[9, 2]", p="int32[0]")
