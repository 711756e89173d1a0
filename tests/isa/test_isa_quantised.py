"""dequantise by hand: what codes and scales mean, and what reading them costs."""

import numpy as np
import pytest

from siltwin.isa.dtype import BF16, DTYPES, FP32, decode, encode
from siltwin.isa.errors import ProgramError
from siltwin.isa.formats.scheme import SCHEMES
from siltwin.isa.instruction import TensorType
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.program import Binding, Block
from siltwin.isa.quantised import DEQUANTISE, packed_types


def memory(scheme: str, dst: TensorType, codes: np.ndarray, scales: np.ndarray) -> tuple[DEQUANTISE, ArrayMemory]:
    kinds = packed_types(SCHEMES[scheme], dst.shape)
    params = (("d", dst), ("c", kinds[0]), ("s", kinds[1]))
    arrays = {"d": np.zeros(dst.shape, dst.dtype.storage), "c": codes, "s": scales}
    instruction = DEQUANTISE(Ref("d"), Ref("c"), Ref("s"), scheme)
    bound = ArrayMemory(Block("b", params, (), ()), {}, Binding({}, {}), arrays)
    instruction.check(bound)
    return instruction, bound


def test_int4_halves_of_a_byte_are_signed_and_the_low_one_is_first() -> None:
    codes = np.array([[0x81, 0x7F, 0x03]], np.uint8)
    scales = encode(np.array([[0.5]], np.float32), BF16)
    instruction, bound = memory("int4_g32", TensorType(FP32, (1, 5)), codes, scales)
    instruction.execute(bound)
    assert bound.arrays["d"].tolist() == [[0.5, -4.0, -0.5, 3.5, 1.5]]


def test_blocks_of_a_row_have_their_own_scales_and_stacks_share_none() -> None:
    codes = np.arange(2 * 1 * 130, dtype=np.int64).reshape(2, 1, 130) % 100
    scales = np.array([[[1, 10]], [[100, 1000]]], np.float32)
    instruction, bound = memory("int8_g128", TensorType(FP32, (2, 1, 130)), codes.astype(np.int8), scales)
    instruction.execute(bound)
    out = bound.arrays["d"]
    assert (out[0, 0, 5], out[0, 0, 129], out[1, 0, 0], out[1, 0, 128]) == (5, 290, 3000, 58000)


def test_mxfp4_scales_are_powers_of_two_and_the_product_is_rounded_once() -> None:
    codes = np.array([[0x7D]], np.uint8)  # -3 and 6
    instruction, bound = memory("mxfp4", TensorType(BF16, (1, 2)), codes, np.array([[127 - 3]], np.uint8))
    instruction.execute(bound)
    assert decode(bound.arrays["d"], BF16).tolist() == [[-0.375, 0.75]]
    codes = np.array([[127]], np.int8)
    instruction, bound = memory("int8_channel", TensorType(BF16, (1, 1)), codes, np.array([[1.01]], np.float32))
    instruction.execute(bound)
    assert decode(bound.arrays["d"], BF16).tolist() == [[128.0]]  # 128.27, and bf16 has steps of 1 there


def test_work_reads_codes_and_scales_and_writes_the_weights() -> None:
    codes, scales = np.zeros((6, 35), np.uint8), np.zeros((6, 3), np.uint16)
    instruction, bound = memory("int4_g32", TensorType(BF16, (6, 70)), codes, scales)
    work = instruction.work(bound)
    assert (work.read_bytes, work.write_bytes, work.ops) == (6 * 35 + 6 * 3 * 2, 6 * 70 * 2, 2 * 6 * 70)
    assert work.read_bytes == SCHEMES["int4_g32"].bytes_of((6, 70))
    assert (work.shape.rows, work.shape.cols, work.shape.passes) == (6, 70, 1)


@pytest.mark.parametrize("scheme", ["nvfp4", "int4_g32_words", "int4_g128_asymmetric"])
def test_schemes_that_are_more_than_codes_and_scales_are_refused(scheme: str) -> None:
    with pytest.raises(ProgramError, match=f"{scheme}: weights in device memory are codes and block scales alone"):
        packed_types(SCHEMES[scheme], (4, 64))
    assert packed_types(SCHEMES["mxfp4"], (4, 64))[0] == TensorType(DTYPES["uint8"], (4, 32))
