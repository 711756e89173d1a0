"""A card file that extends a shipped one states what differs; the rest is taken over, and only assumed."""

from pathlib import Path

import pytest

from siltwin.emulator.card_check import check_card
from siltwin.emulator.spec import load_card
from siltwin.isa.errors import ConfigError

FASTER = """
extends: h100-sxm
name: faster
description: an H100 with more bandwidth
hbm:
  bandwidth_bytes_per_s: {value: 5TB/s, evidence: measured, source: on my bench}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_the_example_of_the_page_about_cards_is_a_card(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cards.md").read_text()
    card = load_card(written(tmp_path, page.partition("```yaml\n")[2].partition("```")[0]))
    assert (card.name, card.hbm.bandwidth_bytes_per_s, check_card(card)) == ("my-card", 5 * 10**12, ())


def test_what_a_file_states_replaces_its_base_and_the_rest_is_assumed_alike(tmp_path: Path) -> None:
    card, base = load_card(written(tmp_path, FASTER)), load_card("h100-sxm")
    assert card.hbm.bandwidth_bytes_per_s == 5 * 10**12
    assert card.evidence_of("hbm.bandwidth_bytes_per_s").evidence == "measured"
    assert card.hbm.latency_ps == base.hbm.latency_ps and card.cores == base.cores and card.queues == base.queues
    assert base.evidence_of("cores.count").evidence == "datasheet"
    assert card.evidence_of("cores.count").evidence == "assumed", "another card's data sheet is not its own"
    assert card.evidence_of("cores.count").source == "as h100-sxm: NVIDIA H100 SXM5 data sheet: SMs"
    assert card.aliases == ()


@pytest.mark.parametrize(
    "before, after, says",
    [
        ("extends: h100-sxm", "extends: h100", "is no shipped card; choose from a100-sxm"),
        ("extends: h100-sxm", "extends: [h100-sxm]", "is no shipped card"),
        ("name: faster", "", "name: this field is missing"),
        ("hbm:", "ram:", "ram: there is no such field"),
        ("value: 5TB/s", "value: 5THz", "is not a number of bytes a second"),
    ],
)
def test_a_careless_extension_is_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    with pytest.raises(ConfigError, match="mine.yaml") as caught:
        load_card(written(tmp_path, FASTER.replace(before, after)))
    assert says in str(caught.value)
