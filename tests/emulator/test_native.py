"""Native instructions: what a card's list means, who may write what into it, and what it rests on."""

from pathlib import Path

import pytest

from siltwin.emulator.native import native_instructions
from siltwin.emulator.spec import CARDS, card_names, load_card, override
from siltwin.isa.errors import ConfigError
from siltwin.isa.registry import INSTRUCTIONS
from siltwin.runtime.prepare import cluster_of
from siltwin.runtime.rests_on import evidence_reports, settings_without_effect


@pytest.mark.parametrize(
    ("entries", "lacks"),
    [
        (("all",), set()),
        (("all", "-attention", "-rope"), {"attention", "rope"}),
        (("-gated",), {"gated"}),
        (("-send", "-wait"), {"send", "wait"}),
    ],
)
def test_all_but_some_is_said_with_a_minus(entries: tuple[str, ...], lacks: set[str]) -> None:
    assert set(INSTRUCTIONS) - native_instructions(entries) == lacks


def test_a_list_names_what_computes_and_what_moves_bytes_is_always_there() -> None:
    found = native_instructions(("matmul", "rmsnorm", "-permute"))
    assert {"matmul", "rmsnorm", "scatter", "all_reduce", "wait", "host_load", "embedding"} <= found
    assert not {"attention", "add", "permute", "gated"} & found


def test_every_shipped_card_says_what_its_instructions_rest_on() -> None:
    for name in card_names():
        card = load_card(name)
        assert card.instructions == frozenset(INSTRUCTIONS)
        assert card.evidence_of("native").evidence == "assumed"


def test_the_list_is_set_like_any_other_and_changes_what_figures_rest_on() -> None:
    card = override(load_card("h100-sxm"), {"native": "all, -attention"})
    assert card.native == ("all", "-attention")
    assert "attention" not in card.instructions and "matmul" in card.instructions
    assert settings_without_effect(card, 1, False) == ()
    time, memory = evidence_reports(card, cluster_of(card, 1, None), 1, False)
    assert time.set_by_user == memory.set_by_user == ("native",)


@pytest.mark.parametrize(("text", "says"), [("all,-atention", "near it: attention"), ("xyzzy", "known: matmul")])
def test_what_is_no_instruction_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"native.*is neither 'all' nor an instruction.*{says}"):
        override(load_card("h100-sxm"), {"native": text})


def test_a_card_file_without_the_list_has_all_and_one_with_it_says_why(tmp_path: Path) -> None:
    text = (CARDS / "reference-npu.yaml").read_text()
    start, stop = text.index("native:"), text.index("clock_hz:")
    path = tmp_path / "card.yaml"
    path.write_text(text[:start] + text[stop:])
    assert load_card(path).instructions == frozenset(INSTRUCTIONS)
    path.write_text(text[:start] + "native: [all, -rope]\n" + text[stop:])
    with pytest.raises(ConfigError, match="native has no evidence"):
        load_card(path)
