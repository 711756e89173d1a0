"""What is learned over a physics fit: it helps, keeps the laws of time, and counts on the measured card alone."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from siltwin.emulator.calibrated import Calibration, Errors, KindCalibration
from siltwin.emulator.calibration_file import document_of, with_learned
from siltwin.emulator.evidence import Evidence
from siltwin.emulator.grid import Grid
from siltwin.emulator.spec import CardSpec, load_card, override
from siltwin.emulator.trees import PHYSICS, Trees
from siltwin.emulator.units.demand import demand
from siltwin.emulator.units.rates import capacities, ps_for
from siltwin.isa.dtype import BF16, FP16
from siltwin.isa.errors import ConfigError
from siltwin.isa.work import AttentionShape, MatmulShape, Unit, Work
from siltwin.runtime.calibration.learn import learn
from siltwin.runtime.calibration.learn_grid import Free, _never_falling, fill
from siltwin.runtime.calibration.learn_trees import grow
from siltwin.runtime.calibration.lessons import Lessons
from siltwin.runtime.calibration.parameters import with_fields
from siltwin.runtime.calibration.tables import read_measured

lightgbm = pytest.importorskip("lightgbm")
LADDER = (1, 16, 64, 100, 256, 700, 2048, 4096)
CARD = load_card("h100")


def matmul(m: int, n: int, k: int) -> Work:
    reads, writes = BF16.bytes_of(m * k + n * k), BF16.bytes_of(m * n)
    return Work(Unit.TENSOR, 2 * m * n * k, reads, writes, BF16, MatmulShape(m, n, k))


def physics_ps(work: Work, card: CardSpec = CARD) -> int:
    asked = demand(work, card)
    return asked.fixed_ps + asked.alone_ps


def noisy() -> Lessons:
    """Products whose measured times are the card's times any number from 0.5 to 2: lessons that mislead."""
    shapes = list(itertools.product(LADDER, LADDER, LADDER))
    physics = np.array([physics_ps(matmul(*shape)) for shape in shapes], float)
    factor = np.exp2(np.random.default_rng(5).uniform(-1, 1, len(shapes)))
    inputs = np.column_stack([np.array(shapes, float), physics])
    ones = np.ones(len(shapes))
    return Lessons(("m", "n", "k", PHYSICS), inputs, physics * factor, 0 * ones, ones, ones, "bf16")


def learned_card(trees: Trees | Grid, kind: str = "matmul") -> CardSpec:
    errors = Errors(rows=1, mean=0.1, median=0.1, p90=0.1)
    told = KindCalibration(
        fit="full", library="", rows=1, errors=errors, usual=errors, ranges={}, learned=trees.digest, correction=trees
    )
    calibration = Calibration(seed=0, sources={}, kinds={kind: told}, beside="c.json")
    marks = {**CARD.evidence, "calibration": Evidence(evidence="calibrated", source="a test")}
    return with_fields(CARD, calibration=calibration, evidence=marks)


@pytest.fixture(scope="module")
def trees() -> Trees:
    return grow(noisy(), 0.8, seed=0)


@pytest.fixture(scope="module")
def grid() -> Grid:
    found = fill(CARD, noisy(), seed=0)
    assert found is not None
    return found


def test_the_plain_arrays_answer_as_lightgbm_does(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    train = lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *args, **named: models.append(train(*args, **named)) or models[0])
    lessons = noisy()
    again = grow(lessons, 0.8, seed=0)
    logs = np.log(lessons.inputs + 1)
    expected = again.start + 0.8 * logs[:, -1] + models[0].predict(logs) - logs[:, -1]
    assert np.log(again.ratios(lessons.inputs)) == pytest.approx(np.clip(expected, np.log(0.7), np.log(1.4)), abs=1e-9)
    assert again.digest == trees.digest


def test_no_time_falls_as_m_n_or_k_grows_whatever_was_learned(trees: Trees) -> None:
    card = learned_card(trees)
    ladder = (1, 8, 64, 65, 128, 500, 2048, 3000, 4096, 8192)  # beyond what was learned, too
    times = np.array([[[physics_ps(matmul(m, n, k), card) for k in ladder] for n in ladder] for m in ladder])
    plain = np.array([[[physics_ps(matmul(m, n, k)) for k in ladder] for n in ladder] for m in ladder])
    for axis in range(3):
        grows = np.diff(plain, axis=axis) >= 0  # where the physics keeps the law, what was learned does
        assert (np.diff(times, axis=axis)[grows] >= 0).all()
    assert (times != plain).mean() > 0.5
    assert times.min() > 0 and (0.699 < times / plain).all() and (times / plain < 1.401).all()


def test_no_time_falls_within_a_grid_however_badly_it_was_taught(grid: Grid) -> None:
    card, ladder = learned_card(grid), (1, 8, 16, 40, 64, 65, 100, 128, 500, 2048, 3000, 4096)
    times = np.array([[[physics_ps(matmul(m, n, k), card) for k in ladder] for n in ladder] for m in ladder])
    plain = np.array([[[physics_ps(matmul(m, n, k)) for k in ladder] for n in ladder] for m in ladder])
    for axis in range(3):
        grows = np.diff(plain, axis=axis) >= 0
        assert (np.diff(times, axis=axis)[grows] >= 0).all()
    assert (times != plain).mean() > 0.5 and (0.699 < times / plain).all() and (times / plain < 1.401).all()
    assert not grid.falls() and grid.log_ps.shape == (8, 8, 8)


def test_weights_that_no_cache_holds_are_known_for_pairs_of_n_and_k_that_were_not_measured() -> None:
    lessons = noisy()
    _, n, k, physics = lessons.inputs.T
    taught = lessons._replace(own_ps=physics * np.where(n * k > 100_000, 1.3, 1.0))
    unseen = (np.searchsorted(LADDER, n) + np.searchsorted(LADDER, k)) % 2 == 0
    left = taught.take(unseen)
    assert left.errors(left.inputs[:, -1]).mean() > 0.07
    assert left.errors(Free(CARD, taught.take(~unseen), 0).own_ps(left.inputs)).mean() < 0.01  # by n and k apart: 0.017


def test_times_that_fall_are_moved_as_little_as_may_be() -> None:
    table = np.broadcast_to([5.0, 1.0, 1.0], (2, 2, 3)).copy()
    assert _never_falling(table) == pytest.approx(np.full((2, 2, 3), 7 / 3))
    rising = np.arange(12.0).reshape(2, 2, 3)
    assert (_never_falling(rising) == rising).all()


def test_a_grid_whose_times_fall_is_refused(grid: Grid) -> None:
    assert Grid.of_document(grid.document(), "here").digest == grid.digest
    backwards = grid._replace(log_ps=grid.log_ps[::-1])
    with pytest.raises(ConfigError, match="here: its grid is damaged"):
        Grid.of_document(backwards.document(), "here")


def test_a_corrected_time_is_long_enough_for_what_it_moves(trees: Trees) -> None:
    card = learned_card(trees)
    for shape in itertools.product(LADDER, LADDER, (64, 4096)):
        asked = demand(matmul(*shape), card)
        assert asked.amounts == demand(matmul(*shape), CARD).amounts and asked.fixed_ps >= 0
        assert all(ps_for(amount, capacities(card)[kind]) <= asked.alone_ps for kind, amount in asked.amounts)


def test_what_was_learned_is_off_on_a_card_that_was_changed(trees: Trees) -> None:
    card, change = learned_card(trees), {"hbm.bandwidth_bytes_per_s": "3.35TB/s"}
    changed = override(card, change)
    assert changed.calibration is not None and changed.calibration.kinds["matmul"].is_off
    assert not card.calibration.kinds["matmul"].is_off  # type: ignore[union-attr]
    assert physics_ps(matmul(256, 256, 256), changed) == physics_ps(matmul(256, 256, 256), override(CARD, change))


def test_what_a_calibration_found_cannot_be_set(trees: Trees) -> None:
    for key in ("calibration.seed", "calibration.kinds.matmul.rows"):
        with pytest.raises(ConfigError, match=f"no number or setting '{key}'"):
            override(learned_card(trees), {key: "3"})


def test_other_types_and_other_instructions_are_not_corrected(trees: Trees) -> None:
    work = matmul(256, 2048, 2048)
    fp16 = replace(work, dtype=FP16)
    assert demand(fp16, learned_card(trees)) == demand(fp16, CARD)


def test_trees_read_back_from_beside_their_card_and_no_others_do(trees: Trees, tmp_path: Path) -> None:
    calibration = learned_card(trees).calibration
    assert calibration is not None
    bare = Calibration.model_validate(calibration.model_dump())
    assert bare.kinds["matmul"].correction is None
    (tmp_path / "c.json").write_bytes(document_of(np.array([3], np.uint64), {"matmul": trees}))
    read = with_learned(bare, tmp_path / "card.yaml").kinds["matmul"].correction
    assert isinstance(read, Trees) and read.digest == trees.digest
    other = trees._replace(value=trees.value * 1.01)
    (tmp_path / "c.json").write_bytes(document_of(np.array([3], np.uint64), {"matmul": other}))
    with pytest.raises(ConfigError, match="was not made with"):
        with_learned(bare, tmp_path / "card.yaml")
    for damaged in ("null", '{"matmul": 3}', '{"matmul": {"form": "grid", "rows": null}}'):
        (tmp_path / "c.json").write_text(f'{{"rows": [], "learned": {damaged}}}')
        with pytest.raises(ConfigError, match="was not made with"):
            with_learned(bare, tmp_path / "card.yaml")


def test_trees_whose_walks_never_end_or_that_are_no_lists_are_refused(trees: Trees) -> None:
    loop = trees._replace(left=np.where(trees.column >= 0, 0, trees.left))
    for document in (loop.document(), {**trees.document(), "low": None}):
        with pytest.raises(ConfigError, match="trees are damaged"):
            Trees.of_document(document, "c.json")


def test_learning_halves_an_error_that_depends_on_sizes_and_needs_three_hundred_rows(tmp_path: Path) -> None:
    shapes = list(itertools.product(LADDER, LADDER, LADDER))
    slow = [1.25 if m >= 64 else 0.9 for m, _, _ in shapes]
    lines = [
        f"bf16,{m},{n},{k},{physics_ps(matmul(m, n, k)) * s / 1e9}" for (m, n, k), s in zip(shapes, slow, strict=True)
    ]
    (tmp_path / "gemm.csv").write_text("gemm_dtype,m,n,k,latency_ms\n" + "\n".join(lines))
    (table,) = read_measured(tmp_path)
    found = learn(CARD, "matmul", [table], seed=0)
    assert found is not None
    card = learned_card(found)
    errors = [
        abs(physics_ps(matmul(*shape), card) / ps - 1) for shape, ps in zip(shapes, table.latency_ps, strict=True)
    ]
    assert np.mean(errors) < 0.08  # without: 0.2 and 0.11
    assert learn(CARD, "matmul", [table.take(np.arange(299))], seed=0) is None


def decode_works(lengths: tuple[int, ...]) -> Work:
    shape = AttentionShape((1,) * len(lengths), lengths, 32, 8, 128, 128)
    reads = BF16.bytes_of(len(lengths) * 32 * 128) + BF16.bytes_of(sum(lengths) * 8 * 256)
    return Work(Unit.TENSOR, 4 * sum(lengths) * 32 * 128, reads, BF16.bytes_of(len(lengths) * 4096), BF16, shape)


def test_no_time_of_attention_falls_as_sequences_or_lengths_grow_whatever_was_learned() -> None:
    batches, lengths = (1, 3, 8, 20, 64), (100, 512, 1000, 4096, 9000, 30000)
    rows = [(length, batch * 8, physics_ps(decode_works((length,) * batch))) for batch in batches for length in lengths]
    inputs, ones = np.array(rows * 12, float), np.ones(len(rows) * 12)
    factor = np.exp2(np.random.default_rng(7).uniform(-1, 1, len(ones)))
    names = ("longest", "items", PHYSICS)
    trees = grow(Lessons(names, inputs, inputs[:, -1] * factor, 0 * ones, ones, ones, "bf16"), 0.8, 0)
    card = learned_card(trees, "decode")
    times = np.array([[physics_ps(decode_works((n,) * b), card) for n in (*lengths, 50000)] for b in (*batches, 100)])
    plain = np.array([[physics_ps(decode_works((n,) * b)) for n in (*lengths, 50000)] for b in (*batches, 100)])
    assert (np.diff(times, axis=0) >= 0).all() and (np.diff(times, axis=1) >= 0).all() and (times != plain).any()
    uneven = [physics_ps(decode_works((100, last)), card) for last in (100, 400, 5000, 20000)]
    assert uneven == sorted(uneven)
