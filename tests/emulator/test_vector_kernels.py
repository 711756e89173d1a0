"""Row-wise instructions take what kernels of libraries were measured to take, and their constants say how."""

import pytest

from siltwin.emulator.spec import load_card, override
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import FP16
from siltwin.isa.work import Unit, VectorShape, Work

COLS, INNER = 5120, 13824  # InternLM-20B
# Microseconds of vLLM's kernels for InternLM-20B on one card, from microsoft/vidur (MIT), medians; the activation and
# rope read and write more than one row's elements.
MEASURED = [
    ("a100-sxm", "input_layernorm", 512, 15),
    ("a100-sxm", "input_layernorm", 1024, 28),
    ("a100-sxm", "input_layernorm", 2048, 68),
    ("a100-sxm", "attn_rope", 512, 26),
    ("a100-sxm", "attn_rope", 1024, 50),
    ("a100-sxm", "attn_rope", 2048, 95),
    ("a100-sxm", "mlp_act", 512, 46),
    ("a100-sxm", "mlp_act", 1024, 90),
    ("a100-sxm", "mlp_act", 2048, 172),
    ("a100-sxm", "add", 512, 8),
    ("a100-sxm", "add", 1024, 16),
    ("a100-sxm", "add", 2048, 34),
    ("h100-sxm", "input_layernorm", 512, 8),
    ("h100-sxm", "input_layernorm", 1024, 15),
    ("h100-sxm", "input_layernorm", 2048, 37),
    ("h100-sxm", "attn_rope", 512, 14),
    ("h100-sxm", "attn_rope", 1024, 26),
    ("h100-sxm", "attn_rope", 2048, 52),
    ("h100-sxm", "mlp_act", 512, 21),
    ("h100-sxm", "mlp_act", 1024, 44),
    ("h100-sxm", "mlp_act", 2048, 87),
    ("h100-sxm", "add", 512, 5),
    ("h100-sxm", "add", 1024, 9),
    ("h100-sxm", "add", 2048, 18),
]


def work(kernel: str, tokens: int) -> Work:
    """Elements read and written, operations an element of the result, and passes of each kernel."""
    cols, reads, ops, passes = {
        "input_layernorm": (COLS, 1, 4, 2),
        "attn_rope": (2 * COLS, 1, 3, 1),
        "mlp_act": (INNER, 2, 6, 1),
        "add": (COLS, 2, 1, 1),
    }[kernel]
    size = 2 * tokens * cols
    return Work(Unit.VECTOR, ops * tokens * cols, reads * size, size, FP16, VectorShape(tokens, cols, passes))


def total_us(kernel: str, tokens: int, card: str) -> float:
    asked = demand(work(kernel, tokens), load_card(card))
    return (asked.fixed_ps + asked.alone_ps) / 1e6


@pytest.mark.parametrize("card", ["a100-sxm", "h100-sxm"])
def test_kernels_of_some_hundred_tokens_take_what_vllm_was_measured_to_take(card: str) -> None:
    errors = {row: total_us(row[1], row[2], card) / row[3] - 1 for row in MEASURED if row[0] == card}
    computing = [abs(error) for row, error in errors.items() if row[1] != "add"]
    assert sum(computing) / len(computing) < 0.2
    assert all(-0.3 < error < 1 for error in errors.values())  # a sum finds its operands in L2, which is not modelled


def test_each_kind_of_kernel_reaches_its_share_of_the_bandwidth_and_a_reduction_waits_for_its_sum() -> None:
    shares = {"map_share": "1", "gate_share": "0.5", "reduce_share": "0.25", "reduce_cycles": "1000"}
    base = {"hbm.bandwidth_bytes_per_s": "1TB/s", "hbm.attainable_fraction": "1", "clock_hz": "1GHz"}
    card = override(load_card("reference-npu"), base | {f"tuning.vector.{name}": text for name, text in shares.items()})
    num_bytes, times = {}, {}
    for kernel in ("add", "mlp_act", "input_layernorm"):
        asked = work(kernel, 8192)
        num_bytes[kernel], times[kernel] = asked.read_bytes + asked.write_bytes, demand(asked, card).alone_ps
        assert dict(demand(asked, card).amounts)["hbm"] == num_bytes[kernel]
    assert times["add"] == num_bytes["add"]  # a byte a picosecond
    assert times["mlp_act"] == 2 * num_bytes["mlp_act"]
    assert times["input_layernorm"] == 4 * num_bytes["input_layernorm"] + 1000 * 1000
