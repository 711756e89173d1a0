"""Products of codes: against torch's integer and fp8 products, by hand, and what they ask of a card."""

from typing import Any

import numpy as np
import pytest

from siltwin.emulator.kernels.registry import KERNELS
from siltwin.isa.activations import QUANTISE
from siltwin.isa.dtype import BF16, DTYPES, FP32
from siltwin.isa.formats.form import parse_form
from siltwin.isa.formats.quantise import quantise
from siltwin.isa.formats.scheme import SCHEMES
from siltwin.isa.instruction import Instruction, TensorType
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.packed import PackedOperand
from siltwin.isa.products import PACKED_MATMUL, QUANTISED_MATMUL
from siltwin.isa.program import Binding, Block
from siltwin.isa.tensor import MATMUL

INT8, FP8 = DTYPES["int8"], DTYPES["fp8_e4m3"]
Typed = tuple[Any, np.ndarray]


def memory_of(**buffers: Typed) -> ArrayMemory:
    params = tuple((name, TensorType(kind, array.shape)) for name, (kind, array) in buffers.items())
    arrays = {name: array for name, (_, array) in buffers.items()}
    return ArrayMemory(Block("b", params, (), ()), {}, Binding({}, {}), arrays)


def both(instruction: Instruction, **buffers: Typed) -> list[np.ndarray]:
    """dst by the meaning and by the kernel."""
    found = []
    for by_kernel in (False, True):
        memory = memory_of(**{name: (kind, array.copy()) for name, (kind, array) in buffers.items()})
        if by_kernel:
            KERNELS[instruction.mnemonic](instruction, memory)()
        else:
            instruction.execute(memory)
        found.append(memory.arrays["d"])
    return found


def test_sums_of_int8_are_torchs_int32_sums_to_the_bit() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    m, n, k = 9, 20, 3000  # sums beyond 2^24, which fp32 could not keep
    a, w = (rng.integers(100, 128, shape).astype(np.int8) for shape in ((m, k), (n, k)))
    own, scales = rng.uniform(0.5, 2, (m, 1)).astype(np.float32), rng.uniform(0.5, 2, (n, 1)).astype(np.float32)
    sums = (torch.from_numpy(a).int() @ torch.from_numpy(w).int().T).float()
    expected = (torch.from_numpy(own) * (torch.from_numpy(scales).T * sums)).numpy()
    assert sums.max() > 2**24
    form = parse_form("int8/plain/1x0/fp32")
    instruction = QUANTISED_MATMUL(Ref("d"), Ref("a"), Ref("t"), Ref("c"), Ref("s"), form)
    buffers = {"d": (FP32, np.zeros((m, n), np.float32)), "a": (INT8, a), "t": (FP32, own), "c": (INT8, w)}
    for found in both(instruction, **buffers, s=(FP32, scales)):
        np.testing.assert_array_equal(found, expected)


def test_products_of_fp8_are_torchs_scaled_ones() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    m, n, k = 16, 32, 64
    codes = [quantise(rng.standard_normal(s).astype(np.float32), SCHEMES["fp8_e4m3_tensor"]) for s in ((m, k), (n, k))]
    a, w = (torch.from_numpy(packed.codes).view(torch.float8_e4m3fn) for packed in codes)
    one = [torch.from_numpy(packed.scales.codes.reshape(())) for packed in codes]
    try:
        expected = torch._scaled_mm(a, w.T, scale_a=one[0], scale_b=one[1], out_dtype=torch.float32).numpy()
    except (RuntimeError, NotImplementedError):
        expected = ((a.float() * one[0]) @ (w.float() * one[1]).T).numpy()
    form = parse_form("fp8_e4m3/plain/0x0/fp32")
    instruction = QUANTISED_MATMUL(Ref("d"), Ref("a"), Ref("t"), Ref("c"), Ref("s"), form)
    held = {"a": (FP8, codes[0].codes), "t": (FP32, codes[0].scales.codes), "c": (FP8, codes[1].codes)}
    for found in both(instruction, d=(FP32, np.zeros((m, n), np.float32)), **held, s=(FP32, codes[1].scales.codes)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_blocks_are_scaled_by_hand() -> None:
    # two blocks of two columns: (1x1 + 2x1) x 10 x 1 and (3x1 + 4x1) x 100 x 0.5
    a, w = np.array([[1, 2, 3, 4]], np.int8), np.ones((1, 4), np.int8)
    own, scales = np.array([[10, 100]], np.float32), np.array([[1, 0.5]], np.float32)
    instruction = QUANTISED_MATMUL(*(Ref(name) for name in "datcs"), parse_form("int8/plain/1x2/fp32"))
    buffers = {"d": (FP32, np.zeros((1, 1), np.float32)), "a": (INT8, a), "t": (FP32, own), "c": (INT8, w)}
    assert [found.tolist() for found in both(instruction, **buffers, s=(FP32, scales))] == [[[380.0]], [[380.0]]]


def test_inputs_are_quantised_by_hand() -> None:
    x = np.array([[0.5, -1.27, 0.0], [0, 0, 0]], np.float32)
    instruction = QUANTISE(Ref("d"), Ref("s"), Ref("x"), parse_form("int8/plain/1x0/fp32"), 127.0, "nearest")
    memory = memory_of(d=(INT8, np.ones((2, 3), np.int8)), s=(FP32, np.ones((2, 1), np.float32)), x=(FP32, x))
    KERNELS["quantise"](instruction, memory)()
    assert memory.arrays["d"].tolist() == [[50, -127, 0], [0, 0, 0]]
    assert memory.arrays["s"].ravel().tolist() == [np.float32(1.27) / np.float32(127), 0]


def test_work_reads_packed_bytes_and_runs_at_the_codes_rate() -> None:
    m, n, k = 5, 6, 70
    a, d = (BF16, np.zeros((m, k), np.uint16)), (BF16, np.zeros((m, n), np.uint16))
    codes, scales = (DTYPES["uint8"], np.zeros((n, 35), np.uint8)), (BF16, np.zeros((n, 3), np.uint16))
    packed = PACKED_MATMUL(Ref("d"), Ref("a"), Ref("c"), Ref("s"), parse_form("int4/nibbles/1x32/fp32"))
    work = packed.work(memory_of(d=d, a=a, c=codes, s=scales))
    plain = MATMUL(Ref("d"), Ref("a"), Ref("w"), None).work(memory_of(d=d, a=a, w=(BF16, np.zeros((n, k), np.uint16))))
    assert (work.ops, work.write_bytes, work.dtype, work.shape) == (plain.ops, plain.write_bytes, BF16, plain.shape)
    assert work.read_bytes == m * k * 2 + n * 35 + n * 3 * 2
    assert isinstance(packed.packed, PackedOperand)
    quantised = QUANTISED_MATMUL(*(Ref(name) for name in "datcs"), parse_form("int8/plain/1x0/fp32"))
    held = {"a": (INT8, np.zeros((m, k), np.int8)), "t": (FP32, np.zeros((m, 1), np.float32))}
    held |= {"c": (INT8, np.zeros((n, k), np.int8)), "s": (FP32, np.zeros((n, 1), np.float32))}
    work = quantised.work(memory_of(d=d, **held))
    assert work.dtype is INT8 and work.read_bytes == m * k + m * 4 + n * k + n * 4
    assert work.ops == 2 * m * n * k + 2 * m * n
