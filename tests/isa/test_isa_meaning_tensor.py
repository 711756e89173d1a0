"""Matrix products and attention against torch: pages in any order, windows, groups, mixed batches, every dtype."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.errors import ProgramError

RNG = np.random.default_rng


def test_a_matmul_by_hand(bench: Any) -> None:
    out = bench.run(
        "matmul dst=%d a=%a w=%w bias=%b",
        {"a": [[1, 2], [3, 4]], "w": [[1, 0], [0, 1], [1, 1]], "b": [0.5, 0, -1]},
        d="fp32[2, 3]",
        a="fp32[2, 2]",
        w="fp32[3, 2]",
        b="fp32[3]",
    )
    assert out["d"].tolist() == [[1.5, 2, 2], [3.5, 4, 6]]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("lead", ["7", "2, 3", "0"])
def test_a_matmul_is_torchs_linear_accumulated_in_fp32_and_rounded_once(
    bench: Any, torch: Any, dtype: str, lead: str
) -> None:
    rng = RNG(1)
    shape = tuple(map(int, lead.split(", ")))
    values = {"a": rng.normal(size=(*shape, 33)), "w": rng.normal(size=(5, 33)), "b": rng.normal(size=5)}
    out = bench.run(
        "matmul dst=%d a=%a w=%w bias=%b",
        values,
        d=f"{dtype}[{lead}, 5]",
        a=f"{dtype}[{lead}, 33]",
        w=f"{dtype}[5, 33]",
        b=f"{dtype}[5]",
    )
    exact = torch.nn.functional.linear(*(torch.from_numpy(out[n].astype(np.float64)) for n in ("a", "w", "b")))
    unit = {"fp32": 2.0**-23, "bf16": 2.0**-8, "fp16": 2.0**-11}[dtype]
    assert np.abs(out["d"] - exact.numpy()).max(initial=0) <= 1e-5 + unit * np.abs(exact.numpy()).max(initial=0)


def test_the_columns_of_one_buffer_are_written_side_by_side(bench: Any) -> None:
    out = bench.run(
        "q | matmul dst=%d[0:2] a=%a[1:3] w=%w bias=-\nq | matmul dst=%d[2:4] a=%a[0:2] w=%w bias=-",
        {"a": [[1, 2, 3]], "w": [[1, 0], [0, 10]]},
        d="fp32[1, 5]",
        a="fp32[1, 3]",
        w="fp32[2, 2]",
    )
    assert out["d"].tolist() == [[2, 30, 1, 20, 0]]


class Case:
    """A paged batch: sequences whose pages lie scattered in the pool, every other byte of which is NaN."""

    def __init__(
        self, lengths: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, dims: tuple[int, int] = (8, 6),
        window: int = 0, page: int = 4, dtype: str = "fp32", kv_dtype: str = "fp32", seed: int = 0,
        chunk: int = 0, soft_cap: float = 0.0,
    ) -> None:  # fmt: skip
        self.lengths, self.heads, self.kv_heads, self.dims, self.window = lengths, heads, kv_heads, dims, window
        self.page, self.dtype, self.kv_dtype, rng = page, dtype, kv_dtype, RNG(seed)
        self.chunk, self.soft_cap = chunk, soft_cap
        need = [-(-kv // page) for _, kv in lengths]
        free = rng.permutation(sum(need) + 3)
        self.row = kv_heads * sum(dims)
        self.pool = np.full((len(free), page, self.row), np.nan, np.float32)
        self.tables = np.full((len(lengths), max(need, default=0) + 1), -7, np.int32)  # unused entries are no pages
        for index, (_, kv) in enumerate(lengths):
            self.tables[index, : need[index]] = free[sum(need[:index]) : sum(need[: index + 1])]
            for token in range(kv):
                page_of = self.tables[index, token // page]
                self.pool[page_of, token % page] = rng.normal(size=self.row)
        self.q = rng.normal(size=(sum(q for q, _ in lengths), heads * dims[0])).astype(np.float32)

    def run(self, bench: Any, **changes: Any) -> dict[str, np.ndarray]:
        q_lens, kv_lens = (tuple(pair[i] for pair in self.lengths) for i in range(2))
        values = {"q": self.q, "c": self.pool, "p": self.tables, "l": q_lens, "k": kv_lens}
        extents = {"t": (len(self.q),), "n": (len(q_lens),), "q_lens": q_lens, "kv_lens": kv_lens}
        result: dict[str, np.ndarray] = bench.run(
            "attention dst=%d q=%q cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens "
            f"heads={self.heads} kv_heads={self.kv_heads} qk_dim={self.dims[0]} v_dim={self.dims[1]} "
            f"scale=0.3 window={self.window} sinks=- chunk={self.chunk} soft_cap={self.soft_cap}",
            values | changes.get("values", {}),
            extents | changes.get("extents", {}),
            d=f"{self.dtype}[t, {self.heads * self.dims[1]}]",
            q=f"{self.dtype}[t, {self.heads * self.dims[0]}]",
            c=f"{self.kv_dtype}[{len(self.pool)}, {self.page}, {self.row}]",
            p=f"int32[n, {self.tables.shape[1]}]",
            l="int32[n]",
            k="int32[n]",
        )
        return result

    def torch_says(self, torch: Any, q: np.ndarray, pool: np.ndarray) -> np.ndarray:
        """scaled_dot_product_attention in fp64, a sequence at a time, on keys and values taken token by token."""
        outs, start = [], 0
        for index, (queries, length) in enumerate(self.lengths):
            rows = np.array(
                [pool[self.tables[index, token // self.page], token % self.page] for token in range(length)]
            ).reshape(length, self.row)
            split = self.kv_heads * self.dims[0]
            k = torch.from_numpy(rows[:, :split].astype(np.float64)).reshape(length, self.kv_heads, self.dims[0])
            v = torch.from_numpy(rows[:, split:].astype(np.float64)).reshape(length, self.kv_heads, self.dims[1])
            x = torch.from_numpy(q[start : start + queries].astype(np.float64)).reshape(
                queries, self.heads, self.dims[0]
            )
            parts = [part.transpose(0, 1)[None] for part in (x, k, v)]
            out = self._attend(torch, *parts, self._mask(torch, queries, length))
            outs.append(out[0].transpose(0, 1).reshape(queries, self.heads * self.dims[1]).numpy())
            start += queries
        return np.concatenate(outs)

    def _mask(self, torch: Any, queries: int, length: int) -> Any:
        mask = torch.zeros(queries, length, dtype=torch.bool)
        for row in range(queries):
            at = length - queries + row
            first = max(0, at - self.window + 1) if self.window else 0
            mask[row, at - at % self.chunk if self.chunk else first : at + 1] = True
        return mask

    def _attend(self, torch: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        if not self.soft_cap:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        scores = torch.tanh(q @ k.transpose(2, 3) * 0.3 / self.soft_cap) * self.soft_cap
        return torch.nan_to_num(torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)) @ v

    def agrees(self, bench: Any, torch: Any, tolerance: float) -> None:
        out = self.run(bench)
        expected = self.torch_says(torch, out["q"], out["c"])
        assert np.isfinite(out["d"]).all(), "a token outside the sequence was read"
        assert np.abs(out["d"] - expected).max(initial=0) < tolerance


@pytest.mark.parametrize(
    "case",
    [
        Case([(9, 9)]),
        Case([(1, 13)]),
        Case([(1, 1), (1, 8), (1, 5)]),
        Case([(3, 11)]),
        Case([(6, 6), (1, 9), (2, 12), (1, 1)]),
        Case([(0, 4), (2, 3), (0, 0)]),
        Case([(9, 9), (1, 13)], window=3),
        Case([(4, 12)], window=64),
        Case([(9, 9), (1, 13), (4, 12)], chunk=4),
        Case([(9, 9), (1, 13)], soft_cap=0.4),
        Case([(6, 11)], soft_cap=2.0, window=3),
        Case([(5, 5)], heads=6, kv_heads=1),
        Case([(5, 7)], heads=3, kv_heads=3, dims=(4, 12)),
        Case([(5, 21)], page=1),
        Case([(5, 21)], page=32),
    ],
    ids=lambda case: f"{case.lengths}-{case.heads}-{case.kv_heads}-{case.window}-{case.page}",
)
def test_attention_is_torchs(bench: Any, torch: Any, case: Case) -> None:
    case.agrees(bench, torch, 2e-6)


@pytest.mark.parametrize(("dtype", "kv_dtype", "tolerance"), [("bf16", "bf16", 0.02), ("fp16", "fp8_e4m3", 0.003)])
def test_attention_reads_the_cache_in_its_own_dtype(
    bench: Any, torch: Any, dtype: str, kv_dtype: str, tolerance: float
) -> None:
    Case([(6, 6), (1, 9)], dtype=dtype, kv_dtype=kv_dtype).agrees(bench, torch, tolerance)


PAIRS = st.integers(1, 12).flatmap(lambda kv: st.tuples(st.integers(0, kv), st.just(kv)))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(PAIRS, min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3), (6, 2)]),
    window=st.integers(0, 14),
    page=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_attention_of_any_batch_is_torchs(
    bench: Any, torch: Any, lengths: list[tuple[int, int]], heads: tuple[int, int], window: int, page: int, seed: int
) -> None:
    Case(lengths, *heads, window=window, page=page, seed=seed).agrees(bench, torch, 2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": {"p": [[99, 0, 0, 0]]}}, "page 99 is outside 0 to 4"),
        ({"values": {"p": [[0, -1, 0, 0]]}}, "page -1 is outside 0 to 4"),
        ({"values": {"l": (2,)}}, r"lengths \[2\] in memory, \[3\] bound"),
        ({"values": {"k": (7,)}}, r"lengths \[7\] in memory, \[6\] bound"),
        ({"values": {"k": (30,)}, "extents": {"kv_lens": (30,)}}, "30 tokens need 8 pages, the table has 3"),
        ({"values": {"l": (2,)}, "extents": {"q_lens": (2,)}}, "q has 3 rows for 2 new tokens"),
        ({"extents": {"q_lens": (7,)}}, "7 new tokens in a cache of 6"),
    ],
)
def test_attention_refuses_pages_and_lengths_that_are_not_there(
    bench: Any, changes: dict[str, Any], message: str
) -> None:
    case = Case([(3, 6)])
    values = dict(changes.get("values", {}))
    if "p" in values:
        values["p"] = np.array(values["p"])[:, : case.tables.shape[1]]
    with pytest.raises(ProgramError, match=message):
        case.run(bench, **(changes | {"values": values}))
