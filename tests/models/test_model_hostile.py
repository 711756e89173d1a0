"""Names, files and numbers that no honest checkpoint has end in an error that says which, and never in a wait."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.config import read_config
from siltwin.models.scale import LONGEST_TEST
from siltwin.models.tokenizer import tokenizer_of_directory

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": LONGEST_TEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16}
no_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


def write(directory: Path, **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**TINY, **changes}))
    return directory


@pytest.mark.parametrize(
    ("model", "message"),
    [("", "the model is an empty name"), ("x" * 5000, "no file, directory"), ("a\0b", "no file, directory")],
)
def test_a_name_that_no_file_can_have_is_no_model(model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        open_checkpoint(model)
    assert len(str(error.value)) < 800


def test_a_shard_whose_name_no_file_can_have_is_missing(tmp_path: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "x" * 5000 + ".safetensors"}}
    (write(tmp_path) / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"weight_map names x+\.\.\., which is not in"):
        open_checkpoint(tmp_path)


@no_pipes
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(tmp_path: Path, name: str) -> None:
    directory = write(tmp_path)
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    with pytest.raises(ConfigError, match=f"{name}: cannot be read .it is a pipe"):
        tokenizer_of_directory(directory) if name == "tokenizer.json" else open_checkpoint(
            directory if name == "model.safetensors" else directory / "config.json"
        )


@no_pipes
def test_a_gguf_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="m.gguf: cannot be read .it is a pipe"):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_directory_one_may_not_look_into_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", forbidden)
    with pytest.raises(ConfigError, match="secret: cannot be read .Permission denied"):
        open_checkpoint(tmp_path / "secret")


@pytest.mark.parametrize(
    "table",
    [
        {"rope_type": "default", "rope_theta": 1e308},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 1e308},
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1e308},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 1e-300},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4, "beta_fast": 1e308},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4, "attention_factor": 1e39},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4, "mscale": 1e300, "mscale_all_dim": 1e-300},
        {**LONGROPE, "short_factor": [1] * 4, "long_factor": [1e300] * 4},
        {**LONGROPE, "short_factor": [1e-320] * 4, "long_factor": [1] * 4},
    ],
)
def test_rope_numbers_that_turn_by_no_finite_angle_are_refused(table: dict[str, Any]) -> None:
    raw = {**TINY, "rope_parameters": table}
    del raw["rope_theta"]
    with pytest.raises(ConfigError, match="config: rope_parameters: "):
        read_config(raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": 1e308}, "rms_norm_eps is 1e.308; it must be a finite number above 0 and at most 1"),
        ({"head_dim": 2**30}, "heads of 1073741824 elements .head_dim. are beyond 65536"),
        ({"hidden_size": 2**30}, "heads of 536870912 elements .head_dim. are beyond 65536"),
    ],
)
def test_numbers_that_no_arithmetic_holds_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config({**TINY, **changes})


def test_an_endless_model_type_is_cut() -> None:
    with pytest.raises(UnsupportedError) as error:
        read_config({**TINY, "model_type": "x" * 100_000})
    assert "x" * 100 not in str(error.value) and len(str(error.value)) < 600
