"""Programs of several cards computed together: equal to one card's meaning, in any sharding, at every step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from siltwin.emulator.kernels.registry import set_host_threads
from siltwin.emulator.payload import CardImage, Payload
from siltwin.isa.check import check_program
from siltwin.isa.control import HALT, SIGNAL, WAIT
from siltwin.isa.dma import COPY, EMBEDDING, HOST_LOAD, HOST_STORE, SCATTER
from siltwin.isa.dtype import BF16, FP16, FP32, INT32, DType, decode, encode
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import Array, Instruction, TensorType, elements, split_even
from siltwin.isa.link import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, RECV, RECV_REDUCE, REDUCE_SCATTER, SEND
from siltwin.isa.meaning import run_program
from siltwin.isa.operands import Ref
from siltwin.isa.program import Binding, Block, Buffer, Call, Extent, Group, Issue, Program, Space
from siltwin.isa.tensor import ATTENTION, MATMUL
from siltwin.isa.vector import ADD, ADD_RMSNORM, GATED, RMSNORM, ROPE

Shape = tuple[int | str, ...]
EXTENTS = (Extent("tokens"), Extent("sequences"), Extent("q", True), Extent("kv", True))


def ref(text: str) -> Ref:
    """`x`, or `x:4:8` for eight columns from the fourth on."""
    name, *columns = text.split(":")
    return Ref(name, *map(int, columns))


def program(
    buffers: dict[str, TensorType],
    body: Sequence[Instruction | tuple[str, Instruction]],
    local: dict[str, TensorType] | None = None,
    group: int = 1,
    calls: int = 1,
    hosts: Sequence[str] = (),
) -> Program:
    """One block over all buffers, called `calls` times, with a group `g`."""
    issues = tuple(Issue(*item) if isinstance(item, tuple) else Issue("main", item) for item in body)
    block = Block("b", tuple(buffers.items()), tuple((local or {}).items()), issues)
    spaces = {name: Space.HOST if name in hosts else Space.ACTIVATION for name in buffers}
    return Program(
        name="p",
        queues=("main", "other"),
        extents=EXTENTS,
        groups=(Group("g", group),),
        semaphores=("s",),
        buffers=tuple(Buffer(name, kind, spaces[name]) for name, kind in buffers.items()),
        blocks=(block,),
        calls=(Call("b", tuple(buffers)),) * calls,
    )


def image(
    rank: int,
    made: Program,
    arrays: dict[str, Array],
    ranks: tuple[int, ...],
    tokens: int = 1,
    **extents: tuple[int, ...],
) -> CardImage:
    """Locals one after the other in an arena of their own."""
    sizes = {"tokens": (tokens,), "sequences": (len(extents.get("q", ())),), **extents}
    offsets, at = {}, 0
    for name, kind in made.blocks[0].locals:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim][0] for dim in kind.shape)
        offsets["b", name] = at
        at += -(-elements(shape) * kind.dtype.itemsize_bytes // 64) * 64
    return CardImage(
        rank, made, arrays, np.zeros(at, np.uint8), offsets, {"g": ranks}, Binding(sizes, {"g": ranks.index(rank)})
    )


def numbers(seed: int, dtype: DType, *shape: int) -> Array:
    return encode(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.5, dtype)


def tensor(dtype: DType, *shape: int | str) -> TensorType:
    return TensorType(dtype, shape)


def decoder(d: DType) -> tuple[Program, dict[str, TensorType]]:
    """A decoder layer with two heads of 8, one key head, on one card."""
    buffers = {
        "ids.host": tensor(INT32, "tokens"),
        "ids": tensor(INT32, "tokens"),
        "table": tensor(d, 11, 16),
        "norm": tensor(d, 16),
        "wqkv": tensor(d, 32, 16),
        "cos": tensor(FP32, 64, 4),
        "sin": tensor(FP32, 64, 4),
        "positions": tensor(INT32, "tokens"),
        "slots": tensor(INT32, "tokens"),
        "cache": tensor(d, 8, 4, 16),
        "tables": tensor(INT32, "sequences", 6),
        "q_lens": tensor(INT32, "sequences"),
        "kv_lens": tensor(INT32, "sequences"),
        "wo": tensor(d, 16, 16),
        "wgu": tensor(d, 48, 16),
        "wd": tensor(d, 16, 24),
        "x": tensor(d, "tokens", 16),
        "out": tensor(d, "tokens", 16),
        "out.host": tensor(d, "tokens", 16),
    }
    local = {
        "h": tensor(d, "tokens", 16),
        "qkv": tensor(d, "tokens", 32),
        "att": tensor(d, "tokens", 16),
        "gu": tensor(d, "tokens", 48),
        "act": tensor(d, "tokens", 24),
    }
    r = ref
    body: list[Any] = [
        HOST_LOAD(r("ids"), r("ids.host")),
        EMBEDDING(r("x"), r("table"), r("ids"), 0),
        RMSNORM(r("h"), r("x"), r("norm"), 1e-5, False),
        MATMUL(r("qkv"), r("h"), r("wqkv"), None),
        ROPE(r("qkv:0:24"), r("cos"), r("sin"), r("positions"), 8, 8, False),
        SCATTER(r("cache"), r("qkv:16:16"), r("slots")),
        ATTENTION(
            r("att"), r("qkv:0:16"), r("cache"), r("tables"), r("q_lens"), r("kv_lens"), "q", "kv", 2, 1, 8, 8, 0.35, 0
        ),
        MATMUL(r("h"), r("att"), r("wo"), None),
        ADD_RMSNORM(r("att"), r("x"), r("h"), r("norm"), 1e-5, False),
        MATMUL(r("gu"), r("att"), r("wgu"), None),
        GATED(r("act"), r("gu"), "silu"),
        MATMUL(r("h"), r("act"), r("wd"), None),
        ADD(r("out"), r("x"), r("h")),
        HOST_STORE(r("out.host"), r("out")),
    ]
    return program(buffers, body, local, hosts=("ids.host", "out.host")), buffers


def decoder_arrays(d: DType, buffers: dict[str, TensorType], tokens: int, sequences: int) -> dict[str, Array]:
    sizes = {"tokens": tokens, "sequences": sequences}
    arrays = {}
    for seed, (name, kind) in enumerate(buffers.items()):
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in kind.shape)
        arrays[name] = numbers(seed, kind.dtype, *shape) if kind.dtype.is_float else np.zeros(shape, np.int32)
    return arrays


def fill(arrays: dict[str, Array], q_lens: Sequence[int], kv_lens: Sequence[int]) -> None:
    """Two sequences in pages 0 1 2 .. and 4 5 6 .., four tokens a page."""
    arrays["q_lens"][:], arrays["kv_lens"][:] = q_lens, kv_lens
    arrays["tables"][:] = np.arange(6)[None, :] % 4 + 4 * np.arange(len(q_lens))[:, None]
    positions = np.concatenate([np.arange(kv - q, kv) for q, kv in zip(q_lens, kv_lens, strict=True)])
    owner = np.repeat(np.arange(len(q_lens)), q_lens)
    arrays["positions"][:] = positions
    arrays["slots"][:] = positions + 16 * owner
    arrays["ids.host"][:] = (positions * 7 + owner) % 11


def close(got: Array, want: Array, dtype: DType) -> None:
    tolerance = 2e-5 if dtype is FP32 else 0.04
    np.testing.assert_allclose(decode(got, dtype), decode(want, dtype), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_one_card_computes_what_the_program_means(dtype: DType) -> None:
    made, buffers = decoder(dtype)
    check_program(made)
    arrays = decoder_arrays(dtype, buffers, tokens=7, sequences=2)
    fill(arrays, [4, 3], [4, 9])
    meant = {name: array.copy() for name, array in arrays.items()}
    card = image(0, made, arrays, (0,), tokens=7, q=(4, 3), kv=(4, 9))
    Payload(debug=True).run([card])
    run_program(made, meant, card.binding)
    close(arrays["out.host"], meant["out.host"], dtype)
    close(arrays["cache"], meant["cache"], dtype)


def test_a_step_of_equal_shape_binds_nothing_and_reads_its_own_lengths() -> None:
    made, buffers = decoder(FP32)
    arrays = decoder_arrays(FP32, buffers, tokens=2, sequences=2)
    meant = {name: array.copy() for name, array in arrays.items()}
    payload = Payload()
    card = image(0, made, arrays, (0,), tokens=2, q=(1, 1), kv=(1, 1))
    for step in range(1, 6):
        lengths = (step, min(step + 2, 16))
        card.binding = Binding({**card.binding.extents, "kv": lengths}, card.binding.group_index)
        fill(arrays, [1, 1], lengths)
        fill(meant, [1, 1], lengths)
        payload.run([card])
        run_program(made, meant, card.binding)
        close(arrays["out"], meant["out"], FP32)
    assert len(payload._bound) == 1


def test_bound_programs_are_forgotten_oldest_first() -> None:
    made = program({"x": tensor(FP32, "tokens", 4)}, [ADD(ref("x"), ref("x"), ref("x"))])
    payload = Payload(max_bound=2)
    for tokens in (1, 2, 3, 2, 4):
        array = np.ones((tokens, 4), np.float32)
        payload.run([image(0, made, {"x": array}, (0,), tokens=tokens)])
        assert (array == 2).all()
        assert len(payload._bound) <= 2


def mlp(d: DType, width: int, cards: int, reduce: bool = True) -> Program:
    buffers = {
        "x": tensor(d, "tokens", 20),
        "wgu": tensor(d, 2 * width, 20),
        "wd": tensor(d, 20, width),
        "y": tensor(d, "tokens", 20),
    }
    local = {"gu": tensor(d, "tokens", 2 * width), "act": tensor(d, "tokens", width)}
    body: list[Any] = [
        MATMUL(ref("gu"), ref("x"), ref("wgu"), None),
        GATED(ref("act"), ref("gu"), "silu"),
        MATMUL(ref("y"), ref("act"), ref("wd"), None),
    ]
    return program(buffers, [*body, ALL_REDUCE(ref("y"), "g")] if reduce else body, local, group=cards)


@pytest.mark.parametrize("cards", [2, 3])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_a_tensor_parallel_mlp_equals_the_unsharded_one(dtype: DType, cards: int) -> None:
    width, tokens = 13, 5  # 13 does not divide
    gate, up, down = numbers(1, dtype, width, 20), numbers(2, dtype, width, 20), numbers(3, dtype, 20, width)
    x = numbers(4, dtype, tokens, 20)
    whole = {"x": x, "wgu": np.concatenate([gate, up]), "wd": down, "y": np.zeros_like(x)}
    Payload().run([image(0, mlp(dtype, width, 1), whole, (0,), tokens)])
    shards = []
    for start, size in split_even(width, cards):
        cut = slice(start, start + size)
        parts = {"x": x.copy(), "wgu": np.concatenate([gate[cut], up[cut]]), "wd": down[:, cut].copy()}
        shards.append((size, parts | {"y": np.zeros_like(x)}))
    ranks = tuple(range(4, 4 + cards))
    images = [
        image(r, mlp(dtype, size, cards), parts, ranks, tokens) for r, (size, parts) in zip(ranks, shards, strict=True)
    ]
    Payload(debug=True).run(images)
    close(shards[0][1]["y"], whole["y"], dtype)
    for _, parts in shards[1:]:
        assert parts["y"].tobytes() == shards[0][1]["y"].tobytes()


def group_of(count: int, made: Program, arrays: Sequence[dict[str, Array]], tokens: int = 1) -> list[CardImage]:
    ranks = tuple(range(count))
    return [image(rank, made, arrays[rank], ranks, tokens) for rank in ranks]


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("cards", [1, 2, 3, 5])
def test_all_reduce_of_column_slices_sums_them_and_touches_nothing_else(dtype: DType, cards: int) -> None:
    made = program({"x": tensor(dtype, "tokens", 9)}, [ALL_REDUCE(ref("x:2:4"), "g")], group=cards)
    arrays = [{"x": encode(np.full((3, 9), 2.0**n, np.float32), dtype)} for n in range(cards)]
    Payload().run(group_of(cards, made, arrays, tokens=3))
    for n in range(cards):
        want = np.full((3, 9), 2.0**n)
        want[:, 2:6] = 2.0**cards - 1  # 1 + 2 + 4 + ...
        np.testing.assert_array_equal(decode(arrays[n]["x"], dtype), want)


@pytest.mark.parametrize("cards", [1, 2, 3])
def test_all_gather_puts_columns_and_rows_side_by_side(cards: int) -> None:
    for axis, sliced in (("columns", False), ("columns", True), ("rows", False), ("rows", True)):
        columns = axis == "columns"
        total = 7
        arrays, programs = [], []
        for start, size in split_even(total, cards):
            own = (3, size) if columns else (size, 3)
            whole = (3, total) if columns else (total, 3)
            buffer = (whole[0], whole[1] + 5) if sliced else whole
            target = ref(f"o:2:{whole[1]}") if sliced else ref("o")
            kinds = {"o": tensor(BF16, *buffer), "x": tensor(BF16, *own)}
            programs.append(program(kinds, [ALL_GATHER(target, ref("x"), "g", axis)], group=cards))
            values = np.arange(start, start + size, dtype=np.uint16)
            x = np.broadcast_to(values if columns else values[:, None], own).copy()
            arrays.append({"o": np.full(buffer, 99, np.uint16), "x": x})
        images = [image(n, programs[n], arrays[n], tuple(range(cards))) for n in range(cards)]
        Payload().run(images)
        for held in arrays:
            out = held["o"][:, 2 : held["o"].shape[1] - 3] if sliced else held["o"]
            line = np.arange(total)
            np.testing.assert_array_equal(out, np.broadcast_to(line if columns else line[:, None], out.shape))
            assert not sliced or (held["o"][:, :2] == 99).all() and (held["o"][:, -3:] == 99).all()


def test_reduce_scatter_leaves_every_member_its_rows_of_the_sum() -> None:
    arrays, images = [], []
    for n, (_, size) in enumerate(split_even(5, 3)):
        kinds = {"x": tensor(FP32, 5, 4), "o": tensor(FP32, size, 2)}
        made = program(kinds, [REDUCE_SCATTER(ref("o"), ref("x:1:2"), "g")], group=3)
        x = np.arange(20, dtype=np.float32).reshape(5, 4) * (n + 1)
        arrays.append({"x": x, "o": np.zeros((size, 2), np.float32)})
        images.append(image(n, made, arrays[n], (0, 1, 2)))
    Payload().run(images)
    want = np.arange(20, dtype=np.float32).reshape(5, 4)[:, 1:3] * 6  # 1 + 2 + 3
    np.testing.assert_array_equal(np.concatenate([held["o"] for held in arrays]), want)


@pytest.mark.parametrize("root", [0, 1, 2])
def test_broadcast_starts_from_its_root_and_a_barrier_moves_nothing(root: int) -> None:
    made = program({"x": tensor(FP32, 2, 3)}, [BARRIER("g"), BROADCAST(ref("x:1:2"), "g", root)], group=3)
    arrays = [{"x": np.full((2, 3), n, np.float32)} for n in range(3)]
    Payload().run(group_of(3, made, arrays))
    for n in range(3):
        np.testing.assert_array_equal(arrays[n]["x"], [[n, root, root]] * 2)


def test_a_pipeline_passes_activations_from_card_to_card_in_order() -> None:
    kinds = {"x": tensor(FP32, 1, 4), "y": tensor(FP32, 1, 4)}
    double = ADD(ref("x"), ref("x"), ref("x"))
    bodies: list[list[Any]] = [
        [SEND(ref("x"), "g", 1), double, SEND(ref("x"), "g", 1)],
        [RECV(ref("x"), "g", 0), RECV_REDUCE(ref("x"), "g", 0), SEND(ref("x:1:2"), "g", 2)],
        [RECV(ref("x:1:2"), "g", 1), RECV_REDUCE(ref("y:0:2"), "g", 3)],
        [SEND(ref("x:0:2"), "g", 2)],
    ]
    arrays = [{"x": np.full((1, 4), n + 1, np.float32), "y": np.full((1, 4), 50, np.float32)} for n in range(4)]
    cards = [image(n, program(kinds, bodies[n], group=4), arrays[n], (0, 1, 2, 3)) for n in range(4)]
    for order in (cards, cards[::-1]):
        for n in range(4):
            arrays[n]["x"][:], arrays[n]["y"][:] = n + 1, 50
        Payload().run(order)
        np.testing.assert_array_equal(arrays[2]["x"], [[3, 3, 3, 3]])  # 1 + 2 in the middle columns
        np.testing.assert_array_equal(arrays[2]["y"], [[54, 54, 50, 50]])


def test_cards_that_wait_for_one_another_are_named_with_what_they_wait_for() -> None:
    kinds = {"x": tensor(FP32, 1, 4)}
    bodies: list[list[Any]] = [
        [RECV(ref("x"), "g", 1), SEND(ref("x"), "g", 1)],
        [RECV(ref("x"), "g", 0), SEND(ref("x"), "g", 0)],
        [ALL_REDUCE(ref("x"), "g")],
        [],
    ]
    cards = [image(n, program(kinds, bodies[n], group=4), {"x": np.zeros((1, 4), np.float32)}, (0, 1, 2, 3))
             for n in range(4)]  # fmt: skip
    with pytest.raises(ProgramError) as error:
        Payload().run(cards)
    text = str(error.value)
    assert "no card can go on" in text
    assert "card 0, program p, call 0 of b: recv x=%x group=g peer=1 waits for card 1 (in call 0 of b: recv" in text
    assert "card 1, program p, call 0 of b: recv x=%x group=g peer=0 waits for card 0" in text
    assert "card 2, program p, call 0 of b: all_reduce x=%x group=g waits for card 0" in text
    assert "card 3 (ended)" in text


def refused(cards: Sequence[CardImage], **options: Any) -> str:
    with pytest.raises(ProgramError) as error:
        Payload(**options).run(cards)
    return str(error.value)


def test_members_that_disagree_on_a_collective_are_named() -> None:
    bodies: list[tuple[TensorType, Any]] = [
        (tensor(FP32, 2, 4), ALL_REDUCE(ref("x"), "g")),
        (tensor(FP32, 3, 4), ALL_REDUCE(ref("x"), "g")),
        (tensor(BF16, 2, 4), ALL_REDUCE(ref("x"), "g")),
        (tensor(FP32, 2, 4), BARRIER("g")),
        (tensor(FP32, 2, 4), BROADCAST(ref("x"), "g", 1)),
    ]
    for other in bodies[1:]:
        cards = []
        for n, (kind, instruction) in enumerate((bodies[0], other)):
            array = np.zeros(tuple(int(d) for d in kind.shape), kind.dtype.storage)
            cards.append(image(n, program({"x": kind}, [instruction], group=2), {"x": array}, (0, 1)))
        text = refused(cards)
        assert "members of one group do not agree" in text and "card 0" in text and "card 1" in text


def test_transfers_that_do_not_match_or_never_arrive_are_errors() -> None:
    def pair(*bodies: list[Any]) -> list[CardImage]:
        kinds = {"x": tensor(FP32, 1, 4)}
        made = [program(kinds, body, group=2) for body in bodies]
        return [image(n, made[n], {"x": np.zeros((1, 4), np.float32)}, (0, 1)) for n in range(2)]

    text = refused(pair([SEND(ref("x:0:2"), "g", 1)], [RECV(ref("x"), "g", 0)]))
    assert "takes fp32[1, 4] and card 0 sent fp32[1, 2]" in text
    assert "sent what card 1 never received" in refused(pair([SEND(ref("x"), "g", 1)], []))
    assert "is this card itself" in refused(pair([SEND(ref("x"), "g", 0)], []))
    assert "name ranks [1], which do not run with it" in refused(pair([BARRIER("g")], [])[:1])
    cards = pair([], [])
    cards[1].rank = 0
    assert "two cards have one rank" in refused(cards) or "is not this card" in refused(cards)


def test_halt_ends_its_queue_only_and_waits_do_nothing() -> None:
    double = ADD(ref("x"), ref("x"), ref("x"))
    body: list[Any] = [
        SIGNAL("s", 1),
        WAIT("s", 1),
        double,
        HALT(),
        double,
        ("other", double),
    ]
    x = np.ones((1, 2), np.float32)
    Payload().run([image(0, program({"x": tensor(FP32, 1, 2)}, body, calls=2), {"x": x}, (0,))])
    np.testing.assert_array_equal(x, [[8, 8]])  # once in main, then once a call in other


def test_every_call_is_reported_as_it_ends() -> None:
    made = program({"x": tensor(FP32, 1, 2)}, [ADD(ref("x"), ref("x"), ref("x")), ALL_REDUCE(ref("x"), "g")],
                   group=2, calls=3)  # fmt: skip
    arrays = [{"x": np.ones((1, 2), np.float32)} for _ in range(2)]
    seen: list[tuple[int, int, float]] = []
    Payload().run(
        group_of(2, made, arrays), lambda rank, call: seen.append((rank, call, float(arrays[rank]["x"][0, 0])))
    )
    assert sorted(seen) == [(rank, call, 4.0 ** (call + 1)) for rank in (0, 1) for call in (0, 1, 2)]


def test_debug_shows_unset_memory_and_the_instruction_that_first_wrote_nan() -> None:
    kinds = {"x": tensor(BF16, 2, 4), "o": tensor(BF16, 2, 4)}
    body: list[Any] = [ADD(ref("o"), ref("x"), ref("t")), ADD(ref("o"), ref("o"), ref("o"))]
    made = program(kinds, body, local={"t": tensor(BF16, 2, 4)})
    arrays = {name: np.zeros((2, 4), np.uint16) for name in kinds}
    Payload().run([image(0, made, arrays, (0,))])
    text = refused([image(0, made, arrays, (0,))], debug=True)
    assert "call 0 of b: add wrote nan at [0, 0] of %o, 8 of 8 elements are not finite (in: add dst=%o a=%x" in text
    body = [EMBEDDING(ref("o"), ref("x"), ref("i"), 0), COPY(ref("x"), ref("o"))]
    made = program(kinds, body, local={"i": tensor(INT32, 2), "f": tensor(FP32, 2)})
    Payload(debug=True).run([image(0, made, arrays, (0,))])
    assert (arrays["o"] == 0).all()  # unset ids lie in nobody's part of the vocabulary


def test_operands_that_do_not_fit_the_program_are_errors_that_name_the_call() -> None:
    made = program({"x": tensor(FP32, "tokens", 4)}, [ADD(ref("x"), ref("t"), ref("x"))],
                   local={"t": tensor(FP32, "tokens", 4)})  # fmt: skip
    good = image(0, made, {"x": np.zeros((2, 4), np.float32)}, (0,), tokens=2)

    def with_(**changes: Any) -> CardImage:
        return CardImage(**(vars(good) | changes))

    assert "%x is bound to float32[3, 4], must be float32[2, 4]" in refused(
        [with_(arrays={"x": np.zeros((3, 4), np.float32)})]
    )
    assert "call 0 of b: buffer x has no array" in refused([with_(arrays={})])
    assert "local t has no offset" in refused([with_(offsets={})])
    assert "local t lies at bytes 48 to 80 of an arena of 64" in refused([with_(offsets={("b", "t"): 48})])
    assert "aligned" in refused([with_(offsets={("b", "t"): 3})])
    assert "group 'g' is not bound" in refused([with_(groups={})])
    assert "group 'g' has 1 members, bound to ranks (0, 1)" in refused([with_(groups={"g": (0, 1)})])


def test_reruns_and_host_threads_change_no_bit() -> None:
    rng = np.random.default_rng(5)
    kinds = {"x": tensor(BF16, 40, 300), "w": tensor(BF16, 1200, 300), "y": tensor(BF16, 40, 1200)}
    kinds |= {"a": tensor(BF16, 2, 300), "v": tensor(BF16, 9000, 300), "z": tensor(BF16, 2, 9000)}
    kinds |= {"g": tensor(BF16, 600), "n": tensor(BF16, 40, 1200), "s": tensor(BF16, 40, 600)}
    body: list[Any] = [
        MATMUL(ref("y"), ref("x"), ref("w"), None),
        MATMUL(ref("z"), ref("a"), ref("v"), None),
        RMSNORM(ref("n"), ref("y"), ref("g"), 1e-5, False),
        GATED(ref("s"), ref("n"), "silu"),
    ]
    made = program(kinds, body)
    start = {}
    for name, kind in kinds.items():
        shape = tuple(int(d) for d in kind.shape)
        start[name] = encode(rng.standard_normal(shape).astype(np.float32), BF16)
    results = []
    try:
        for threads in (1, 2, 2, 3):
            set_host_threads(threads)
            arrays = {name: array.copy() for name, array in start.items()}
            Payload().run([image(0, made, arrays, (0,))])
            results.append(b"".join(arrays[name].tobytes() for name in "yzns"))
    finally:
        set_host_threads(2)
    assert len(set(results)) == 1
