"""Unit timing worked by hand on a little card, and what a roofline cannot show on the shipped ones."""

import pytest
from ideal_kernels import IDEAL

from siltwin.emulator.spec import CardSpec, load_card, override
from siltwin.emulator.units.demand import demand
from siltwin.emulator.units.rates import UnitDemand, capacities
from siltwin.emulator.units.tensor import matmul_plan
from siltwin.isa.dtype import BF16, DTYPES, FP32, DType
from siltwin.isa.errors import ConfigError, ProgramError, UnsupportedError
from siltwin.isa.work import (
    AttentionShape,
    CollectiveShape,
    MatmulShape,
    MoveShape,
    TransferShape,
    Unit,
    VectorShape,
    Work,
)

CARDS = ("a100-sxm", "ascend-910b2", "h100-sxm", "reference-npu")  # one of a kind; the library holds many more
# Four cores of 16 x 16 x 16 at 1 GHz (a cycle is 1,000 ps), whose SRAM holds one tile only: 16 x 16 with slabs of 32.
# HBM gives 1 byte a picosecond, L2 four.
LITTLE = override(
    load_card("reference-npu"),
    {
        "clock_hz": "1GHz",
        "cores.count": "4",
        "cores.load_bytes_per_cycle": "512",
        "tensor.fill_cycles": "20",
        "tensor.slab_cycles": "4",
        "sram.0.capacity_bytes": "4KiB",
        "sram.1.capacity_bytes": "1KiB",
        "l2.bandwidth_bytes_per_s": "4TB/s",
        "hbm.bandwidth_bytes_per_s": "1TB/s",
        "hbm.attainable_fraction": "1",
        "hbm.latency_ps": "300ns",
        "dispatch.tensor_ps": "200ns",
        "vector.row_cycles": "5",
        "vector.sync_cycles": "100",
        "vector.exponentials_per_cycle": "32",
        **IDEAL,
    },
)


def matmul(m: int, n: int, k: int, batch: int = 1, dtype: DType = BF16) -> Work:
    operand, result = (m * k + k * n) * batch, m * n * batch
    size = dtype.itemsize_bytes
    return Work(Unit.TENSOR, 2 * m * n * k * batch, operand * size, result * size, dtype, MatmulShape(m, n, k, batch))


def attention(q_lens: list[int], kv_lens: list[int], heads: int, kv_heads: int, dim: int, window: int = 0) -> Work:
    seen = [min(kv, window or kv) for kv in kv_lens]
    ops = sum(4 * q * kv * heads * dim for q, kv in zip(q_lens, seen, strict=True))
    queries, cache = 2 * sum(q_lens) * heads * dim, 4 * sum(seen) * kv_heads * dim
    shape = AttentionShape(tuple(q_lens), tuple(kv_lens), heads, kv_heads, dim, dim, window)
    return Work(Unit.TENSOR, ops, queries + cache, queries, BF16, shape)


def vector(rows: int, cols: int, passes: int = 1, ops: int = 0, dtype: DType = BF16) -> Work:
    num_bytes = rows * cols * dtype.itemsize_bytes
    return Work(Unit.VECTOR, ops, num_bytes, num_bytes, dtype, VectorShape(rows, cols, passes))


def total_ps(work: Work, card: CardSpec) -> int:
    asked = demand(work, card)
    return asked.fixed_ps + asked.alone_ps


# matmul, by hand


def test_a_matmul_is_worked_out_tile_by_tile() -> None:
    # 64 x 64 x 2048: 4 x 4 tiles on 4 cores are 4 waves. A tile is 2048 / 16 = 128 steps, 20 to fill the array, and 64
    # slabs x 4: 404 cycles (its operands, 32 x 2048 x 2 bytes at 512 a cycle, come in 256). 4 x 404 = 1,616 cycles.
    # Not hidden: the first slab, 32 x 32 x 2 / 512 = 4 cycles, and the last store, 16 x 16 x 2 / 512 = 1.
    # HBM: (2 x 64 x 2048 + 64 x 64) x 2 = 532,480 bytes in as many ps; L2: 4 x the operands + 8,192 bytes; both hidden.
    assert demand(matmul(64, 64, 2048), LITTLE) == UnitDemand(
        fixed_ps=500_000,
        alone_ps=1_621_000,
        amounts=(("tensor", 1616), ("hbm", 532_480)),
        bound="compute",
    )


def test_the_plan_behind_it_can_be_seen() -> None:
    plan = matmul_plan(matmul(64, 64, 2048), LITTLE)
    assert (plan.tile_rows, plan.tile_columns, plan.slab, plan.parts, plan.waves) == (16, 16, 32, 1, 4)
    assert (plan.tensor_cycles, plan.flow_ps, plan.exposed_cycles) == (1616, 1_616_000, 5)
    assert plan.l2_bytes == 4 * 2 * 64 * 2048 * 2 + 8192


def test_a_seventeenth_tile_costs_a_whole_wave() -> None:
    # m = 65 has 5 x 4 tiles: 5 waves of 404 cycles.
    assert demand(matmul(65, 64, 2048), LITTLE).alone_ps == (5 * 404 + 5) * 1000
    assert demand(matmul(80, 64, 2048), LITTLE).alone_ps == (5 * 404 + 5) * 1000


def test_a_long_k_is_split_where_cores_would_idle() -> None:
    # One tile, k = 2048. Whole: 404 + 5 = 409 cycles. In 2 parts: 64 + 20 + 128 = 212, then 5 exposed, 100 to meet and
    # 2 to sum 2 x 256 elements over 4 cores x 64 lanes: 319. In 4 parts: 32 + 20 + 64 = 116, but HBM takes 131,584 ps
    # for as many bytes, then 5 + 100 + 4: 240.584 ns. In 8 parts: two waves of 16 + 20 + 32 = 68, then 113: 249.
    asked = demand(matmul(16, 16, 2048), LITTLE)
    assert matmul_plan(matmul(16, 16, 2048), LITTLE).parts == 4
    assert asked.alone_ps == 131_584 + 109_000
    assert asked.amounts == (("tensor", 116), ("hbm", 131_584))


def test_short_k_shows_the_pipeline_fill() -> None:
    # k = 16 is 1 step + 20 + 4, k = 32 is 2 + 20 + 4 and k = 64 is 4 + 20 + 8 cycles, in 4 waves;
    # then load and store.
    times = [demand(matmul(64, 64, k), LITTLE).alone_ps for k in (16, 32, 64)]
    assert times == [(4 * 25 + 3) * 1000, (4 * 26 + 5) * 1000, (4 * 32 + 5) * 1000]


def test_a_narrow_load_port_holds_a_tile() -> None:
    card = override(LITTLE, {"cores.load_bytes_per_cycle": "64"})
    # Operands of a tile, 131,072 bytes at 64 a cycle, are 2,048 cycles against 404 of the array; the first slab is 32,
    # the store 8. Every wave waits, and the array is demanded for its own cycles only.
    assert demand(matmul(64, 64, 2048), card) == UnitDemand(
        500_000, (4 * 2048 + 40) * 1000, (("tensor", 1616), ("hbm", 532_480)), "sram"
    )


def test_a_slow_l2_holds_the_re_reads() -> None:
    card = override(LITTLE, {"l2.bandwidth_bytes_per_s": "1TB/s"})
    asked = demand(matmul(64, 64, 2048), card)
    assert (asked.alone_ps, asked.bound) == (4 * 2 * 64 * 2048 * 2 + 8192 + 5000, "sram")


def test_without_an_l2_the_re_reads_go_to_hbm() -> None:
    card = CardSpec.model_validate({**LITTLE.model_dump(mode="json"), "l2": None})
    asked = demand(matmul(64, 64, 2048), card)
    assert dict(asked.amounts)["hbm"] == 4 * 2 * 64 * 2048 * 2 + 8192
    assert (asked.alone_ps, asked.bound) == (2_105_344 + 5000, "hbm")


def test_a_slow_element_type_takes_several_cycles_a_step() -> None:
    # Two slabs of 4-byte operands do not fit the 4 KiB that hold two of 2 bytes.
    with pytest.raises(ConfigError, match="holds no 16 x 16 x 32 tile of fp32"):
        demand(matmul(64, 64, 2048, dtype=FP32), LITTLE)
    card = override(LITTLE, {"sram.0.capacity_bytes": "8KiB", "tensor.rate.fp32": "0.03125"})
    card = override(card, {"hbm.bandwidth_bytes_per_s": "4TB/s"})
    # At 1/32 of a depth of 16 a step takes 2 cycles and eats one element: 4,096 + 20 + 256 cycles a tile.
    assert dict(demand(matmul(64, 64, 2048, dtype=FP32), card).amounts)["tensor"] == 4 * (4096 + 20 + 256)


# matmul, on the shipped cards


@pytest.mark.parametrize("name", CARDS)
def test_one_row_more_than_128_costs_a_tile_or_a_wave(name: str) -> None:
    card = load_card(name)
    # In bf16 an Ascend card waits for its HBM at 128 rows, which hides most of the tile; in fp32 nothing hides it.
    worst = max(
        demand(matmul(129, n, k, dtype=dtype), card).alone_ps / demand(matmul(128, n, k, dtype=dtype), card).alone_ps
        for n in (1024, 2048, 4096, 6144, 8192)
        for k in (1024, 4096, 8192)
        for dtype in (BF16, FP32)
    )
    assert worst > 1.1, "a roofline would add 1/128"


@pytest.mark.parametrize("name", CARDS)
def test_a_tiny_matmul_is_bound_by_dispatch_and_a_large_one_by_compute(name: str) -> None:
    card = load_card(name)
    assert demand(matmul(1, 64, 64), card).bound == "dispatch"
    assert demand(matmul(1, 8192, 8192), card).bound == "hbm"
    large = demand(matmul(8192, 8192, 8192), card)
    assert large.bound == "compute"
    # an H100 is measured at 764 of its 989 TFLOP/s, its power being what holds it
    assert large.alone_ps < 1.35 * 2 * 8192**3 * 10**12 / card.peak_ops_per_s(BF16)


def test_an_empty_matmul_costs_its_dispatch() -> None:
    assert demand(matmul(0, 64, 64), LITTLE).amounts == (("hbm", 8192),)
    assert demand(Work(Unit.TENSOR, dtype=BF16, shape=MatmulShape(0, 0, 0)), LITTLE) == UnitDemand(
        500_000, 0, (), "dispatch"
    )


# attention


# The plainest kernels that a card may state: every constant at the end of its range where it changes least.
PLAIN = {
    "tuning.prefill.launch_ns": "100",
    "tuning.prefill.tile_cycles": "10",
    "tuning.prefill.matrix_fraction": "1",
    "tuning.prefill.overlap": "0",
    "tuning.prefill.imbalance": "0",
    "tuning.prefill.parts": "1",
    "tuning.prefill.append_cycles": "1",
    "tuning.decode.launch_ns": "100",
    "tuning.decode.tile_cycles": "10",
    "tuning.decode.imbalance": "0",
    "tuning.decode.parts": "4",
    "tuning.decode.lone_parts": "4",
    "tuning.decode.port_fraction": "0.05",
    "tuning.decode.bandwidth_fraction": "0.5",
    "tuning.decode.stall": "0",
    "tuning.decode.combine_ns": "100",
}


def test_attention_is_worked_out_tile_by_tile() -> None:
    # 16 new tokens over 64 cached, one head of 16: one tile of queries, 8 times the array's 16 rows, which passes the
    # 64 tokens and half a block of 128. A token takes 8 x (1/16 + 1/16) cycles of the array and 4/128 of a buffer swap,
    # and its 128 scores 5/64 + 1/32 cycles each of the lanes: 15.03125, as they take turns. With the start of 10 and
    # two fills of 20 these are 1,974 cycles; the array's own are 172, the lanes' 1,792, both of a quarter of the cores.
    asked = demand(attention([16], [64], 1, 1, 16), override(LITTLE, PLAIN))
    assert asked == UnitDemand(600_000, 1_974_000, (("tensor", 43), ("vector", 448), ("hbm", 5120)), "compute")


def test_a_decode_step_is_worked_out_part_by_part() -> None:
    # One query row over 1,024 tokens of 512 bytes: a twentieth of the port of 512 brings one in 20 cycles. The array
    # takes 8/16 + 8/16 + 4/128 for the 16 rows it is filled with, the lanes 16 x (5/64 + 1/32) = 1.75. Whole it were
    # 20,480 cycles and 50 of start; four fifths of four cores take parts of 6,400 each, and the sum 100 ns more.
    asked = demand(attention([1], [1024], 1, 1, 128), override(LITTLE, PLAIN))
    assert asked == UnitDemand(600_000, 6_550_000, (("tensor", 274), ("vector", 448), ("hbm", 524_800)), "sram")
    # Of 64 such rows all cores are busy with 1,310,720 cycles and 64 starts in any case: 327,680 and 800.
    many = demand(attention([1] * 64, [1024] * 64, 1, 1, 128), override(LITTLE, PLAIN))
    assert many.alone_ps == 328_480_000


def test_more_tokens_of_one_sequence_beside_others_never_take_less() -> None:
    """From the last number of tokens that a decode kernel takes to more, where the kernels of prefill begin."""
    for card in map(load_card, ("h100-sxm", "ascend-910b2")):
        for others in ([], [(1, 30_000)], [(7, 120_007), (100, 1100)]):
            for grows in (0, 1):  # the cache with the new tokens, or not
                times = []
                for new in range(1, 200, 7):
                    pairs = [(new, 20_000 + grows * new), *others]
                    q_lens, kv_lens = ([pair[place] for pair in pairs] for place in (0, 1))
                    times.append(total_ps(attention(q_lens, kv_lens, 8, 2, 128), card))
                assert times == sorted(times)


def test_only_the_causal_tiles_are_computed() -> None:
    card = override(load_card("reference-npu"), PLAIN)
    prompt = demand(attention([4096], [4096], 8, 8, 128), card).alone_ps
    later = demand(attention([4096], [8192], 8, 8, 128), card).alone_ps
    # 4,096 tokens see 2,048 on average, or 6,144 when 4,096 stand before them; tiles add half of their own 128 tokens
    # and half a block, and the last ones see most.
    assert 2.7 < later / prompt < 3.0


def test_a_window_is_respected() -> None:
    card = override(load_card("reference-npu"), PLAIN)
    whole = demand(attention([4096], [32768], 8, 8, 128), card).alone_ps
    part = demand(attention([4096], [32768], 8, 8, 128, window=1024), card).alone_ps
    # A tile of 128 tokens sees 30,720 before it on average, or 1,024 + 128 of its own and half a block of 128.
    assert 20 < whole / part < 30


def test_decode_of_one_long_context_is_split_over_the_cores() -> None:
    card = load_card("ascend-910b2")
    work = attention([1], [131072], 8, 1, 128)
    asked = demand(work, card)
    lone_core_ps = 131072 * 2 * 128 * 2 * 10**12 // (card.cores.load_bytes_per_cycle * card.clock_hz)
    assert asked.alone_ps < lone_core_ps / 5
    assert asked.bound == "hbm" or asked.alone_ps < 2 * work.read_bytes * 10**12 // card.hbm.attainable_bytes_per_s


@pytest.mark.parametrize("name", CARDS)
def test_decode_of_a_large_batch_is_bound_by_hbm(name: str) -> None:
    card = load_card(name)
    work = attention([1] * 64, [8192] * 64, 32, 8, 128)
    asked = demand(work, card)
    assert asked.bound == "hbm"
    assert asked.alone_ps < 1.1 * (work.read_bytes + work.write_bytes) * 10**12 / card.hbm.attainable_bytes_per_s


def test_a_mixed_batch_is_one_instruction_with_the_work_of_both() -> None:
    card = load_card("h100-sxm")
    prefill, decode = ([2048], [2048]), ([1] * 32, [4096] * 32)
    mixed = demand(attention(prefill[0] + decode[0], prefill[1] + decode[1], 32, 8, 128), card)
    apart = [demand(attention(q, kv, 32, 8, 128), card) for q, kv in (prefill, decode)]
    assert dict(mixed.amounts)["hbm"] == sum(dict(part.amounts)["hbm"] for part in apart)
    assert max(part.alone_ps for part in apart) <= mixed.alone_ps <= sum(part.alone_ps for part in apart)


def test_one_longer_sequence_moves_the_time() -> None:
    card = load_card("a100-sxm")
    short = demand(attention([1] * 8, [1000] * 8, 8, 2, 128), card)
    longer = demand(attention([1] * 8, [1000] * 7 + [1100], 8, 2, 128), card)
    assert longer.alone_ps > short.alone_ps


# vector


def test_rows_are_dealt_to_cores_and_columns_to_lanes() -> None:
    # 10 rows on 4 cores: 3 on the busiest. 1,000 columns on 128 lanes: 8 trips a pass, 2 passes, 5 cycles to start
    # each: 26 cycles a row, 78 in all; HBM moves 40,000 bytes in 40,000 ps.
    assert demand(vector(10, 1000, passes=2), LITTLE) == UnitDemand(
        1_300_000, 78_000, (("vector", 78), ("hbm", 40_000)), "dispatch"
    )


def test_many_operations_an_element_take_the_lanes_longer() -> None:
    # 20 operations an element: 10 x 1,000 x 20 / (10 x 128) = 157 trips instead of 16.
    assert dict(demand(vector(10, 1000, passes=2, ops=200_000), LITTLE).amounts)["vector"] == 3 * (157 + 10)


def test_one_long_row_is_shared_by_the_cores() -> None:
    # 65,536 columns over 4 cores x 128 lanes: 128 trips a pass and 5 to start, twice, and one meeting of 100 cycles.
    assert dict(demand(vector(1, 65536, passes=2), LITTLE).amounts)["vector"] == 2 * 128 + 10 + 100
    assert dict(demand(vector(1, 512, passes=2), LITTLE).amounts)["vector"] == 2 * 4 + 10, "not worth a meeting"


def test_an_empty_vector_instruction_costs_its_dispatch() -> None:
    assert demand(vector(0, 64), LITTLE) == UnitDemand(1_300_000, 0, (), "dispatch")


# dma and host


def test_short_rows_waste_the_rest_of_their_bursts() -> None:
    # 1,000 rows of 96 bytes are read in two bursts of 64 each: 128,000 bytes read, 96,000 written.
    gather = Work(Unit.DMA, 0, 96_000, 96_000, None, MoveShape(1000, 96))
    assert demand(gather, LITTLE) == UnitDemand(1_800_000, 250_000, (("dma", 250), ("hbm", 224_000)), "dispatch")
    whole = Work(Unit.DMA, 0, 96_000, 96_000, None, MoveShape(750, 128))
    assert dict(demand(whole, LITTLE).amounts)["hbm"] == 192_000


def test_a_copy_is_held_by_hbm_or_by_its_engine() -> None:
    copy = Work(Unit.DMA, 0, 10**8, 10**8, None, MoveShape(1, 10**8))
    assert demand(copy, LITTLE) == UnitDemand(1_800_000, 2 * 10**8, (("dma", 195_313), ("hbm", 2 * 10**8)), "hbm")
    slow = override(LITTLE, {"dma.bytes_per_cycle": "100"})
    assert (demand(copy, slow).alone_ps, demand(copy, slow).bound) == (10**9, "compute")


def test_a_host_load_crosses_the_host_link_once() -> None:
    load = Work(Unit.HOST, 0, 0, 32_000_000, None, MoveShape(1, 32_000_000))
    # 32 MB at 32 GB/s is a millisecond.
    assert demand(load, LITTLE) == UnitDemand(3_300_000, 10**9, (("host", 32_000_000), ("hbm", 32_000_000)), "link")


# link and control


def test_a_send_asks_its_card_for_the_bytes_it_reads_and_no_wire() -> None:
    send = Work(Unit.LINK, 0, 10**6, 0, BF16, TransferShape("tp", 1, 10**6, sends=True))
    assert demand(send, LITTLE) == UnitDemand(1_000_000, 10**6, (("hbm", 10**6),), "link")


def test_a_receive_that_reduces_asks_for_the_unit_the_card_names() -> None:
    shape = TransferShape("tp", 1, 10**6, sends=False, reduces=True, dtype=BF16)
    reduce = Work(Unit.LINK, 500_000, 10**6, 2 * 10**6, BF16, shape)
    # 500,000 elements over 4 cores x 128 lanes; inline in a dma engine, 10^6 bytes at 512 a cycle.
    assert dict(demand(reduce, LITTLE).amounts) == {"hbm": 3 * 10**6, "vector": 977}
    inline = override(LITTLE, {"link.reduces_on": "dma"})
    assert dict(demand(reduce, inline).amounts) == {"hbm": 3 * 10**6, "dma": 1954}


def test_an_all_reduce_adds_every_part_but_one() -> None:
    shape = CollectiveShape("all_reduce", "tp", (1024, 1024, 1024, 1024), BF16)
    assert dict(demand(Work(Unit.LINK, 0, 4096, 4096, BF16, shape), LITTLE).amounts)["vector"] == 3
    barrier = Work(Unit.LINK, shape=CollectiveShape("barrier", "tp", ()))
    assert demand(barrier, LITTLE) == UnitDemand(1_000_000, 0, (), "dispatch")


def test_control_holds_its_queue_and_nothing_else() -> None:
    assert demand(Work(Unit.CONTROL), LITTLE) == UnitDemand(100_000, 0, (), "dispatch")


# refusals


def test_an_element_type_the_unit_lacks_is_refused_with_the_native_ones() -> None:
    with pytest.raises(
        UnsupportedError, match="a100-sxm has no tensor unit for fp8_e4m3; native: bf16, fp16, int8, fp32"
    ):
        demand(matmul(16, 16, 16, dtype=DTYPES["fp8_e4m3"]), load_card("a100"))
    with pytest.raises(UnsupportedError, match="no vector lanes for fp8_e4m3"):
        demand(vector(16, 16, dtype=DTYPES["fp8_e4m3"]), load_card("a100"))


@pytest.mark.parametrize(
    "work",
    [
        Work(Unit.TENSOR, dtype=BF16),
        Work(Unit.TENSOR, shape=MatmulShape(1, 1, 1)),
        Work(Unit.TENSOR, dtype=BF16, shape=VectorShape(1, 1)),
        Work(Unit.TENSOR, dtype=BF16, shape=AttentionShape((1, 1), (1,), 8, 8, 64, 64)),
        Work(Unit.TENSOR, dtype=BF16, shape=AttentionShape((1,), (1,), 9, 2, 64, 64)),
        Work(Unit.VECTOR, dtype=BF16, shape=MoveShape(1, 1)),
        Work(Unit.DMA, shape=VectorShape(1, 1)),
    ],
)
def test_a_geometry_that_is_not_the_units_is_refused(work: Work) -> None:
    with pytest.raises(ProgramError):
        demand(work, LITTLE)


def test_an_absurd_product_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="split the instruction"):
        demand(matmul(1 << 20, 1 << 20, 1 << 20), LITTLE)


def test_a_rate_that_would_hold_the_card_for_days_is_refused() -> None:
    card = override(LITTLE, {"hbm.bandwidth_bytes_per_s": "1"})
    with pytest.raises(ConfigError, match="check the card's rates"):
        demand(matmul(1024, 1024, 1024), card)


def test_capacities_are_named_as_the_amounts_are() -> None:
    assert capacities(LITTLE) == {
        "tensor": 10**9,
        "vector": 10**9,
        "dma": 10**9,
        "hbm": 10**12,
        "host": 32 * 10**9,
    }
