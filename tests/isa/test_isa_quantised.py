"""dequantise by hand: what codes and scales mean, and what reading them costs."""

import numpy as np
import pytest

from siltwin.isa.dtype import BF16, DTYPES, FP32, decode, encode
from siltwin.isa.errors import ProgramError
from siltwin.isa.formats.form import form_of, parse_form
from siltwin.isa.formats.scheme import SCHEMES
from siltwin.isa.instruction import TensorType
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.program import Binding, Block
from siltwin.isa.quantised import DEQUANTISE


def memory(scheme: str, dst: TensorType, codes: np.ndarray, scales: np.ndarray) -> tuple[DEQUANTISE, ArrayMemory]:
    form = form_of(SCHEMES[scheme])
    kinds = TensorType(form.stored, codes.shape), TensorType(SCHEMES[scheme].scale, scales.shape)
    params = (("d", dst), ("c", kinds[0]), ("s", kinds[1]))
    arrays = {"d": np.zeros(dst.shape, dst.dtype.storage), "c": codes, "s": scales}
    instruction = DEQUANTISE(Ref("d"), Ref("c"), Ref("s"), form)
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


def decoded(form: str, shape: tuple[int, int], phase: int = 0, **arrays: np.ndarray) -> list[list[float]]:
    """What a form makes of arrays, given by the names of dequantise's operands."""
    names = {np.dtype(np.uint8): "uint8", np.dtype(np.int32): "int32", np.dtype(np.float32): "fp32"}
    kinds = {name: TensorType(DTYPES[names[array.dtype]], array.shape) for name, array in arrays.items()}
    params = (("d", TensorType(FP32, shape)), *kinds.items())
    held = {"d": np.zeros(shape, np.float32), **arrays}
    instruction = DEQUANTISE(Ref("d"), form=parse_form(form), phase=phase, **{name: Ref(name) for name in arrays})
    bound = ArrayMemory(Block("b", params, (), ()), {}, Binding({}, {}), held)
    instruction.check(bound)
    instruction.execute(bound)
    return held["d"].tolist()


def test_a_cut_block_keeps_its_scale_and_an_index_says_which_rows_share_one() -> None:
    codes = np.array([[0x21, 0x43], [0x21, 0x43], [0x65, 0x07]], np.uint8)  # 1 2 3 4 | 1 2 3 4 | 5 6 7 0
    scales = np.array([[1, 10], [2, 20]], np.float32)
    index = np.array([1, 0, 1], np.int32)
    out = decoded("int4/nibbles/2x4/fp32", (3, 4), phase=1, codes=codes, scales=scales, index=index)
    assert out == [[2, 4, 6, 80], [1, 2, 3, 40], [10, 12, 14, 0]]


def test_zero_points_lie_in_words_along_the_rows_and_divisors_serve_runs_of_rows() -> None:
    codes = np.array([[0x000000A9], [0x000000F0]], np.int32)  # 8 is zero: 1, 2 and -8, 7
    zeros = np.array([[0x00000097]], np.int32)  # row 0: -1, row 1: 1
    scales = np.array([[2], [4]], np.float32)
    assert decoded("int4/words/1x0/fp32", (2, 2), codes=codes, scales=scales, zeros=zeros) == [[4, 6], [-36, 24]]
    halves = np.array([[0x22], [0x22], [0x22], [0x22]], np.uint8)  # e2m1 code 2 is 1
    divisors = np.array([2, 8], np.float32)
    ones = np.ones((4, 1), np.float32)
    out = decoded("mxfp4/nibbles/1x16/fp32", (4, 2), codes=halves, scales=ones, divisors=divisors)
    assert out == [[0.5, 0.5], [0.5, 0.5], [0.125, 0.125], [0.125, 0.125]]
    swapped = np.array([1, 0, 0, 1], np.int32)
    out = decoded("mxfp4/nibbles/1x16/fp32", (4, 2), codes=halves, scales=ones, divisors=divisors, index=swapped)
    assert [row[0] for row in out] == [0.125, 0.5, 0.5, 0.125]


def test_a_product_is_rounded_to_the_forms_type_before_the_destinations() -> None:
    codes, scales = np.array([[0x7F]], np.uint8), np.array([[1.01]], np.float32)
    assert decoded("int4/nibbles/1x0/bf16", (1, 2), codes=codes, scales=scales) == [[-1.0078125, 7.0625]]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("int3/plain/1x0/fp32", "is no form"),
        ("int8/nibbles/1x0/fp32", "no form has int8 elements packed as nibbles"),
        ("int4/plain/1x0/fp32", "no form has int4 elements packed as plain"),
        ("bf16/plain/1x0/fp32", "no form has bf16 elements"),
        ("int8/plain/1x0/int8", "products are fp32, fp16, bf16"),
    ],
)
def test_forms_that_nothing_decodes_are_refused(form: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        parse_form(form)


def test_buffers_that_do_not_fit_the_form_are_refused() -> None:
    codes, scales = np.zeros((4, 3), np.uint8), np.zeros((4, 1), np.float32)
    with pytest.raises(ProgramError, match=r"%scales is fp32\[4, 1\], must be \[4, 2\]"):
        decoded("int4/nibbles/1x4/fp32", (4, 6), codes=codes, scales=scales)
    with pytest.raises(ProgramError, match=r"%codes is uint8\[4, 3\], must be uint8\[4, 4\]"):
        decoded("int4/nibbles/1x0/fp32", (4, 7), codes=codes, scales=scales)
    with pytest.raises(ProgramError, match="phase=4 must be below 4"):
        decoded("int4/nibbles/1x4/fp32", (4, 6), phase=4, codes=codes, scales=scales)
    with pytest.raises(ProgramError, match="%index passes 2 scales"):
        index = np.array([0, 1, 2, 0], np.int32)
        decoded("int4/nibbles/2x0/fp32", (4, 6), codes=codes, scales=scales[:2], index=index)
