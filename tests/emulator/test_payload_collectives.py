"""Collectives carry real bytes: sums at the root, shares and uneven rows where they belong, by every algorithm."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from siltwin.emulator.payload import CardImage, Payload
from siltwin.interconnect.choices import Choice
from siltwin.interconnect.collectives.registry import ALGORITHMS, Options, algorithms_for
from siltwin.isa.dtype import BF16, FP16, FP32, INT32, DType, decode, encode
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import Array, split_even
from siltwin.isa.program import Binding
from siltwin.isa.text import assemble


def cards(
    size: int, text: str, arrays: Sequence[dict[str, Array]], dtype: DType, counts: Any = None, first: int = 0
) -> list[CardImage]:
    """A card each for one instruction over the buffers given, ranks from `first` on; `counts[i][j]` rows go i to j."""
    images, ranks = [], tuple(range(first, first + size))
    for index, held in enumerate(arrays):
        lines = ["program p", "queue q", f"group g {size}", "extent to[]", "extent fro[]"]
        kinds = {name: f"{dtype}[{', '.join(map(str, array.shape))}]" for name, array in held.items()}
        lines += [f"buffer {name} : {kind} activation" for name, kind in kinds.items()]
        lines += ["block b", *(f"param {name} : {kind}" for name, kind in kinds.items()), f"q | {text}", "end"]
        program = assemble("\n".join([*lines, " ".join(["call b", *kinds])]))
        extents = {}
        if counts is not None:
            extents = {"to": tuple(counts[index]), "fro": tuple(row[index] for row in counts)}
        binding = Binding(extents, {"g": index})
        images.append(CardImage(ranks[index], program, held, np.zeros(0, np.uint8), {}, {"g": ranks}, binding))
    return images


def payloads(collective: str, size: int) -> list[Payload]:
    """One for every algorithm that a group of this size can run."""
    made = []
    for name in algorithms_for(collective):
        options = Options()
        if "shape" in ALGORITHMS[collective, name].takes:
            if size % 2 or size < 4:
                continue
            options = Options(shape=(size // 2, 2))
        choice = Choice(name, options)
        try:
            choice.plan(collective, size)
        except Exception:
            continue  # halving and doubling want powers of two
        made.append(Payload(lambda *_, choice=choice: choice, debug=True))
    assert made
    return made


def numbers(seed: int, *shape: int) -> Array:
    """Small whole numbers, whose sums are exact in every dtype."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_reduce_leaves_the_sum_at_its_root(dtype: DType, size: int) -> None:
    for payload in payloads("reduce", size):
        for root in range(size):
            values = [numbers(n, 5, 6) for n in range(size)]
            held = [{"x": encode(value, dtype)} for value in values]
            payload.run(cards(size, f"reduce x=%x[1:4] group=g root={root}", held, dtype))
            want = values[root].copy()
            want[:, 1:4] = sum(value[:, 1:4] for value in values)
            np.testing.assert_array_equal(decode(held[root]["x"], dtype), want)
            for value, other in zip(values, held, strict=True):
                np.testing.assert_array_equal(decode(other["x"], dtype)[:, [0, 4, 5]], value[:, [0, 4, 5]])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_gather_and_scatter_are_each_others_inverse(size: int, axis: str) -> None:
    whole = np.arange(77, dtype=np.int32).reshape(7, 11)
    total = 7 if axis == "rows" else 11
    cuts = [slice(a, a + n) if axis == "rows" else (..., slice(a, a + n)) for a, n in split_even(total, size)]
    for kind, instruction in (("gather", "link_gather dst=%w src=%s"), ("scatter", "link_scatter dst=%s src=%w")):
        for payload in payloads(kind, size):
            for root in range(size):
                held = [{"w": np.full_like(whole, -n - 1), "s": np.full_like(whole[cuts[n]], 0)} for n in range(size)]
                for n, cut in enumerate(cuts):
                    if kind == "gather":
                        held[n]["s"][...] = whole[cut]
                held[root]["w"][...] = whole if kind == "scatter" else 0
                payload.run(cards(size, f"{instruction} group=g root={root} axis={axis}", held, INT32))
                np.testing.assert_array_equal(held[root]["w"], whole)
                for n, cut in enumerate(cuts):
                    np.testing.assert_array_equal(held[n]["s"], whole[cut])
                    assert kind == "gather" or n == root or (held[n]["w"] == -n - 1).all(), "src is only read"


def rows_of(member: int, count: int) -> Array:
    """Rows that say where they come from."""
    return member * 1000 + np.arange(count * 4, dtype=np.int32).reshape(count, 4)


def exchanged(counts: Array, instruction: str, payload: Payload, dst_columns: int = 4) -> list[dict[str, Array]]:
    size = len(counts)
    held = [
        {
            "s": rows_of(i, int(counts[i].sum()) + i),
            "d": np.full((int(counts[:, i].sum()) + 2, dst_columns), -1, np.int32),
        }
        for i in range(size)
    ]
    payload.run(cards(size, instruction, held, INT32, counts.tolist()))
    return held


def check_exchange(counts: Array, held: Sequence[dict[str, Array]], columns: slice = slice(0, 4)) -> None:
    size = len(counts)
    starts = np.concatenate([np.zeros((size, 1), int), counts.cumsum(1)], 1)
    for j in range(size):
        arrived = [rows_of(i, 1000)[starts[i, j] : starts[i, j + 1]] for i in range(size)]
        want = np.concatenate([*arrived, np.full((2, 4), -1, np.int32)])
        np.testing.assert_array_equal(held[j]["d"][:, columns], want)


TEXT = "all_to_all dst=%d src=%s group=g send_counts=to recv_counts=fro"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_an_uneven_all_to_all_brings_every_row_to_its_place_by_every_algorithm(size: int) -> None:
    for seed, payload in enumerate(payloads("all_to_all", size)):
        counts = np.random.default_rng(seed).integers(0, 4, (size, size))
        check_exchange(counts, exchanged(counts, TEXT, payload))


def test_an_all_to_all_of_column_slices_touches_no_other_column() -> None:
    counts = np.array([[1, 0, 2], [0, 3, 1], [2, 2, 0]])
    held = exchanged(counts, TEXT.replace("%d", "%d[2:6]"), Payload(), dst_columns=7)
    check_exchange(counts, held, slice(2, 6))
    assert all((member["d"][:, [0, 1, 6]] == -1).all() for member in held)


def test_a_large_group_exchanges_too() -> None:
    counts = np.random.default_rng(7).integers(0, 3, (80, 80))
    check_exchange(counts, exchanged(counts, TEXT, Payload()))


def test_one_payload_follows_counts_that_change_from_run_to_run() -> None:
    payload, size = Payload(), 3
    held = [{"s": rows_of(i, 9), "d": np.full((9, 4), -1, np.int32)} for i in range(size)]
    images = cards(size, TEXT, held, INT32, np.ones((size, size), int).tolist())
    for counts in ([[1, 1, 1], [1, 1, 1], [1, 1, 1]], [[0, 2, 0], [3, 0, 1], [0, 0, 4]]):
        for index, image in enumerate(images):
            image.binding.extents.update(  # type: ignore[attr-defined]
                {"to": tuple(counts[index]), "fro": tuple(row[index] for row in counts)}
            )
        payload.run(images)
        for j in range(size):
            start = 0
            for i in range(size):
                at, count = sum(counts[i][:j]), counts[i][j]
                np.testing.assert_array_equal(held[j]["d"][start : start + count], rows_of(i, 9)[at : at + count])
                start += count


def test_members_that_count_differently_are_named() -> None:
    held = [{"s": rows_of(i, 9), "d": np.zeros((9, 4), np.int32)} for i in range(2)]
    images = cards(2, TEXT, held, INT32, [[1, 2], [3, 1]])
    images[1].binding.extents["fro"] = (1, 1)  # type: ignore[index]
    with pytest.raises(
        ProgramError, match=r"card 0, .* sends 2 rows to member 1, and card 1, .* expects 1 from member 0"
    ):
        Payload().run(images)


def test_the_choice_is_made_by_bytes_and_ranks() -> None:
    asked = []

    def choose(collective: str, size: int, ranks: Sequence[int], num_bytes: int, dtype: DType | None) -> Choice:
        asked.append((collective, size, ranks, num_bytes, dtype))
        return Choice(algorithms_for(collective)[0])

    held = [{"x": np.zeros((3, 5), np.float32)} for _ in range(2)]
    Payload(choose).run(cards(2, "all_reduce x=%x group=g", held, FP32, first=4))
    counts = [[1, 2], [3, 1]]
    held = [{"s": rows_of(i, 9), "d": np.zeros((9, 4), np.int32)} for i in range(2)]
    Payload(choose).run(cards(2, TEXT, held, INT32, counts))
    assert asked == [("all_reduce", 2, (4, 5), 60, FP32), ("all_to_all", 2, (0, 1), 7 * 16, INT32)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_rows_of_uneven_members_are_gathered_in_order_by_every_algorithm(size: int) -> None:
    counts = [5, 0, 1, 2, 0, 3][:size]
    whole = np.arange(3 * sum(counts), dtype=np.int32).reshape(-1, 3)
    ends = np.cumsum(counts)
    for payload in payloads("all_gather", size):
        held = [
            {"d": np.zeros_like(whole), "s": whole[end - count : end].copy()}
            for end, count in zip(ends, counts, strict=True)
        ]
        payload.run(cards(size, "all_gather_rows dst=%d src=%s group=g counts=to", held, INT32, [counts] * size))
        for one in held:
            np.testing.assert_array_equal(one["d"], whole)
