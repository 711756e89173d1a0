"""Every kernel equals its instruction's NumPy meaning, over dtypes, shapes, column slices and odd sizes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    CASES,
    FLOATS,
    FP8,
    Case,
    add,
    attention_case,
    build,
    embedding,
    gated,
    gather,
    matmul,
    numbers,
    rmsnorm,
    rope,
    scatter,
)

from siltwin.emulator.kernels.registry import KERNELS
from siltwin.isa import registry as instructions
from siltwin.isa.dma import GATHER
from siltwin.isa.dtype import BF16, FP16, FP32, INT32, INT64, DType, encode
from siltwin.isa.errors import NotYetError, ProgramError
from siltwin.isa.operands import Ref
from siltwin.isa.tensor import MATMUL
from siltwin.isa.vector import ARGMAX, CAST, SAMPLE
from siltwin.isa.work import Unit

COMPUTING = {Unit.TENSOR, Unit.VECTOR, Unit.DMA, Unit.HOST}


def test_every_computing_instruction_has_a_kernel_and_a_case() -> None:
    wanted = {name for name, kind in instructions.INSTRUCTIONS.items() if kind.unit in COMPUTING}
    assert set(KERNELS) == wanted
    assert {name.split()[0] for name in CASES} == wanted


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (4, 16), (7, 20), (40, 65), (130, 12)], ids=str)
def test_kernel_equals_meaning(name: str, dtype: DType, shape: tuple[int, int]) -> None:
    seed = sum(map(ord, name)) + shape[0]
    CASES[name](np.random.default_rng(seed), dtype, *shape).check()


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.sampled_from(FLOATS), st.integers(1, 30), st.integers(1, 90), st.integers())
def test_kernel_equals_meaning_for_any_shape(name: str, dtype: DType, m: int, n: int, seed: int) -> None:
    CASES[name](np.random.default_rng(abs(seed)), dtype, m, n).check()


WITH_TABLES = {
    "attention",
    "latent_attention",
    "partial_attention",
    "partial_latent_attention",
    "rope_attention",
    "rope_latent_attention",
    "select_keys",
}


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in CASES} - WITH_TABLES))
def test_column_slices_of_wider_buffers_change_nothing(name: str) -> None:
    """Every 2-D float operand becomes the middle columns of a wider buffer, whose other columns must survive."""
    case = CASES[name](np.random.default_rng(5), BF16, 6, 18)
    renamed = {}
    for operand in case.instruction.operands:
        ref = getattr(case.instruction, operand)
        if isinstance(ref, Ref) and case.arrays[ref.buffer].ndim == 2:
            array = case.arrays[ref.buffer]
            wide = np.full((len(array), array.shape[1] + 9), array.dtype.type(7))
            wide[:, 4 : 4 + array.shape[1]] = array
            case.arrays[ref.buffer] = wide
            renamed[operand] = Ref(ref.buffer, 4, array.shape[1])
    fields = {name: getattr(case.instruction, name) for name in case.instruction.operands} | renamed
    case.instruction = type(case.instruction)(**fields)
    case.check()


@pytest.mark.parametrize(
    ("dst", "a", "w"), [(FP32, FP32, BF16), (BF16, FP32, FP16), (FP32, BF16, FP32), (FP16, BF16, BF16)], ids=str
)
@pytest.mark.parametrize("rows", [2, 33])
def test_matmul_mixes_dtypes(dst: DType, a: DType, w: DType, rows: int) -> None:
    rng = np.random.default_rng(1)
    entries = {"o": (dst, numbers(rng, dst, rows, 24)), "a": (a, numbers(rng, a, rows, 31))}
    entries |= {"w": (w, numbers(rng, w, 24, 31)), "b": (w, numbers(rng, w, 24))}
    build(MATMUL(Ref("o"), Ref("a"), Ref("w"), Ref("b")), entries, fp32_ulps=16).check()


def test_large_matmul_in_tiles_equals_meaning() -> None:
    rng = np.random.default_rng(2)
    for dtype, (m, k, n) in [(FP32, (129, 300, 1111)), (BF16, (65, 520, 700)), (BF16, (3, 600, 9000))]:
        entries = {"o": (dtype, numbers(rng, dtype, m, n)), "a": (dtype, numbers(rng, dtype, m, k))}
        entries |= {"w": (dtype, numbers(rng, dtype, n, k))}
        build(MATMUL(Ref("o"), Ref("a"), Ref("w"), None), entries, fp32_ulps=32).check()


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "options"),
    [
        ([1], [1], {}),
        ([1, 1, 1], [600, 3, 17], {}),
        ([300], [300], {"page_tokens": 16}),
        ([140], [1200], {"page_tokens": 16}),
        ([140, 1], [1200, 700], {"window": 600, "page_tokens": 16}),
        ([5, 9], [70, 9], {"window": 1}),
        ([129], [129], {"window": 3, "page_tokens": 1}),
        ([2, 3, 1], [40, 41, 42], {"heads": 6, "kv_heads": 1}),
        ([2, 30], [40, 41], {"heads": 3, "kv_heads": 3, "dims": (12, 5)}),
        ([1, 20], [40, 41], {"cache_dtype": BF16}),
        ([1, 20], [40, 41], {"cache_dtype": FP16, "dims": (5, 16)}),
        ([0, 0], [7, 0], {}),
        ([300, 1, 2], [300, 900, 31], {"chunk": 256, "page_tokens": 16}),
        ([140, 3], [1200, 700], {"chunk": 37, "soft_cap": 2.5}),
        ([2, 30], [41, 41], {"chunk": 1, "sinks": True}),
        ([2, 600], [41, 600], {"soft_cap": 0.3, "sinks": True, "window": 50}),
    ],
)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_attention_shapes(q_lens: list[int], kv_lens: list[int], options: dict[str, Any], dtype: DType) -> None:
    attention_case(np.random.default_rng(3), dtype, q_lens, kv_lens, **options).check()


def test_attention_equals_torch() -> None:
    torch = pytest.importorskip("torch")
    heads, kv_heads, dim, tokens = 4, 2, 16, 50
    case = attention_case(np.random.default_rng(4), FP32, [tokens], [tokens], heads, kv_heads, (dim, dim))
    KERNELS["attention"](case.instruction, case.memory(case.arrays))()
    rows = case.arrays["c"][case.arrays["t"][0, :13]].reshape(-1, 2 * kv_heads * dim)[:tokens]
    q = torch.tensor(case.arrays["x"]).view(tokens, heads, dim).transpose(0, 1)
    k, v = (
        torch.tensor(part.copy()).view(tokens, kv_heads, dim).transpose(0, 1).repeat_interleave(2, 0)
        for part in (rows[:, : kv_heads * dim], rows[:, kv_heads * dim :])
    )
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(case.arrays["o"], want.transpose(0, 1).reshape(tokens, -1).numpy(), atol=2e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gates_and_norms_equal_torch(activation: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(15)
    case = gated(activation)(rng, FP32, 6, 40)
    KERNELS["gated"](case.instruction, case.memory(case.arrays))()
    gate, up = torch.tensor(case.arrays["x"]).chunk(2, -1)
    functional = torch.nn.functional
    act = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }[activation]
    np.testing.assert_allclose(case.arrays["o"], (act(gate) * up).numpy(), rtol=2e-6, atol=5e-7)  # 1 + erf cancels
    case = rmsnorm(rng, FP32, 5, 40)
    KERNELS["rmsnorm"](case.instruction, case.memory(case.arrays))()
    want = functional.rms_norm(torch.tensor(case.arrays["x"]), (40,), torch.tensor(case.arrays["w"]), 1e-5)
    np.testing.assert_allclose(case.arrays["o"], want.numpy(), rtol=2e-6)


def test_argmax_and_sample_treat_nan_infinities_and_zeros_as_the_meaning_does() -> None:
    rows = [
        [np.nan, 1, 2],
        [1, np.nan, np.nan],
        [-np.inf] * 3,
        [0.0, -0.0, -1],
        [-0.0, 0.0, -1],
        [1, np.inf, np.inf],
        [3e38, -3e38, -np.inf],
    ]
    x = np.array(rows, np.float32)
    kinds = {"o": INT32, "x": FP32, "k": INT64}
    Case(ARGMAX(Ref("o"), Ref("x")), {"o": INT32, "x": FP32}, {"o": np.zeros(len(x), np.int32), "x": x}).check()
    x = x[3:5]
    for top_k in (0, 1, 2):
        instruction = SAMPLE(Ref("o"), Ref("x"), Ref("k"), 1.0, top_k, 1.0)
        for key in range(20):
            arrays = {"o": np.zeros(2, np.int32), "x": x, "k": np.array([key, -key])}
            Case(instruction, kinds, arrays).check()


def test_sample_equals_meaning_on_a_whole_vocabulary() -> None:
    rng = np.random.default_rng(8)
    x = encode(rng.standard_normal((3, 49152)).astype(np.float32) * 3, BF16)  # thousands of ties
    for top_k, top_p in [(0, 1.0), (50, 0.9), (0, 0.95)]:
        arrays = {"o": np.zeros(3, np.int32), "x": x, "k": rng.integers(0, 2**62, 3)}
        instruction = SAMPLE(Ref("o"), Ref("x"), Ref("k"), 0.8, top_k, top_p)
        Case(instruction, {"o": INT32, "x": BF16, "k": INT64}, arrays).check()


def test_moves_take_integers_and_fp8_as_they_are() -> None:
    rng = np.random.default_rng(6)
    for kind, source in [(INT64, rng.integers(0, 99, (4, 5))), (FP8, rng.integers(0, 99, (4, 5)).astype(np.uint8))]:
        index = (INT32, np.array([3, 0], np.int32))
        out = (kind, np.zeros((2, 5), source.dtype))
        build(GATHER(Ref("o"), Ref("x"), Ref("i")), {"o": out, "x": (kind, source), "i": index}, exact=True).check()


def test_casts_of_fp8_follow_the_table_of_dtypes() -> None:
    rng = np.random.default_rng(7)
    for target, source in [(FP8, BF16), (BF16, FP8)]:
        x = encode(rng.standard_normal((3, 4)).astype(np.float32) * 20, source)
        out = encode(np.zeros((3, 4)), target)
        build(CAST(Ref("o"), Ref("x")), {"o": (target, out), "x": (source, x)}, exact=True).check()


def failing(case: Case) -> str:
    with pytest.raises(ProgramError) as error:
        KERNELS[case.instruction.mnemonic](case.instruction, case.memory(case.arrays))()
    return str(error.value)


def test_indices_out_of_range_are_errors_that_name_instruction_and_value() -> None:
    rng = np.random.default_rng(9)
    for bad in (-1, 7, 2**31 - 1):
        case = gather(rng, BF16, 4, 8)
        case.arrays["i"][2] = bad
        assert f"gather: index[2] is {bad}, must be 0 to 6" in failing(case)
    case = rope(rng, BF16, 4, 8)
    case.arrays["p"][1] = 50
    assert "rope: positions[1] is 50, must be 0 to 49" in failing(case)
    case = scatter(rng, BF16, 4, 8)
    case.arrays["i"][3] = 8
    before = case.arrays["o"].copy()
    assert "scatter: index[3] is 8, must be 0 to 7" in failing(case)
    assert np.array_equal(before, case.arrays["o"])


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("t", (0, 1), -1, r"tables[0, 1] is -1, must be 0 to"),
        ("t", (1, 0), 999, r"tables[1, 0] is 999"),
        ("kl", (0,), 4, r"q_len 5 and kv_len 4; 0 <= q_len <= kv_len"),
        ("ql", (0,), -1, r"q_len -1"),
        ("kl", (0,), 4000, r"more than the"),
        ("ql", (1,), 3, r"add up to 8 new tokens, q has 6 rows"),
        ("ql", (1,), 0, r"add up to 5 new tokens, q has 6 rows"),
    ],
)
def test_attention_refuses_lengths_and_pages_that_do_not_fit(
    name: str, at: tuple[int, ...], value: int, message: str
) -> None:
    case = attention_case(np.random.default_rng(10), FP32, [5, 1], [9, 6])
    case.arrays[name][at] = value
    assert message in failing(case)


def test_sample_refuses_scores_without_a_distribution() -> None:
    for row in ([np.nan, 1.0, 2.0], [np.inf, 1.0, 2.0], [-np.inf] * 3):
        arrays = {"o": np.zeros(1, np.int32), "x": np.array([row], np.float32), "k": np.array([1])}
        instruction = SAMPLE(Ref("o"), Ref("x"), Ref("k"), 1.0, 0, 1.0)
        assert "no distribution to draw from" in failing(Case(instruction, {"o": INT32, "x": FP32, "k": INT64}, arrays))


def test_scatter_refuses_an_index_that_repeats() -> None:
    case = scatter(np.random.default_rng(12), BF16, 5, 3)
    case.arrays["i"][:] = [0, 3, -1, -1, 3]
    assert "scatter: index[4] is 3 again" in failing(case)


def test_types_and_layouts_that_no_kernel_takes_are_refused() -> None:
    case = add(np.random.default_rng(0), FP32, 4, 4)
    case.kinds["a"], case.arrays["a"] = FP8, np.zeros((4, 4), np.uint8)
    with pytest.raises(NotYetError, match="add: no kernel computes on fp8_e4m3 \\(%a\\)"):
        KERNELS["add"](case.instruction, case.memory(case.arrays))
    case = gather(np.random.default_rng(0), FP8, 4, 4)
    case.kinds["o"], case.arrays["o"] = BF16, np.zeros((4, 4), np.uint16)
    with pytest.raises(NotYetError, match="gather: no kernel converts fp8_e4m3 to bf16"):
        KERNELS["gather"](case.instruction, case.memory(case.arrays))
    case = add(np.random.default_rng(0), FP32, 4, 4)
    case.kinds["a"] = BF16
    assert "%a is bound to float32[4, 4], must be uint16[4, 4]" in failing(case)
    case = add(np.random.default_rng(0), FP32, 4, 4)
    case.arrays["a"] = np.zeros((4, 8), np.float32)[:, ::2]
    assert "contiguous" in failing(case)


def test_operands_whose_shapes_do_not_agree_never_reach_a_kernel() -> None:
    rng = np.random.default_rng(13)
    wrong = {
        "matmul": ("w", numbers(rng, BF16, 8, 9)),
        "rmsnorm": ("w", numbers(rng, BF16, 5)),
        "rope": ("c", numbers(rng, FP32, 50, 1)),
        "softmax": ("x", numbers(rng, BF16, 2, 8)),
        "argmax": ("o", np.zeros(1, np.int32)),
        "sample": ("k", np.zeros(9, np.int64)),
        "gather": ("i", np.zeros(9, np.int32)),
        "scatter": ("x", numbers(rng, BF16, 4, 9)),
        "embedding": ("x", numbers(rng, BF16, 9, 7)),
        "copy": ("x", numbers(rng, BF16, 3, 8)),
        "gated": ("x", numbers(rng, BF16, 4, 15)),
    }
    for name, (buffer, array) in wrong.items():
        case = CASES[name](rng, BF16, 4, 8)
        case.arrays[buffer] = array
        assert f"(in: {name} " in failing(case)


def test_products_without_rows_or_columns_are_empty() -> None:
    rng = np.random.default_rng(14)
    for m, k, n in [(0, 4, 5), (4, 4, 0), (40, 4, 0), (40, 0, 3), (2, 0, 3)]:
        entries = {"o": (BF16, numbers(rng, BF16, m, n)), "a": (BF16, numbers(rng, BF16, m, k))}
        entries |= {"w": (BF16, numbers(rng, BF16, n, k))}
        build(MATMUL(Ref("o"), Ref("a"), Ref("w"), None), entries, exact=True).check()


def test_read_only_weights_are_taken_and_not_written() -> None:
    case = matmul(np.random.default_rng(0), BF16, 3, 8)
    case.arrays["w"].flags.writeable = False
    KERNELS["matmul"](case.instruction, case.memory(case.arrays))()
    case.check()


def test_a_bound_kernel_reads_lengths_and_ids_at_every_call() -> None:
    case = embedding(np.random.default_rng(0), BF16, 5, 6)
    thunk = KERNELS["embedding"](case.instruction, case.memory(case.arrays))
    for first in (12, 15):
        case.arrays["i"][:] = np.arange(first, first + 5)
        thunk()
        assert np.array_equal(case.arrays["o"], case.arrays["x"][first - 12 : first - 7])
