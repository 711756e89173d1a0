"""Cases for the kernels: an instruction over random storage arrays, checked against its NumPy meaning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from siltwin.emulator.kernels.registry import KERNELS
from siltwin.isa.activations import GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC, QUANTISE, QUANTISE_STATIC
from siltwin.isa.arithmetic import IEEE, Arithmetic
from siltwin.isa.attention_parts import HEADS_MATMUL, MASKED_SOFTMAX, PAGED_SCORES, PAGED_VALUES
from siltwin.isa.dispatch import CHOOSE_REPLICA, COPY_CHOICES, REGROUP, TALLY
from siltwin.isa.dma import COPY, EMBEDDING, GATHER, HOST_LOAD, HOST_STORE, SCATTER
from siltwin.isa.dtype import BF16, DTYPES, FP16, FP32, INT32, INT64, DType, decode, encode
from siltwin.isa.elementary import CLAMP, MAP, MULTIPLY
from siltwin.isa.experts import COMBINE, GROUPED_GATED, GROUPED_MATMUL, PERMUTE, ROUTE
from siltwin.isa.formats.form import form_of, parse_form
from siltwin.isa.formats.packing import pack_words
from siltwin.isa.formats.quantise import quantise
from siltwin.isa.formats.scheme import SCHEMES
from siltwin.isa.fused import FUSED_GROUPED_MATMUL, FUSED_MATMUL
from siltwin.isa.fused_attention import ROPE_ATTENTION, ROPE_LATENT_ATTENTION
from siltwin.isa.fused_packed import FUSED_PACKED_GROUPED_MATMUL, FUSED_PACKED_MATMUL
from siltwin.isa.host_pages import HOST_LOAD_PAGES, HOST_STORE_ROWS
from siltwin.isa.instruction import Instruction, TensorType
from siltwin.isa.latent import LATENT_ATTENTION
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.partial import MERGE_PARTS, PARTIAL_ATTENTION, PARTIAL_LATENT_ATTENTION
from siltwin.isa.products import (
    PACKED_GROUPED_MATMUL,
    PACKED_MATMUL,
    QUANTISED_GROUPED_MATMUL,
    QUANTISED_MATMUL,
)
from siltwin.isa.program import Binding, Block
from siltwin.isa.quantised import DEQUANTISE
from siltwin.isa.recurrent import CAUSAL_CONV, GATED_DELTA
from siltwin.isa.residual import RESIDUAL_MIX
from siltwin.isa.rows import RMS_SCALE, SIGMOID_GATE, SUM_SQUARES
from siltwin.isa.scaling import POSITION_SCALE, RMS_UNIT, SCALE_ROUTED, SOFT_CAP
from siltwin.isa.share import NOTHING
from siltwin.isa.situ import GROUPED_SITU_GATED, SITU_GATED
from siltwin.isa.sparse import SELECT_KEYS
from siltwin.isa.tensor import ATTENTION, MATMUL
from siltwin.isa.vector import (
    ADD,
    ADD_RMSNORM,
    ARGMAX,
    CAST,
    GATED,
    LAYERNORM,
    RMSNORM,
    ROPE,
    SAMPLE,
    SCALE,
    SOFTMAX,
)

Arrays = dict[str, np.ndarray]
FLOATS = [FP32, BF16, FP16]
FP8 = DTYPES["fp8_e4m3"]


@dataclass
class Case:
    """An instruction over named storage arrays, with how close kernel and meaning must be."""

    instruction: Instruction
    kinds: dict[str, DType]
    arrays: Arrays
    ulps: float = 1.0  # of each element's own dtype; fp32 elements get `fp32_ulps`
    fp32_ulps: float = 6.0
    floor: float = 1e-6  # absolute differences below this times the largest magnitude are rounding noise of sums
    exact: bool = False
    extents: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rules: Arithmetic = IEEE

    def memory(self, arrays: Arrays) -> ArrayMemory:
        params = tuple((name, TensorType(self.kinds[name], array.shape)) for name, array in arrays.items())
        return ArrayMemory(Block("b", params, (), ()), {}, Binding(self.extents, {}), arrays, rules=self.rules)

    def check(self) -> None:
        ours = {name: array.copy() for name, array in self.arrays.items()}
        meant = {name: array.copy() for name, array in self.arrays.items()}
        bound, reference = self.memory(ours), self.memory(meant)
        KERNELS[self.instruction.mnemonic](self.instruction, bound)()
        self.instruction.execute(reference)
        assert {n: v.tolist() for n, v in bound.written.items()} == {
            n: v.tolist() for n, v in reference.written.items()
        }
        for name, kind in self.kinds.items():
            got, want = decode(ours[name], kind), decode(meant[name], kind)
            if self.exact or not kind.is_float or kind.bits <= 8:
                np.testing.assert_array_equal(got, want, err_msg=f"{name} of {self.instruction}")
            else:
                self._compare(name, kind, got, want)

    def _compare(self, name: str, kind: DType, got: np.ndarray, want: np.ndarray) -> None:
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=name)
        got, want = got[finite].astype(np.float64), want[finite].astype(np.float64)
        if not want.size:
            return
        epsilon = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10}[kind.name]
        allowed = (self.fp32_ulps if kind is FP32 else self.ulps) * epsilon * np.abs(want)
        allowed += self.floor * np.abs(want).max() + (2.0**-24 if kind is FP16 else 0)
        worst = np.argmax(np.abs(got - want) - allowed)
        assert np.abs(got[worst] - want[worst]) <= allowed[worst], (
            f"{name} of {self.instruction}: {got[worst]} for {want[worst]}"
        )


def numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    """Random storage of a dtype, about normal."""
    return encode(rng.standard_normal(shape).astype(np.float32), dtype)


def build(instruction: Instruction, entries: Mapping[str, tuple[DType, np.ndarray]], **options: Any) -> Case:
    return Case(
        instruction, {n: kind for n, (kind, _) in entries.items()}, {n: a for n, (_, a) in entries.items()}, **options
    )


def matmul(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    k = 2 * n + 3
    entries = {"o": (d, numbers(rng, d, m, n)), "a": (d, numbers(rng, d, m, k)), "w": (d, numbers(rng, d, n, k))}
    bias = None
    if m % 2:
        entries["b"], bias = (d, numbers(rng, d, n)), Ref("b")
    return build(MATMUL(Ref("o"), Ref("a"), Ref("w"), bias), entries, fp32_ulps=16)


def rmsnorm(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    heads = 1 if m % 2 else 3
    entries = {
        "o": (d, numbers(rng, d, m, n * heads)),
        "x": (d, numbers(rng, d, m, n * heads)),
        "w": (d, numbers(rng, d, n)),
    }
    return build(RMSNORM(Ref("o"), Ref("x"), Ref("w"), 1e-5, m % 3 == 0), entries, ulps=2)


def add_rmsnorm(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, n)) for name in ("o", "x", "y")} | {"w": (d, numbers(rng, d, n))}
    return build(ADD_RMSNORM(Ref("o"), Ref("x"), Ref("y"), Ref("w"), 1e-6, m % 2 == 0), entries, ulps=2)


def layernorm(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, n)) for name in ("o", "x")}
    entries |= {name: (d, numbers(rng, d, n)) for name in ("w", "b")}
    bias = Ref("b") if m % 2 else None
    return build(LAYERNORM(Ref("o"), Ref("x"), Ref("w"), bias, 1e-5), entries)


def rope(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    head, rotary = 2 * n + 2, 2 * max(1, n // 2)
    entries = {
        "x": (d, numbers(rng, d, m, 3 * head)),
        "c": (FP32, numbers(rng, FP32, 50, rotary // 2)),
        "s": (FP32, numbers(rng, FP32, 50, rotary // 2)),
        "p": (INT32, rng.integers(0, 50, m).astype(np.int32)),
    }
    instruction = ROPE(Ref("x"), Ref("c"), Ref("s"), Ref("p"), head, rotary, m % 2 == 0)
    return build(instruction, entries, exact=True)


def gated(kind: Any) -> Callable[[np.random.Generator, DType, int, int], Case]:
    def make(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        entries = {"o": (d, numbers(rng, d, m, n)), "x": (d, numbers(rng, d, m, 2 * n))}
        return build(GATED(Ref("o"), Ref("x"), kind), entries)

    return make


def add(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, n)) for name in "oab"}
    return build(ADD(Ref("o"), Ref("a"), Ref("b")), entries, exact=True)


def scale(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    return build(SCALE(Ref("o"), Ref("x"), 0.37), {name: (d, numbers(rng, d, m, n)) for name in ("o", "x")}, exact=True)


def softmax(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    return build(SOFTMAX(Ref("o"), Ref("x")), {name: (d, numbers(rng, d, m, n)) for name in ("o", "x")})


def argmax(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    x = encode(rng.integers(-3, 4, (m, n)).astype(np.float32), d)  # ties
    return build(ARGMAX(Ref("o"), Ref("x")), {"o": (INT32, np.full(m, -1, np.int32)), "x": (d, x)})


def sample(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {
        "o": (INT32, np.full(m, -1, np.int32)),
        "x": (d, numbers(rng, d, m, n)),
        "k": (INT64, rng.integers(-(2**63), 2**63, m)),
    }
    top_k, top_p = [(0, 1.0), (1, 1.0), (5, 0.8), (0, 0.5), (1000, 0.999)][(m + n) % 5]
    return build(SAMPLE(Ref("o"), Ref("x"), Ref("k"), 0.7, top_k, top_p), entries)


def move(instruction: type[COPY] | type[HOST_LOAD] | type[HOST_STORE]) -> Callable[..., Case]:
    def make(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        return build(
            instruction(Ref("o"), Ref("x")), {name: (d, numbers(rng, d, m, n)) for name in ("o", "x")}, exact=True
        )

    return make


def host_load_pages(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    lengths = {"l": [1, 0, min(m, n)], "k": [m + 1, n, n]}
    pages, page_tokens = -(-max(m + 1, n) // 4), 4
    tables = rng.permutation(3 * pages).astype(np.int32).reshape(3, pages)
    entries = {
        name: (d, numbers(rng, d, 3 * pages * page_tokens, n).reshape(-1, page_tokens, n)) for name in ("o", "x")
    }
    entries |= {"t": (INT32, tables)} | {name: (INT32, np.array(of, np.int32)) for name, of in lengths.items()}
    limits = [(0, 0), (n // 2 + 1, 0), (0, n // 2 + 1)][m % 3]
    load = HOST_LOAD_PAGES(Ref("o"), Ref("x"), Ref("t"), Ref("l"), Ref("k"), "ql", "kl", *limits)
    extents = {"ql": tuple(lengths["l"]), "kl": tuple(lengths["k"])}
    return build(load, entries, exact=True, extents=extents)


def host_store_rows(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    index = rng.permutation(2 * m)[:m].astype(np.int32)
    index[1::3] = -1
    entries = {name: (d, numbers(rng, d, 2 * m, n).reshape(m, 2, n)) for name in ("o", "x")} | {"i": (INT32, index)}
    return build(HOST_STORE_ROWS(Ref("o"), Ref("x"), Ref("i")), entries, exact=True)


def cast(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    other = FLOATS[(FLOATS.index(d) + 1 + m % 2) % 3]
    return build(
        CAST(Ref("o"), Ref("x")), {"o": (other, numbers(rng, other, m, n)), "x": (d, numbers(rng, d, m, n))}, exact=True
    )


def gather(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {
        "o": (d, numbers(rng, d, m, n)),
        "x": (d, numbers(rng, d, 7, n)),
        "i": (INT32, rng.integers(0, 7, m).astype(np.int32)),
    }
    return build(GATHER(Ref("o"), Ref("x"), Ref("i")), entries, exact=True)


def scatter(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    index = rng.permutation(2 * m)[:m].astype(np.int32)
    index[::3] = -1
    other = BF16 if d is FP32 else d
    entries = {
        "o": (other, numbers(rng, other, m, 2, n)),
        "x": (d, numbers(rng, d, m, n)),
        "i": (INT32, index),
    }
    return build(SCATTER(Ref("o"), Ref("x"), Ref("i")), entries, exact=True)


def embedding(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {
        "o": (d, numbers(rng, d, m, n)),
        "x": (d, numbers(rng, d, 9, n)),
        "i": (INT32, rng.integers(0, 40, m).astype(np.int32)),
    }
    return build(EMBEDDING(Ref("o"), Ref("x"), Ref("i"), 12), entries, exact=True)


def attention_case(
    rng: np.random.Generator,
    d: DType,
    q_lens: list[int],
    kv_lens: list[int],
    heads: int = 4,
    kv_heads: int = 2,
    dims: tuple[int, int] = (8, 8),
    window: int = 0,
    page_tokens: int = 4,
    cache_dtype: DType | None = None,
    sinks: bool = False,
    chunk: int = 0,
    soft_cap: float = 0.0,
) -> Case:
    """Pages in a random order with pages to spare, tables padded with an impossible page."""
    qk, v = dims
    cache_dtype = cache_dtype or d
    needed = [-(-length // page_tokens) for length in kv_lens]
    pages = rng.permutation(sum(needed) + 3)
    tables = np.full((len(q_lens), max([1, *needed]) + 1), 2**30, np.int32)
    at = 0
    for b, count in enumerate(needed):
        tables[b, :count] = pages[at : at + count]
        at += count
    tokens = sum(q_lens)
    entries = {
        "o": (d, numbers(rng, d, tokens, heads * v)),
        "x": (d, numbers(rng, d, tokens, heads * qk)),
        "c": (cache_dtype, numbers(rng, cache_dtype, len(pages), page_tokens, kv_heads * (qk + v))),
        "t": (INT32, tables),
        "ql": (INT32, np.array(q_lens, np.int32)),
        "kl": (INT32, np.array(kv_lens, np.int32)),
    }
    refs = (Ref("o"), Ref("x"), Ref("c"), Ref("t"), Ref("ql"), Ref("kl"))
    if sinks:
        entries["s"] = (d, numbers(rng, d, heads))
    last = (window, Ref("s") if sinks else None, chunk, soft_cap)
    instruction = ATTENTION(*refs, "q", "kv", heads, kv_heads, qk, v, qk**-0.5, *last)
    extents = {"q": tuple(q_lens), "kv": tuple(kv_lens)}
    return build(instruction, entries, fp32_ulps=32, extents=extents)


def latent_case(
    rng: np.random.Generator,
    d: DType,
    q_lens: list[int],
    kv_lens: list[int],
    heads: int = 3,
    dims: tuple[int, int, int, int] = (8, 6, 5, 12),
    **options: Any,
) -> Case:
    """Pages and tables as in attention; dims are a head's own and shared key parts, its value, and the latent."""
    nope, rope, v, latent = dims
    paged = attention_case(rng, d, q_lens, kv_lens, 1, 1, (latent, rope), **options)
    tokens = sum(q_lens)
    entries = {
        "o": (d, numbers(rng, d, tokens, heads * v)),
        "n": (d, numbers(rng, d, tokens, heads * nope)),
        "p": (d, numbers(rng, d, tokens, heads * rope)),
        "w": (d, encode(rng.standard_normal((heads * (nope + v), latent)).astype(np.float32) / latent**0.5, d)),
    } | {name: (paged.kinds[name], paged.arrays[name]) for name in ("c", "t", "ql", "kl")}
    refs = (Ref("o"), Ref("n"), Ref("p"), Ref("c"), Ref("w"), Ref("t"), Ref("ql"), Ref("kl"))
    instruction = LATENT_ATTENTION(*refs, "q", "kv", heads, nope, rope, v, (nope + rope) ** -0.5)
    extents = {"q": tuple(q_lens), "kv": tuple(kv_lens)}
    return build(instruction, entries, fp32_ulps=64, floor=4e-6, extents=extents)


def select_case(
    rng: np.random.Generator,
    d: DType,
    q_lens: list[int],
    kv_lens: list[int],
    top_k: int = 5,
    heads: int = 3,
    dim: int = 8,
    **options: Any,
) -> Case:
    """Pages and tables as in attention, of one key a token. Small whole numbers: scores are exact, and often ties."""
    paged = attention_case(rng, d, q_lens, kv_lens, 1, 1, (dim - 1, 1), **options)
    tokens = sum(q_lens)

    def whole(kind: DType, *shape: int) -> tuple[DType, np.ndarray]:
        return kind, encode(rng.integers(-3, 4, shape).astype(np.float32), kind)

    entries = {
        "o": (INT32, np.full((tokens, top_k), 99, np.int32)),
        "x": whole(d, tokens, heads * dim),
        "w": whole(FP32, tokens, heads),
        "c": whole(paged.kinds["c"], *paged.arrays["c"].shape),
    } | {name: (paged.kinds[name], paged.arrays[name]) for name in ("t", "ql", "kl")}
    refs = (Ref("o"), Ref("x"), Ref("w"), Ref("c"), Ref("t"), Ref("ql"), Ref("kl"))
    extents = {"q": tuple(q_lens), "kv": tuple(kv_lens)}
    return build(SELECT_KEYS(*refs, "q", "kv", heads, dim, 0.5), entries, exact=True, extents=extents)


def select_keys(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    return select_case(rng, d, [m, 1, 0, 3], [m + n, n, 0, 3], top_k=n // 2 + 1, heads=n % 3 + 1)


def chosen_case(
    rng: np.random.Generator, d: DType, q_lens: list[int], kv_lens: list[int], top_k: int, **o: Any
) -> Case:
    """Latent attention over random choices; rows of queries that see no more than `top_k` hold what is never read."""
    case = latent_case(rng, d, q_lens, kv_lens, **o)
    rows = []
    for queries, length in zip(q_lens, kv_lens, strict=True):
        for sees in range(length - queries + 1, length + 1):
            few = sees <= top_k
            rows.append(np.full(top_k, 2**30) if few else np.sort(rng.choice(sees, top_k, replace=False)))
    case.kinds["i"], case.arrays["i"] = INT32, np.array(rows, np.int32).reshape(len(rows), top_k)
    case.instruction = replace(case.instruction, chosen=Ref("i"))
    return case


def latent_chosen(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    return chosen_case(rng, d, [m, 1, 0, 3], [m + n, n, 0, 3], n // 2 + 1, dims=(8, 6, 5, n + 1))


def latent(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    return latent_case(rng, d, [m, 1, 0, 3], [m + n, n, 0, 3], dims=(8, 6, 5, n + 1))


def visible_of(rng: np.random.Generator, q_lens: list[int], kv_lens: list[int]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Random ranges, some of them empty, and what the extent says of them."""
    rows, seen = [], []
    for queries, length in zip(q_lens, kv_lens, strict=True):
        ranges = [sorted(rng.integers(0, length + 1, 2).tolist()) for _ in range(queries)]
        rows += ranges
        keys = {j for first, stop in ranges for j in range(first, stop)}
        sizes = [stop - first for first, stop in ranges]
        seen += [sum(size > 0 for size in sizes), sum(sizes), len(keys)]
    return np.array(rows, np.int32).reshape(-1, 2), tuple(seen)


def _share(rng: np.random.Generator, entries: Any, kv_lens: list[int], contiguous: bool) -> dict[str, Any]:
    """The cache, tables and lengths of attention as they are, or as one run of rows with rows to spare."""
    held = {name: entries[name] for name in ("c", "t", "ql", "kl")}
    if contiguous:
        kind, cache = entries["c"]
        starts = np.cumsum([1, *kv_lens])[:-1].astype(np.int32)
        held["c"] = (kind, numbers(rng, kind, sum(kv_lens) + 2, cache.shape[-1]))
        held["t"] = (INT32, starts.reshape(-1, 1))
    return held


def _before(rng: np.random.Generator, tokens: int, heads: int, v_dim: int) -> np.ndarray:
    """A part of which the first row has seen nothing."""
    part = rng.standard_normal((tokens, heads * (v_dim + 1))).astype(np.float32)
    part[:1, : heads * v_dim], part[:1, heads * v_dim :] = 0, NOTHING
    return part


def partial_attention(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    q_lens, kv_lens, heads, kv_heads, qk, v = [m, 1, 0, 3], [n, 2 * n, 3, 0], 4, 2, 8, 5
    paged = attention_case(rng, d, q_lens, kv_lens, heads, kv_heads, (qk, v))
    visible, seen = visible_of(rng, q_lens, kv_lens)
    held = {name: (paged.kinds[name], paged.arrays[name]) for name in ("x", "c", "t", "ql", "kl")}
    entries = {
        "o": (FP32, _before(rng, m + 4, heads, v)),
        "x": held["x"],
        "v": (INT32, visible),
        **_share(rng, held, kv_lens, n % 2 == 0),
    }
    refs = (Ref("o"), Ref("x"), Ref("o") if m % 2 else None, *map(Ref, ("c", "t", "ql", "kl", "v")))
    last = (heads, kv_heads, qk, v, qk**-0.5, 2.0 if n % 3 == 0 else 0.0)
    extents = {"q": tuple(q_lens), "kv": tuple(kv_lens), "seen": seen}
    return build(PARTIAL_ATTENTION(*refs, "q", "kv", "seen", *last), entries, fp32_ulps=64, extents=extents)


def partial_latent(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    q_lens, kv_lens, heads, dims = [m, 1, 0, 3], [n, 2 * n, 3, 0], 3, (8, 6, 5, n + 1)
    nope, rope, v, _ = dims
    paged = latent_case(rng, d, q_lens, kv_lens, heads, dims)
    visible, seen = visible_of(rng, q_lens, kv_lens)
    held = {name: (paged.kinds[name], paged.arrays[name]) for name in ("n", "p", "w", "c", "t", "ql", "kl")}
    entries = {
        "o": (FP32, _before(rng, m + 4, heads, v)),
        **{name: held[name] for name in ("n", "p", "w")},
        "v": (INT32, visible),
        **_share(rng, held, kv_lens, n % 2 == 0),
    }
    before = Ref("o") if m % 2 else None
    refs = (Ref("o"), Ref("n"), Ref("p"), before, *map(Ref, ("c", "w", "t", "ql", "kl", "v")))
    last = (heads, nope, rope, v, (nope + rope) ** -0.5)
    extents = {"q": tuple(q_lens), "kv": tuple(kv_lens), "seen": seen}
    instruction = PARTIAL_LATENT_ATTENTION(*refs, "q", "kv", "seen", *last)
    return build(instruction, entries, fp32_ulps=64, floor=4e-6, extents=extents)


def merge_parts(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    heads, count = 3, 1 + n % 4
    entries = {"o": (d, numbers(rng, d, m, heads * n)), "x": (FP32, _before(rng, count * m, heads, n))}
    if m % 2:
        entries["s"] = (d, numbers(rng, d, heads))
    sinks = Ref("s") if m % 2 else None
    return build(MERGE_PARTS(Ref("o"), Ref("x"), sinks, heads, count), entries, fp32_ulps=16)


def attention(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    window, chunk = (0, n // 2 + 1) if m % 4 == 1 else ((m % 2) * (n // 2 + 1), 0)
    limits = {"window": window, "chunk": chunk, "soft_cap": 1.5 * (m % 3 == 0)}
    return attention_case(rng, d, [m, 1, 0, 3], [m + n, n, 0, 3], sinks=n % 4 == 0, **limits)


def sum_squares(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {"o": (FP32, numbers(rng, FP32, m, 1)), "x": (d, numbers(rng, d, m, n))}
    return build(SUM_SQUARES(Ref("o"), Ref("x")), entries, fp32_ulps=16)


def rms_scale(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, n)) for name in "ox"} | {"w": (d, numbers(rng, d, n))}
    entries["s"] = (FP32, np.abs(numbers(rng, FP32, m, 1)))
    return build(RMS_SCALE(Ref("o"), Ref("x"), Ref("s"), Ref("w"), 3 * n, 1e-5, m % 3 == 0), entries, ulps=2)


def sigmoid_gate(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, n)) for name in "ox"}
    entries["g"] = (d, numbers(rng, d, m, 1 if m % 2 else n))
    return build(SIGMOID_GATE(Ref("o"), Ref("x"), Ref("g")), entries)


def residual_mix(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, n)) for name in "ox"} | {"v": (d, numbers(rng, d, m, n * (1 + m % 4)))}
    entries |= {name: (d, numbers(rng, d, n)) for name in "wp"}
    refs = [Ref(name) for name in "ovxwp"]
    return build(RESIDUAL_MIX(*refs, 1e-5), entries, fp32_ulps=16, floor=4e-6)


def situ_gated(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {"o": (d, numbers(rng, d, m, n)), "x": (d, encode(numbers(rng, FP32, m, 2 * n) * 4, d))}
    return build(SITU_GATED(Ref("o"), Ref("x"), 4.0, 25.0), entries, fp32_ulps=16)


def grouped_situ_gated(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    plain = grouped_gated(rng, d, m, n)
    instruction = GROUPED_SITU_GATED(Ref("o"), Ref("x"), Ref("c"), "e", 1, 5, 3.0, 0.5)
    return replace(plain, instruction=instruction, fp32_ulps=16)


def route(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    experts, top = 4 * (1 + n // 4), 1 + n % 3
    scoring: Any = ("softmax", "sigmoid", "selected_softmax", "selected_sigmoid")[m % 4]
    groups = 1 if scoring.startswith("selected") or n % 2 else 2
    parts = 1 + m % 2
    entries = {
        "i": (INT32, np.zeros((m, top), np.int32)),
        "w": (FP32, numbers(rng, FP32, m, top)),
        "c": (INT32, np.zeros(parts * experts, np.int32)),
        "x": (d, encode(3 * rng.permuted(np.tile(np.linspace(-1, 1, experts), (m, 1)), axis=1).astype(np.float32), d)),
    }
    bias = None
    if scoring == "sigmoid":
        entries["b"], bias = (FP32, numbers(rng, FP32, experts)), Ref("b")
    rules = (parts, scoring, groups, 1, 2, bool(n % 2), 1e-20, 2.5)
    return build(ROUTE(Ref("i"), Ref("w"), Ref("c"), Ref("x"), bias, "e", *rules), entries, fp32_ulps=16)


def choices(rng: np.random.Generator, tokens: int, experts: int, top: int) -> np.ndarray:
    """`top` different experts for every token."""
    return rng.permuted(np.tile(np.arange(experts, dtype=np.int32), (tokens, 1)), axis=1)[:, :top].copy()


def permute(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {
        "o": (d, numbers(rng, d, 3 * m, n)),
        "s": (INT32, np.zeros((m, 3), np.int32)),
        "x": (d, numbers(rng, d, m, n)),
        "i": (INT32, choices(rng, m, 8, 3)),
    }
    parts = 1 + m % 2
    return build(PERMUTE(Ref("o"), Ref("s"), Ref("x"), Ref("i"), "e", 2, 4, m % parts, parts), entries, exact=True)


def tally(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    members, own = 1 + m % 4, 1 + n % 3
    sizes = [own] + [1 + (n + i) % 3 for i in range(1, members)]
    entries = {
        "r": (INT32, np.zeros(own, np.int32)),
        "c": (INT32, rng.integers(0, 9, sum(sizes)).astype(np.int32)),
        "a": (INT32, rng.integers(0, 9, members * own).astype(np.int32)),
    }
    instruction = TALLY(Ref("r"), Ref("c"), Ref("a"), "sizes", "sent", "received", "local", members, own)
    return build(instruction, entries, exact=True, extents={"sizes": tuple(sizes)})


def choose_replica(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    experts, parts = 4, 1 + m % 2
    copies = rng.integers(1, 4, experts)
    table = np.zeros((experts, 4), np.int32)
    table[:, 0] = copies
    table[:, 1:] = rng.integers(0, 9, (experts, 3))
    entries = {
        "s": (INT32, np.zeros((m, 3), np.int32)),
        "c": (INT32, np.zeros(parts * 9, np.int32)),
        "i": (INT32, choices(rng, m, experts, 3)),
        "t": (INT32, table),
    }
    instruction = CHOOSE_REPLICA(Ref("s"), Ref("c"), Ref("i"), Ref("t"), "e", parts, 9, n % 3)
    return build(instruction, entries, exact=True)


def copy_choices(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    experts, cuts = 4, 1 + n % 3
    entries = {
        "i": (INT32, np.zeros((m, 3 * cuts), np.int32)),
        "w": (FP32, np.zeros((m, 3 * cuts), np.float32)),
        "c": (INT32, np.zeros(experts * cuts, np.int32)),
        "j": (INT32, choices(rng, m, experts, 3)),
        "v": (FP32, numbers(rng, FP32, m, 3)),
        "t": (INT32, rng.permutation(experts * cuts).reshape(experts, cuts).astype(np.int32)),
    }
    return build(COPY_CHOICES(*(Ref(name) for name in "iwcjvt"), "e"), entries, exact=True)


def regroup(back: bool) -> Callable[[np.random.Generator, DType, int, int], Case]:
    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        members, own = 1 + m % 4, 1 + n % 3
        arriving = rng.integers(0, 4, members * own).astype(np.int32)
        rows = int(arriving.sum())
        entries = {
            "o": (d, numbers(rng, d, rows + 2, n)),
            "x": (d, numbers(rng, d, rows + 1, n)),
            "a": (INT32, arriving),
        }
        local = tuple(arriving.reshape(members, own).sum(axis=0).tolist())
        instruction = REGROUP(Ref("o"), Ref("x"), Ref("a"), "local", members, own, back)
        return build(instruction, entries, exact=True, extents={"local": local})

    return made


def grouped_rows(rng: np.random.Generator, m: int) -> np.ndarray:
    """Rows of five experts, the second always empty and one with most of them."""
    rows = np.array([m, 0, m // 3, 1, 2 * m], np.int32)
    return np.concatenate([[7], rng.permutation(rows)]).astype(np.int32)


def grouped_matmul(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    counts, k = grouped_rows(rng, m), n + 3
    total = int(counts[1:].sum()) + 2
    entries = {
        "o": (d, numbers(rng, d, total, n)),
        "a": (d, numbers(rng, d, total, k)),
        "w": (d, numbers(rng, d, 5, n, k)),
        "c": (INT32, counts),
    }
    bias = None
    if m % 2:
        entries["b"], bias = (d, numbers(rng, d, 5, n)), Ref("b")
    instruction = GROUPED_MATMUL(Ref("o"), Ref("a"), Ref("w"), bias, Ref("c"), "e", 1)
    return build(instruction, entries, fp32_ulps=16, extents={"e": tuple(counts.tolist())})


def grouped_gated(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    counts = grouped_rows(rng, m)
    total = int(counts[1:].sum()) + 2
    entries = {"o": (d, numbers(rng, d, total, n)), "x": (d, numbers(rng, d, total, 2 * n)), "c": (INT32, counts)}
    instruction = GROUPED_GATED(Ref("o"), Ref("x"), Ref("c"), "e", 1, 5, "silu")
    return build(instruction, entries, extents={"e": tuple(counts.tolist())})


def combine(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    slots = rng.integers(-1, 2 * m, (m, 3)).astype(np.int32)
    entries = {
        "o": (d, numbers(rng, d, m, n)),
        "x": (d, numbers(rng, d, 2 * m, n)),
        "s": (INT32, slots),
        "w": (FP32, numbers(rng, FP32, m, 3)),
    }
    weights = Ref("w") if m % 3 else None
    return build(COMBINE(Ref("o"), Ref("x"), Ref("s"), weights, "e", 0, 2), entries, fp32_ulps=16)


def scale_routed(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    slots = rng.permutation(6 * m)[: 3 * m].reshape(m, 3).astype(np.int32)
    slots[slots >= 3 * m] = -1
    entries = {
        "x": (d, numbers(rng, d, 3 * m, n)),
        "s": (INT32, slots),
        "w": (FP32, numbers(rng, FP32, m, 3)),
    }
    return build(SCALE_ROUTED(Ref("x"), Ref("s"), Ref("w"), "e", 0, 2), entries, exact=True)


def rms_unit(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {name: (d, numbers(rng, d, m, 3 * n)) for name in "ox"}
    return build(RMS_UNIT(Ref("o"), Ref("x"), n if m % 2 else 3 * n, 1e-5), entries)


def position_scale(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {"x": (d, numbers(rng, d, m, n)), "p": (INT32, rng.integers(0, 100_000, m).astype(np.int32))}
    return build(POSITION_SCALE(Ref("x"), Ref("p"), 8.0 * n, 0.3), entries)


def soft_cap(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    return build(SOFT_CAP(Ref("o"), Ref("x"), 0.7 * n), {name: (d, numbers(rng, d, m, n)) for name in "ox"})


def sequences(rng: np.random.Generator, m: int, n: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """A batch of a prefill, a decode, a sequence that waits and one that goes on, in slots of any order."""
    q_lens, kv_lens = (m, 1, 0, 3), (m, n + 1, 5, 3 + n)
    slots = rng.permutation(6)[:4].astype(np.int32)
    slots[2] = 99  # a sequence without new tokens may point anywhere
    entries = {
        "i": (INT32, slots),
        "ql": (INT32, np.array(q_lens, np.int32)),
        "kl": (INT32, np.array(kv_lens, np.int32)),
    }
    return entries, {"q": q_lens, "kv": kv_lens}


def apart(entries: dict[str, Any], m: int) -> tuple[int, Ref | None]:
    """Rows of a batch, and where each sequence starts: one after the other, or (every third case) the last one first,
    with a row between that is nobody's."""
    if m % 3:
        return m + 4, None
    entries["h"] = (INT32, np.array([5, 3, 99, 0], np.int32))
    return m + 5, Ref("h")


def causal_conv(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    taps = 2 + m % 3
    entries, extents = sequences(rng, m, n)
    rows, starts = apart(entries, m)
    entries |= {
        "o": (d, numbers(rng, d, rows, n)),
        "x": (d, numbers(rng, d, rows, n)),
        "w": (d, numbers(rng, d, n, taps)),
        "s": (d, numbers(rng, d, 6, (taps - 1) * n)),
    }
    refs = [Ref(name) for name in ("o", "x", "w", "s", "i", "ql", "kl")]
    return build(CAUSAL_CONV(*refs, "q", "kv", starts), entries, fp32_ulps=32, extents=extents)


def gated_delta(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    key_heads, group, key_dim, value_dim = 2, 1 + n % 2, 1 + n % 7, 2 + n % 5
    heads = key_heads * group
    channels = heads * key_dim if m % 2 else heads
    entries, extents = sequences(rng, m, n)
    tokens, starts = apart(entries, m)
    entries |= {
        "o": (d, numbers(rng, d, tokens, heads * value_dim)),
        "x": (d, numbers(rng, d, tokens, key_heads * key_dim)),
        "k": (d, numbers(rng, d, tokens, key_heads * key_dim)),
        "v": (d, numbers(rng, d, tokens, heads * value_dim)),
        "g": (d, numbers(rng, d, tokens, channels)),
        "b": (d, numbers(rng, d, tokens, heads)),
        "a": (d, numbers(rng, d, heads)),
        "t": (d, numbers(rng, d, channels)),
        "s": (FP32, numbers(rng, FP32, 6, heads * key_dim * value_dim)),
    }
    refs = [Ref(name) for name in ("o", "x", "k", "v", "g", "b", "a", "t", "s", "i", "ql", "kl")]
    bound = -5.0 if n % 2 else 0.0
    instruction = GATED_DELTA(*refs, "q", "kv", heads, key_heads, key_dim, value_dim, bound, starts)
    return build(instruction, entries, fp32_ulps=64, floor=4e-6, extents=extents)


def dequantise(scheme: Any, product: str = "fp32", **parts: int) -> Callable[..., Case]:
    """A packed matrix; `parts` may give a `phase`, or rows in another order (`index` scale rows or divisors)."""

    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        kind, phase = SCHEMES[scheme], parts.get("phase", 0)
        packed = quantise(rng.standard_normal((m, n + phase)).astype(np.float32), kind)
        codes = quantise(rng.standard_normal((m, n)).astype(np.float32), kind).codes
        entries = {
            "o": (d, numbers(rng, d, m, n)),
            "c": (form_of(kind).stored, codes),
            "s": (kind.scale, packed.scales.codes),
        }
        more: dict[str, Any] = {"phase": phase} if phase else {}
        if packed.scales.zero_points is not None:
            zeros = np.ascontiguousarray(pack_words(packed.scales.zero_points.T, 4).T)
            entries["z"], more["zeros"] = (INT32, zeros), Ref("z")
        rows = packed.scales.codes.shape[0]
        if kind.has_global_scale:
            rows = parts.get("index", 1)
            entries["v"], more["divisors"] = (FP32, rng.uniform(1, 9, rows).astype(np.float32)), Ref("v")
        if "index" in parts:
            entries["i"], more["index"] = (INT32, rng.integers(0, rows, m).astype(np.int32)), Ref("i")
        form = form_of(kind, DTYPES[product])
        return build(DEQUANTISE(Ref("o"), Ref("c"), Ref("s"), form, **more), entries, exact=True)

    return made


def parts_case(
    rng: np.random.Generator, d: DType, q_lens: list[int], kv_lens: list[int], part: str, **options: Any
) -> Case:
    """A part of attention on the sequences and pages of an attention case: heads 4 on 2, keys then values of 8."""
    case = attention_case(rng, d, q_lens, kv_lens, **options)
    i, columns = case.instruction, max([1, *kv_lens]) + 2
    entries = {name: (case.kinds[name], array) for name, array in case.arrays.items()}
    entries["z"] = (FP32, numbers(rng, FP32, sum(q_lens), i.heads, columns))
    seen = [at + 1 for new, length in zip(q_lens, kv_lens, strict=True) for at in range(length - new, length)]
    chosen = [np.sort(rng.permutation(max(count, 3))[:3]) for count in seen]
    entries["h"] = (INT32, np.array(chosen, np.int32).reshape(len(seen), 3))
    lengths = (Ref("ql"), Ref("kl"), "q", "kv")
    heads, z, split = (i.heads, i.kv_heads), Ref("z"), i.kv_heads * i.qk_dim
    made = {
        "scores": PAGED_SCORES(z, i.q, i.cache, None, i.tables, *lengths, *heads, 0, i.qk_dim, 0.3),
        "onto": PAGED_SCORES(z, i.q, i.cache, z, i.tables, *lengths, *heads, 0, i.qk_dim, 0.3),
        "values": PAGED_VALUES(i.dst, z, i.cache, i.tables, *lengths, *heads, split, i.v_dim),
        "softmax": MASKED_SOFTMAX(z, z, *lengths, i.window, i.chunk, i.sinks),
        "chosen": MASKED_SOFTMAX(z, z, *lengths, 0, 0, None, Ref("h")),
    }
    used = {ref.buffer for ref, _ in made[part].refs()}
    entries = {name: entry for name, entry in entries.items() if name in used}
    return build(made[part], entries, fp32_ulps=32, extents=case.extents)


def attention_part(part: str) -> Callable[[np.random.Generator, DType, int, int], Case]:
    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        options = {"window": n // 2 if m % 2 else 0, "sinks": n % 2 == 0}
        return parts_case(rng, d, [m, 0, 1], [m + n // 2, 5, n], part, **options)

    return made


def heads_matmul(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    heads, k = 1 + m % 3, n + 2
    used, across, outputs = (n, k, "rows") if m % 2 else (k, n, "columns")
    entries = {
        "o": (d, numbers(rng, d, m, heads * n)),
        "a": (d, numbers(rng, d, m, heads * k)),
        "w": (d, numbers(rng, d, heads * (used + 3), across)),
    }
    return build(HEADS_MATMUL(Ref("o"), Ref("a"), Ref("w"), heads, 2, outputs), entries, fp32_ulps=32)


def multiply(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {"o": (d, numbers(rng, d, m, n)), "a": (d, numbers(rng, d, m, n))}
    entries["b"] = (FP32, numbers(rng, FP32, m, n if m % 2 else 1))
    return build(MULTIPLY(Ref("o"), Ref("a"), Ref("b")), entries)


def mapped(function: Any) -> Callable[[np.random.Generator, DType, int, int], Case]:
    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        entries = {"o": (d, numbers(rng, d, m, n)), "x": (d, numbers(rng, d, m, n))}
        return build(MAP(Ref("o"), Ref("x"), function), entries, fp32_ulps=16)

    return made


def clamp(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    entries = {"o": (d, numbers(rng, d, m, n)), "x": (d, numbers(rng, d, m, n))}
    return build(CLAMP(Ref("o"), Ref("x"), -0.5, 0.75), entries, exact=True)


def fused_matmul(prologue: str, activation: Any) -> Callable[[np.random.Generator, DType, int, int], Case]:
    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        k, wide = n + 3, n if activation == "none" else 2 * n
        entries = {"o": (d, numbers(rng, d, m, n)), "x": (d, numbers(rng, d, m, k)), "w": (d, numbers(rng, d, wide, k))}
        if prologue != "none":
            entries["n"] = (d, numbers(rng, d, k))
        if prologue == "add":
            entries["e"] = (d, numbers(rng, d, m, k))
        if m % 2:
            entries["b"] = (d, numbers(rng, d, wide))
        delta, norm, bias = (Ref(name) if name in entries else None for name in "enb")
        total = Ref("x") if delta else None
        rules = (1e-5, m % 3 == 0, activation)
        instruction = FUSED_MATMUL(Ref("o"), total, Ref("x"), delta, norm, Ref("w"), bias, *rules)
        return build(instruction, entries, ulps=8, fp32_ulps=64, floor=2e-6 if d is FP32 else 2e-2)

    return made


def packed_product(scheme: str, experts: int = 0, **parts: int) -> Callable[..., Case]:
    """A product with weights [n, k] or [experts, n, k] that are decoded on the way; exact, as its parts are."""

    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        kind, counts = SCHEMES[scheme], grouped_rows(rng, m)[: experts + 1]
        rows = int(counts[1:].sum()) + 2
        shape = (experts, n, m + 3) if experts else (n, m + 3)
        packed = quantise(rng.standard_normal(shape).astype(np.float32), kind)
        entries = {
            "o": (d, numbers(rng, d, rows, n)),
            "a": (d, numbers(rng, d, rows, m + 3)),
            "c": (form_of(kind).stored, packed.codes),
            "s": (kind.scale, packed.scales.codes),
            "b": (d, numbers(rng, d, *shape[:-1])),
        }
        refs = [Ref(name) for name in ("o", "a", "c", "s")]
        if not experts:
            return build(PACKED_MATMUL(*refs, form_of(kind), Ref("b")), entries)
        entries["n"] = (INT32, counts.astype(np.int32))
        instruction = PACKED_GROUPED_MATMUL(*refs, form_of(kind), Ref("n"), "e", 1, Ref("b") if m % 2 else None)
        return build(instruction, entries, extents={"e": tuple(map(int, counts))})

    return made


def fused_packed(grouped: bool) -> Callable[[np.random.Generator, DType, int, int], Case]:
    """A gated product with packed weights, of rows that are normed first where they are no experts'."""

    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        case = packed_product("int8_channel", experts=5 if grouped else 0)(rng, d, m, 2 * n)
        i = case.instruction
        entries = {name: (case.kinds[name], array) for name, array in case.arrays.items()}
        entries["o"] = (d, numbers(rng, d, len(case.arrays["o"]), n))
        own = {name: getattr(i, name) for name in i.operands}
        if grouped:
            instruction = FUSED_PACKED_GROUPED_MATMUL(**own, activation="silu")
        else:
            entries["f"] = (d, numbers(rng, d, case.arrays["a"].shape[1]))
            around = {"total": None, "delta": None, "norm": Ref("f"), "eps": 1e-5, "plus_one": m % 2 == 0}
            instruction = FUSED_PACKED_MATMUL(**own, **around, activation="silu")
        floor = 4e-6 if d is FP32 else 2e-2
        return build(instruction, entries, ulps=8, fp32_ulps=64, floor=floor, extents=case.extents)

    return made


def fused_grouped_matmul(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    counts, k = grouped_rows(rng, m), n + 3
    total = int(counts[1:].sum()) + 2
    entries = {
        "o": (d, numbers(rng, d, total, n)),
        "a": (d, numbers(rng, d, total, k)),
        "w": (d, numbers(rng, d, 5, 2 * n, k)),
        "c": (INT32, counts),
    }
    instruction = FUSED_GROUPED_MATMUL(Ref("o"), Ref("a"), Ref("w"), None, Ref("c"), "e", 1, "silu")
    extents = {"e": tuple(counts.tolist())}
    return build(instruction, entries, ulps=8, fp32_ulps=64, floor=2e-6 if d is FP32 else 2e-2, extents=extents)


def rope_attention(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    """Heads 4 on 2 of 8 elements: new rows, rotated, go to free slots of the pages that the tables name."""
    case = attention_case(rng, d, [m, 1], [m + n // 2, n], window=n // 2 if m % 2 else 0)
    i, page_tokens = case.instruction, case.arrays["c"].shape[1]
    slots = [
        case.arrays["t"][b, at // page_tokens] * page_tokens + at % page_tokens
        for b, (new, length) in enumerate(zip((m, 1), (m + n // 2, n), strict=True))
        for at in range(length - new, length)
    ]
    entries = {name: (case.kinds[name], array) for name, array in case.arrays.items() if name != "x"}
    entries |= {
        "x": (d, numbers(rng, d, m + 1, (4 + 2 + 2) * 8)),
        "a": (d, numbers(rng, d, 50, 3)),
        "b": (d, numbers(rng, d, 50, 3)),
        "p": (INT32, rng.integers(0, 50, m + 1).astype(np.int32)),
        "i": (INT32, np.array(slots, np.int32)),
    }
    refs = [Ref(name) for name in ("o", "c", "x", "a", "b", "p", "i", "t", "ql", "kl")]
    sizes = (i.heads, i.kv_heads, i.qk_dim, i.v_dim, i.scale, i.window, None, 0, 0.0)
    instruction = ROPE_ATTENTION(*refs, "q", "kv", 6, m % 2 == 0, *sizes)
    return build(instruction, entries, ulps=4, fp32_ulps=64, extents=case.extents)


def code_product(scheme: str, experts: int = 0, phase: int = 0, static: bool = False) -> Callable[..., Case]:
    """A product of codes with codes, in blocks of a row as the weights' form cuts them."""

    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        kind, k, counts = SCHEMES[scheme], 140 if phase else m + 3, grouped_rows(rng, m)[: experts + 1]
        rows = int(counts[1:].sum()) + 2
        form, shape = form_of(kind), ((experts, n, k) if experts else (n, k))
        codes = quantise(rng.standard_normal((rows, k)).astype(np.float32), SCHEMES[f"{kind.element}_token"]).codes
        weights = quantise(rng.standard_normal(shape).astype(np.float32), kind)
        blocks = form.column_blocks(k, phase)
        scales = rng.uniform(0.5, 2, (*shape[:-2], form.row_blocks(n), blocks)).astype(np.float32)
        entries = {
            "o": (d, numbers(rng, d, rows, n)),
            "a": (kind.element, codes),
            "t": (FP32, rng.uniform(0.5, 2, (1, 1) if static else (rows, blocks)).astype(np.float32)),
            "c": (kind.element, weights.codes),
            "s": (FP32, scales),
            "b": (d, numbers(rng, d, *shape[:-1])),
        }
        refs = [Ref(name) for name in ("o", "a", "t", "c", "s")]
        if not experts:
            return build(QUANTISED_MATMUL(*refs, form, Ref("b"), phase=phase), entries)
        entries["n"] = (INT32, counts.astype(np.int32))
        instruction = QUANTISED_GROUPED_MATMUL(*refs, form, Ref("n"), "e", 1, Ref("b") if m % 2 else None, phase=phase)
        return build(instruction, entries, extents={"e": tuple(map(int, counts))})

    return made


def quantising(form: str, rule: str = "nearest", experts: int = 0, phase: int = 0) -> Callable[..., Case]:
    """Activations to codes; `rule` "static" takes a scale that some of them pass."""

    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        kind, counts = parse_form(form), grouped_rows(rng, m)[: experts + 1]
        rows = int(counts[1:].sum()) + 2
        blocks = kind.column_blocks(n, phase)
        x = rng.standard_normal((rows, n)).astype(np.float32)
        x[0] = 0
        scale = DTYPES["fp32" if rule in ("nearest", "static") else "e8m0"]
        given = (FP32, np.array([[0.01]], np.float32))
        entries = {
            "o": (kind.element, np.zeros((rows, n), kind.element.storage)),
            "s": given if rule == "static" else (scale, np.ones((rows, blocks), scale.storage)),
            "x": (d, encode(x, d)),
        }
        o, s, source = (Ref(name) for name in "osx")
        most = 127.0 if kind.element.name == "int8" else 448.0
        grouped: tuple[Any, ...] = ()
        options: dict[str, Any] = {"exact": True}
        if experts:
            entries["n"] = (INT32, counts.astype(np.int32))
            grouped, options["extents"] = (Ref("n"), "e", 1, experts), {"e": tuple(map(int, counts))}
        if rule == "static":
            which = GROUPED_QUANTISE_STATIC if experts else QUANTISE_STATIC
            return build(which(o, source, s, kind, *grouped), entries, **options)
        kind_of = GROUPED_QUANTISE if experts else QUANTISE
        return build(kind_of(o, s, source, kind, most, rule, *grouped, phase=phase), entries, **options)

    return made


def coded_attention(kind: str) -> Callable[..., Case]:
    """Attention over a cache of codes with a scale for each head of a token."""

    def made(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
        case = attention_case(rng, d, [m % 5 + 1, 1], [m % 5 + 4, n % 7 + 1])
        case.kinds["c"], case.kinds["z"] = DTYPES[kind], FP32
        shape = case.arrays["c"].shape
        case.arrays["c"] = rng.integers(0, 120, shape).astype(DTYPES[kind].storage)
        case.arrays["z"] = rng.uniform(0.001, 0.1, (*shape[:2], 4)).astype(np.float32)
        case.instruction = replace(case.instruction, cache_scales=Ref("z"), cache_group=8)
        return case

    return made


def coded_latent(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    """Latent attention over codes in groups of 5, the rotated part in floats beside them."""
    case = latent_case(rng, d, [m % 5 + 1, 1], [m % 5 + 4, n % 7 + 1])
    shape = case.arrays["c"].shape
    case.kinds["c"], case.kinds["z"], case.kinds["y"] = FP8, FP32, BF16
    case.arrays["c"] = rng.integers(0, 100, (*shape[:2], 12)).astype(np.uint8)
    case.arrays["z"] = rng.uniform(0.01, 0.2, (*shape[:2], 3)).astype(np.float32)
    case.arrays["y"] = numbers(rng, BF16, *shape[:2], 6)
    parts = {"cache_scales": Ref("z"), "cache_rest": Ref("y"), "cache_group": 5}
    case.instruction = replace(case.instruction, **parts)
    return case


def scatter_narrow(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    """Rows rounded to 8 bits on their way."""
    entries = {
        "o": (FP8, encode(rng.uniform(1, 2, (m + 3, n)).astype(np.float32), FP8)),
        "x": (d, encode(rng.standard_normal((m, n)).astype(np.float32) * 300, d)),
        "i": (INT32, rng.permutation(m + 3)[:m].astype(np.int32)),
    }
    return build(SCATTER(Ref("o"), Ref("x"), Ref("i")), entries, exact=True)


def rope_latent_attention(rng: np.random.Generator, d: DType, m: int, n: int) -> Case:
    """A latent case whose new rows, rotated, go to free slots of the pages that the tables name."""
    lengths = ((m, 1), (m + n // 2, n))
    case = latent_case(rng, d, *map(list, lengths))
    i, page_tokens, row = case.instruction, case.arrays["c"].shape[1], case.arrays["c"].shape[2]
    slots = [
        case.arrays["t"][b, at // page_tokens] * page_tokens + at % page_tokens
        for b, (new, length) in enumerate(zip(*lengths, strict=True))
        for at in range(length - new, length)
    ]
    entries = {name: (case.kinds[name], array) for name, array in case.arrays.items()}
    entries |= {
        "x": (d, numbers(rng, d, m + 1, row)),
        "a": (d, numbers(rng, d, 50, i.rope_dim // 2)),
        "b": (d, numbers(rng, d, 50, i.rope_dim // 2)),
        "f": (INT32, rng.integers(0, 50, m + 1).astype(np.int32)),
        "i": (INT32, np.array(slots, np.int32)),
    }
    refs = [i.dst, i.cache, Ref("x"), i.q_nope, i.q_rope, i.w, Ref("a"), Ref("b"), Ref("f"), Ref("i"), i.tables]
    sizes = (i.heads, i.nope_dim, i.rope_dim, i.v_dim, i.scale)
    lens = (i.q_lens, i.kv_lens, i.q_extent, i.kv_extent)
    instruction = ROPE_LATENT_ATTENTION(*refs, *lens, i.rope_dim, m % 2 == 0, *sizes)
    floor = 4e-6 if d is FP32 else 2e-2
    return build(instruction, entries, ulps=8, fp32_ulps=64, floor=floor, extents=case.extents)


CASES: dict[str, Callable[[np.random.Generator, DType, int, int], Case]] = {
    "matmul": matmul,
    "attention": attention,
    "latent_attention": latent,
    "partial_attention": partial_attention,
    "partial_latent_attention": partial_latent,
    "merge_parts": merge_parts,
    "latent_attention chosen": latent_chosen,
    "select_keys": select_keys,
    "rmsnorm": rmsnorm,
    "add_rmsnorm": add_rmsnorm,
    "layernorm": layernorm,
    "rope": rope,
    "gated": gated("silu"),
    "gated gelu": gated("gelu"),
    "gated gelu_tanh": gated("gelu_tanh"),
    "gated swiglu_oai": gated("swiglu_oai"),
    "sum_squares": sum_squares,
    "rms_scale": rms_scale,
    "sigmoid_gate": sigmoid_gate,
    "residual_mix": residual_mix,
    "situ_gated": situ_gated,
    "grouped_situ_gated": grouped_situ_gated,
    "dequantise": dequantise("int8_g128"),
    "dequantise channel": dequantise("fp8_e4m3_channel"),
    "dequantise int4": dequantise("int4_g32"),
    "dequantise mxfp4": dequantise("mxfp4"),
    "dequantise mxfp8": dequantise("mxfp8_e4m3"),
    "dequantise blocks": dequantise("fp8_e4m3_block128x128", index=1),
    "dequantise words": dequantise("int4_g128_words", "bf16", phase=3),
    "dequantise zeros": dequantise("int4_g32_asymmetric", "fp16"),
    "dequantise nvfp4": dequantise("nvfp4", "bf16", phase=5, index=3),
    "packed_matmul": packed_product("int4_g32"),
    "packed_matmul blocks": packed_product("fp8_e4m3_block128x128"),
    "packed_grouped_matmul": packed_product("mxfp4", experts=3),
    "quantised_matmul": code_product("int8_channel"),
    "quantised_matmul blocks": code_product("fp8_e4m3_block128x128", phase=100),
    "quantised_matmul static": code_product("int8_tensor", static=True),
    "quantised_grouped_matmul": code_product("fp8_e4m3_channel", experts=3),
    "quantise": quantising("int8/plain/1x0/fp32"),
    "quantise blocks": quantising("fp8_e4m3/plain/1x5/fp32", phase=3),
    "quantise floor": quantising("fp8_e5m2/plain/1x32/fp32", "floor"),
    "quantise ceil": quantising("fp8_e4m3/plain/1x32/fp32", "ceil"),
    "grouped_quantise": quantising("int8/plain/1x0/fp32", experts=3),
    "quantise_static": quantising("fp8_e4m3/plain/1x0/fp32", "static"),
    "grouped_quantise_static": quantising("int8/plain/1x0/fp32", "static", experts=3),
    "attention int8": coded_attention("int8"),
    "attention fp8": coded_attention("fp8_e4m3"),
    "latent_attention codes": coded_latent,
    "scatter fp8": scatter_narrow,
    "route": route,
    "permute": permute,
    "tally": tally,
    "choose_replica": choose_replica,
    "copy_choices": copy_choices,
    "regroup": regroup(False),
    "regroup back": regroup(True),
    "grouped_matmul": grouped_matmul,
    "grouped_gated": grouped_gated,
    "combine": combine,
    "scale_routed": scale_routed,
    "rms_unit": rms_unit,
    "position_scale": position_scale,
    "soft_cap": soft_cap,
    "add": add,
    "scale": scale,
    "softmax": softmax,
    "argmax": argmax,
    "sample": sample,
    "cast": cast,
    "copy": move(COPY),
    "host_load": move(HOST_LOAD),
    "host_store": move(HOST_STORE),
    "host_load_pages": host_load_pages,
    "host_store_rows": host_store_rows,
    "gather": gather,
    "scatter": scatter,
    "embedding": embedding,
    "causal_conv": causal_conv,
    "paged_scores": attention_part("scores"),
    "paged_scores onto": attention_part("onto"),
    "paged_values": attention_part("values"),
    "masked_softmax": attention_part("softmax"),
    "masked_softmax chosen": attention_part("chosen"),
    "heads_matmul": heads_matmul,
    "multiply": multiply,
    "map": mapped("exp"),
    "map sigmoid": mapped("sigmoid"),
    "map tanh": mapped("tanh"),
    "map erf": mapped("erf"),
    "clamp": clamp,
    "fused_matmul": fused_matmul("rms", "none"),
    "fused_matmul add": fused_matmul("add", "silu"),
    "fused_matmul gated": fused_matmul("none", "gelu_tanh"),
    "fused_grouped_matmul": fused_grouped_matmul,
    "fused_packed_matmul": fused_packed(grouped=False),
    "fused_packed_grouped_matmul": fused_packed(grouped=True),
    "rope_attention": rope_attention,
    "rope_latent_attention": rope_latent_attention,
    "gated_delta": gated_delta,
}
