"""How fast the kernels are beside torch and BLAS: ratios measured in one run, taken in turns, one host thread each.

    python benchmarks/bench_kernels.py

A ratio below 1 means that ours is faster. Needs torch (the extra `reference`).
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as torch_nn

from siltwin.emulator.kernels.registry import KERNELS, set_host_threads
from siltwin.isa.dtype import BF16, FP32, INT32, DType, encode
from siltwin.isa.instruction import Array, Instruction, TensorType
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.program import Binding, Block
from siltwin.isa.tensor import ATTENTION, MATMUL
from siltwin.isa.vector import ADD, GATED, RMSNORM, SOFTMAX

ROUNDS = 15
Run = Callable[[], object]
Row = tuple[str, Run, str, Run]
TORCH = {FP32: torch.float32, BF16: torch.bfloat16}
RNG = np.random.default_rng(0)


def bound(instruction: Instruction, arrays: dict[str, tuple[DType, Array]]) -> Run:
    """The kernel of an instruction over these buffers, ready to be called."""
    params = tuple((name, TensorType(dtype, array.shape)) for name, (dtype, array) in arrays.items())
    memory = ArrayMemory(Block("b", params, (), ()), {}, Binding({}, {}), {n: a for n, (_, a) in arrays.items()})
    return KERNELS[instruction.mnemonic](instruction, memory)


def random(dtype: DType, *shape: int) -> Array:
    """Normal numbers in a dtype's storage."""
    return encode(RNG.standard_normal(shape).astype(np.float32), dtype)


def matmul(dtype: DType, m: int, k: int, n: int) -> Run:
    """dst[m, n] = a[m, k] @ w[n, k]^T."""
    arrays = {"o": (dtype, random(dtype, m, n)), "a": (dtype, random(dtype, m, k)), "w": (dtype, random(dtype, n, k))}
    return bound(MATMUL(Ref("o"), Ref("a"), Ref("w"), None), arrays)


def linear(dtype: DType, m: int, k: int, n: int) -> Run:
    """The same by torch."""
    a, w = torch.randn(m, k, dtype=TORCH[dtype]), torch.randn(n, k, dtype=TORCH[dtype])
    return lambda: torch_nn.linear(a, w)


def blas(m: int, k: int, n: int) -> Run:
    """The same in fp32 by NumPy's BLAS."""
    a, w, out = random(FP32, m, k), random(FP32, n, k), random(FP32, m, n)
    return lambda: np.matmul(a, w.T, out=out)


def attention(dtype: DType, queries: int, length: int, heads: int = 8, dim: int = 64) -> Run:
    """The last `queries` tokens of one sequence over its paged cache."""
    pages = -(-length // 16)
    arrays = {
        "o": (dtype, random(dtype, queries, heads * dim)),
        "q": (dtype, random(dtype, queries, heads * dim)),
        "c": (dtype, random(dtype, pages, 16, 2 * heads * dim)),
        "t": (INT32, RNG.permutation(pages).astype(np.int32)[None, :]),
        "ql": (INT32, np.array([queries], np.int32)),
        "kl": (INT32, np.array([length], np.int32)),
    }
    refs = (Ref("o"), Ref("q"), Ref("c"), Ref("t"), Ref("ql"), Ref("kl"))
    return bound(ATTENTION(*refs, "q", "kv", heads, heads, dim, dim, dim**-0.5, 0), arrays)


def sdpa(dtype: DType, queries: int, length: int, heads: int = 8, dim: int = 64) -> Run:
    """The same by torch, from a cache that lies contiguous."""
    q = torch.randn(1, heads, queries, dim, dtype=TORCH[dtype])
    k, v = (torch.randn(1, heads, length, dim, dtype=TORCH[dtype]) for _ in range(2))
    causal = queries == length
    return lambda: torch_nn.scaled_dot_product_attention(q, k, v, is_causal=causal)


def elementwise(dtype: DType) -> Iterator[Row]:
    """Vector instructions over 512 rows, each beside torch's."""
    x, y, out = (dtype, random(dtype, 512, 512)), (dtype, random(dtype, 512, 512)), (dtype, random(dtype, 512, 512))
    wide, half, weight = (
        (dtype, random(dtype, 512, 2816)),
        (dtype, random(dtype, 512, 1408)),
        (dtype, random(dtype, 512)),
    )
    t, u = torch.randn(512, 512, dtype=TORCH[dtype]), torch.randn(512, dtype=TORCH[dtype])
    gate, up = (torch.randn(512, 1408, dtype=TORCH[dtype]) for _ in range(2))
    o, a = Ref("o"), Ref("a")
    yield "add 512x512", bound(ADD(o, a, Ref("b")), {"o": out, "a": x, "b": y}), "torch", lambda: t + t
    norm = bound(RMSNORM(o, a, Ref("w"), 1e-5, False), {"o": out, "a": x, "w": weight})
    yield "rmsnorm 512x512", norm, "torch", lambda: torch_nn.rms_norm(t, (512,), u)
    yield "softmax 512x512", bound(SOFTMAX(o, a), {"o": out, "a": x}), "torch", lambda: torch.softmax(t, -1)
    gated = bound(GATED(o, a, "silu"), {"o": half, "a": wide})
    yield "silu gate 512x1408", gated, "torch", lambda: torch_nn.silu(gate) * up


def rows() -> Iterator[Row]:
    """Everything that is measured."""
    for dtype in (FP32, BF16):
        for m, k, n in ((512, 512, 512), (512, 512, 2816), (512, 1408, 512)):
            yield f"matmul {dtype} {m}x{k}x{n}", matmul(dtype, m, k, n), "torch fp32", linear(FP32, m, k, n)
        for queries, length in ((512, 512), (1, 512), (1, 4096)):
            name = f"attention {dtype} {queries} of {length}"
            yield name, attention(dtype, queries, length), "torch fp32", sdpa(FP32, queries, length)
        for name, ours, what, theirs in elementwise(dtype):
            yield f"{name} {dtype}", ours, f"{what} {dtype}", theirs
    for m in (1, 2, 4, 8, 16):
        yield f"matmul bf16 {m}x576x512", matmul(BF16, m, 576, 512), "BLAS fp32", blas(m, 576, 512)
    yield "matmul bf16 1x576x49152", matmul(BF16, 1, 576, 49152), "BLAS fp32", blas(1, 576, 49152)


def best_us(ours: Run, theirs: Run) -> tuple[float, float]:
    """Shortest times in microseconds, taken in turns so that both see the same machine."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for index, run in enumerate((ours, theirs)):
            start = time.perf_counter()
            run()
            best[index] = min(best[index], time.perf_counter() - start)
    return best[0] * 1e6, best[1] * 1e6


def main() -> None:
    """Print one line a comparison."""
    set_host_threads(1)
    torch.set_num_threads(1)
    print(f"{'kernel':34}{'ours us':>10}{'theirs us':>11}{'ratio':>8}  against")
    for name, ours, against, theirs in rows():
        ours_us, theirs_us = best_us(ours, theirs)
        print(f"{name:34}{ours_us:10.1f}{theirs_us:11.1f}{ours_us / theirs_us:8.2f}  {against}")


if __name__ == "__main__":
    main()
