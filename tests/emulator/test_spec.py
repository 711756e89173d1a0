"""Cards as data: every number with its evidence, changed key by key, and no careless file let through."""

from pathlib import Path

import pytest
import yaml

from siltwin.emulator.evidence import parse_number
from siltwin.emulator.spec import CARDS, CardSpec, card_names, load_card, override, weakest_evidence
from siltwin.interconnect.evidence import STRENGTH
from siltwin.isa.dtype import BF16, DTYPES
from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.isa.work import Unit

CARD = load_card("reference-npu")


def reference_tree() -> dict[str, object]:
    return yaml.safe_load((CARDS / "reference-npu.yaml").read_text())


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def changed(tmp_path: Path, **sections: object) -> Path:
    return written(tmp_path, yaml.safe_dump({**reference_tree(), **sections}))


@pytest.mark.parametrize("name", card_names())
def test_every_shipped_card_loads_by_its_file_name(name: str) -> None:
    card = load_card(name)
    assert card.name == name
    assert all(card.queue_for(unit) for unit in Unit)
    for alias in card.aliases:
        assert load_card(alias) is card


# 2 x 108 x 1,024 x 1.41 GHz and so on: the vendors' dense bf16 figures (the 910C's is half of its package's 752).
@pytest.mark.parametrize(
    "name, tera_ops, gib, giga_bytes",
    [
        ("a100-sxm", 312, 80, 2039),
        ("h100-sxm", 989, 80, 3350),
        ("h200-sxm", 989, 143771 / 1024, 4800),
        ("b200-sxm", 2250, 183359 / 1024, 8000),
        ("mi300x", 1307.4, 192, 5300),
        ("mi210", 181, 64, 1600),
        ("gaudi-3", 1677.7, 128, 3700),
        ("tpu-v5p", 458.8, 95, 2800),
        ("tpu-v6e", 917.5, 32, 1600),
        ("ascend-910b2", 353.9, 64, 1600),
        ("ascend-910c", 376, 64, 1600),
        ("ascend-950pr", 432.5, 128, 1600),
        ("ascend-950dt", 432.5, 96, 4000),
    ],
)
def test_a_shipped_card_holds_its_data_sheet(name: str, tera_ops: float, gib: int, giga_bytes: int) -> None:
    card = load_card(name)
    assert card.peak_ops_per_s(BF16) == pytest.approx(tera_ops * 1e12, rel=0.001)
    assert card.hbm.capacity_bytes == gib * 2**30
    assert card.hbm.bandwidth_bytes_per_s == giga_bytes * 10**9
    assert card.evidence_of("hbm.bandwidth_bytes_per_s").evidence == "datasheet"


def test_the_950dt_has_the_950prs_cubes_and_the_table_counts_its_vector_lanes_too() -> None:
    pr, dt = load_card("950pr"), load_card("950dt")
    assert dt.tensor.rate == pr.tensor.rate and dt.cores == pr.cores
    lanes = 2 * dt.cores.count * dt.vector.lanes_of(2) * dt.clock_hz
    assert dt.peak_ops_per_s(BF16) + lanes == pytest.approx(486e12, rel=0.002)  # the table's bf16 TFLOPS
    assert dt.peak_ops_per_s(DTYPES["fp8_e4m3"]) + lanes == pytest.approx(919e12, rel=0.002)


def test_the_910c_is_one_die_of_a_package_of_two() -> None:
    assert load_card("910c").package.dies == 2
    assert load_card("910c").cores.count == 24


def test_a_card_says_which_queue_performs_a_unit() -> None:
    assert [CARD.queue_for(unit) for unit in (Unit.TENSOR, Unit.DMA, Unit.CONTROL)] == ["tensor", "dma0", "vector"]
    a100 = load_card("a100")
    assert {a100.queue_for(unit) for unit in (Unit.TENSOR, Unit.VECTOR, Unit.DMA)} == {"stream0"}
    assert a100.queue_for(Unit.LINK) == "comm"


def test_the_template_explains_every_line_that_holds_a_number() -> None:
    text = (CARDS / "reference-npu.yaml").read_text().split("\n")
    bare = [
        line
        for before, line in zip(text, text[1:], strict=False)
        if "value:" in line and "#" not in line and "#" not in before
    ]
    assert not bare


def test_a_number_is_a_plain_number_and_its_evidence_stands_beside_it() -> None:
    assert CARD.hbm.bandwidth_bytes_per_s == 2_000_000_000_000
    assert type(CARD.hbm.bandwidth_bytes_per_s) is int
    assert CARD.evidence_of("hbm.bandwidth_bytes_per_s").source == "a round number"
    assert CARD.evidence_of("tensor.rate.int8").source == "speed by element width"
    with pytest.raises(ConfigError, match="hbm.bandwidth_bytes_per_s"):
        CARD.evidence_of("hbm.bandwith")
    for path in ("hbm", "hbm.bandwidth_bytes_per_s.x", "name", ""):
        with pytest.raises(ConfigError):
            CARD.evidence_of(path)


def test_the_weakest_evidence_speaks_for_a_figure() -> None:
    h100 = load_card("h100")
    assert weakest_evidence(h100, ["cores.count", "hbm.bandwidth_bytes_per_s"]) == "datasheet"
    assert weakest_evidence(h100, ["cores.count", "hbm.attainable_fraction"]) == "assumed"
    assert weakest_evidence(h100, []) == STRENGTH[0]


def test_equal_cards_are_equal_and_share_a_fingerprint(tmp_path: Path) -> None:
    copy = load_card(written(tmp_path, (CARDS / "reference-npu.yaml").read_text()))
    assert copy == CARD and hash(copy) == hash(CARD) and copy.fingerprint == CARD.fingerprint
    assert override(CARD, {"cores.count": "32"}) != CARD, "the evidence differs"


# override


@pytest.mark.parametrize(
    "key, text, expected",
    [
        ("hbm.bandwidth_bytes_per_s", "3.2e12", 3_200_000_000_000),
        ("hbm.bandwidth_bytes_per_s", "2.039TB/s", 2_039_000_000_000),
        ("hbm.capacity_bytes", "96GiB", 96 * 2**30),
        ("hbm.latency_ps", "0.7us", 700_000),
        ("clock_hz", "1.8GHz", 1_800_000_000),
        ("throttle_hz", "1.1GHz, 0.8GHz", (1_100_000_000, 800_000_000)),
        ("cores.count", "1_024", 1024),
        ("sram.0.capacity_bytes", "1 MiB", 2**20),
        ("tensor.rate.fp8_e5m2", "2", 2),
        ("vector.dtypes", "fp32,bf16", ("fp32", "bf16")),
        ("link.reduces_on", "dma", "dma"),
    ],
)
def test_any_field_can_be_set_in_its_own_unit(key: str, text: str, expected: object) -> None:
    card = override(CARD, {key: text})
    found: object = card
    for part in key.split("."):
        if isinstance(found, dict):
            found = found[part]
        else:
            found = found[int(part)] if isinstance(found, tuple) else getattr(found, part)
    assert found == expected
    assert card.evidence_of(key).model_dump() == {"evidence": "assumed", "source": "set by the user", "error": None}


def test_setting_one_number_leaves_the_evidence_of_its_neighbours() -> None:
    card = override(load_card("h100"), {"tensor.rate.int8": "4"})
    assert card.evidence_of("tensor.rate.int8").evidence == "assumed"
    assert card.evidence_of("tensor.rate.bf16").evidence == "datasheet"


def test_a_changed_clock_moves_the_peak_and_is_not_held_against_the_vendors_figure() -> None:
    card = override(CARD, {"clock_hz": "3GHz"})
    assert card.peak_ops_per_s(BF16) == 2 * CARD.peak_ops_per_s(BF16)


@pytest.mark.parametrize(
    "key, text, says",
    [
        ("hbm.bandwith", "1", "hbm.bandwidth_bytes_per_s"),
        ("hbm", "3", "hbm.capacity_bytes"),
        ("colour", "red", "clock_hz"),
        ("queues", "one", "queues.0.name"),
        ("evidence", "x", "near it"),
        ("hbm.capacity_bytes.x", "1", "near it"),
        ("hbm.capacity_bytes", "-1", "hbm.capacity_bytes"),
        ("hbm.capacity_bytes", "nan", "'nan'"),
        ("hbm.capacity_bytes", "64GB/s", "GiB"),
        ("hbm.capacity_bytes", "0.5", "integer"),
        ("power.energy_j_per_op.bf16", "1", "power.energy_j_per_op.bf16"),
        ("hbm.capacity_bytes", "1e400", "finite"),
        ("hbm.reserved_bytes", "65GiB", "exceeds capacity_bytes"),
        ("hbm.attainable_fraction", "1.01", "less than or equal to 1"),
        ("clock_hz", "0", "greater than 0"),
        ("vector.lanes.3", "8", "1, 2, 4 or 8"),
        ("tensor.rate.bf99", "1", "known: fp32"),
        ("tensor.rate.bf16", "0.3", "whole number"),
        ("queues.0.units", "vector", "tensor"),
        ("", "1", "near it"),
    ],
)
def test_a_wrong_setting_says_what_is_legal(key: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(CARD, {key: text})
    assert says in str(caught.value)


# hostile files


def test_an_unknown_name_lists_the_cards() -> None:
    with pytest.raises(ConfigError, match=r"did you mean h100-sxm\?.*ascend-910b2"):
        load_card("h100-sxn")


def test_a_file_that_no_system_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="a.b.yaml: is not plain YAML: embedded null"):
        load_card("a\0b.yaml")


def test_more_copy_engines_than_a_calendar_holds_are_refused() -> None:
    assert override(load_card("ascend-910b2"), {"dma.engines": "256"}).dma.engines == 256
    with pytest.raises(ConfigError, match="dma.engines: Input should be less than or equal to 256"):
        override(load_card("ascend-910b2"), {"dma.engines": "257"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.yaml"):
        load_card(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="directory"):
        (tmp_path / "folder.yaml").mkdir()
        load_card(tmp_path / "folder.yaml")


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "must be a mapping"),
        ("- 1\n- 2\n", "must be a mapping of fields, not list"),
        ("just text", "not str"),
        ("name: [", "not plain YAML"),
        ("name: !!python/object/apply:os.system ['true']", "python/object"),
        ("name: a\nname: b\n", "key 'name' stands twice"),
        ("a: &a [1]\nb: *a\n", "aliases"),
        ("{[1]: 2}", "not plain YAML"),
        ("name: x", "missing"),
        ("name: \x00", "not plain YAML"),
        ("[" * 5000, "nested too deeply"),
        ("evidence: {}", "beside each number"),
    ],
)
def test_what_is_not_a_card_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match="mine.yaml") as caught:
        load_card(written(tmp_path, text))
    assert says in str(caught.value)


def test_bytes_that_are_not_text_and_floods_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="mine.yaml"):
        load_card(path)
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="a spec may have"):
        load_card(path)


@pytest.mark.parametrize(
    "sections, says",
    [
        ({"colour": "red"}, "colour: there is no such field"),
        ({"clock_hz": 1.5e9}, "clock_hz has no evidence"),
        ({"clock_hz": {"value": "fast", "evidence": "assumed", "source": "x"}}, "clock_hz: 'fast' is not a number"),
        ({"clock_hz": {"value": -1, "evidence": "assumed", "source": "x"}}, "clock_hz: "),
        ({"clock_hz": {"value": float("nan"), "evidence": "assumed", "source": "x"}}, "finite"),
        ({"clock_hz": {"value": float("inf"), "evidence": "assumed", "source": "x"}}, "finite"),
        ({"clock_hz": {"value": True, "evidence": "assumed", "source": "x"}}, "not a number"),
        ({"clock_hz": {"value": 10**30, "evidence": "assumed", "source": "x"}}, "less than or equal"),
        ({"clock_hz": {"value": 1.5e9, "evidence": "guessed", "source": "x"}}, "evidence.clock_hz.evidence"),
        ({"clock_hz": {"value": 1.5e9, "evidence": "assumed"}}, "evidence.clock_hz.source: this field is missing"),
        ({"clock_hz": {"value": 1.5e9, "evidence": "assumed", "source": ""}}, "source"),
        ({"clock_hz": {"value": 1.5e9, "evidence": "assumed", "source": "x", "why": "y"}}, "why: there is no such"),
        ({"clock_hz": {"value": 2.0e9, "evidence": "assumed", "source": "x"}}, "stated_peak_ops_per_s.bf16"),
        ({"hbm": None}, "hbm: "),
        ({"hbm": {}}, "hbm.capacity_bytes: this field is missing"),
        ({"cores": [1, 2]}, "cores: "),
        ({"queues": []}, "no queue may use the unit tensor"),
        ({"queues": [{"name": "a", "kind": "unit", "units": ["cube"]}]}, "queues.0.units.0"),
        ({"sram": []}, "no level has the role operand"),
        ({"name": "Bad Name"}, "name: "),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, sections: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match="mine.yaml") as caught:
        load_card(changed(tmp_path, **sections))
    assert says in str(caught.value)


def test_every_section_of_the_template_may_be_missing_only_with_an_error(tmp_path: Path) -> None:
    for section in reference_tree().keys() - {"aliases", "native", "throttle_hz", "l2", "power", "tuning"}:
        tree = reference_tree()
        del tree[section]
        with pytest.raises(ConfigError, match=f"{section}: this field is missing"):
            load_card(written(tmp_path, yaml.safe_dump(tree)))


def test_two_queues_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="not all different"):
        override(CARD, {"queues.4.name": "dma1"})


def test_a_dtype_the_tensor_unit_lacks_has_no_peak() -> None:
    with pytest.raises(UnsupportedError, match="no tensor unit for fp8_e4m3; native: bf16"):
        load_card("a100").peak_ops_per_s(DTYPES["fp8_e4m3"])


@pytest.mark.parametrize("bad", ["", " ", "1,5", "0x10", "1e", "--1", "1 2", "GiB", "∞", None, [], "1" * 5000])
def test_text_that_is_not_a_number_is_refused(bad: object) -> None:
    with pytest.raises(ValueError):
        parse_number(bad, "bytes")


def test_numbers_with_units_are_exact() -> None:
    assert parse_number("2.039TB/s", "bytes a second") == 2_039_000_000_000
    assert parse_number("1.41GHz", "hertz") == 1_410_000_000
    assert parse_number(".5us", "picoseconds") == 500_000


def test_a_card_survives_a_round_trip_through_plain_data() -> None:
    assert CardSpec.model_validate(CARD.model_dump(mode="json")) == CARD
