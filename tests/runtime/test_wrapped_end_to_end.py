"""Text models inside wrappers: whole checkpoints of transformers' own multimodal classes, run as text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from wrapped_checkpoints import WRAPPED, as_the_hub_has_kimi, save_wrapped, wrapped_reference

from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.config import read_config
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job

PROMPTS = [[(7 * index + 3 * length) % 120 for index in range(length)] for length in (1, 40)]
TEXT_FAMILY = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "deepseek_v3",
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_wrapper_runs_as_its_text_model(tmp_path: Path, wrapper: str) -> None:
    path = save_wrapped(tmp_path, wrapper)
    expected = [wrapped_reference(path, wrapper, prompt, 6) for prompt in PROMPTS]
    options = {"dtype": "float32", "kv_dtype": "float32", "ignore_eos": True}
    asked = {"prompt_ids": tuple(map(tuple, PROMPTS)), "max_new_tokens": 6, "logits": True}
    result = run_job(Job(str(path), layout="tp=2,pp=2", **asked, **options))
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        allowed = 1e-4 * prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= allowed
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= allowed
        assert list(result.report.requests[index].tokens) == tokens
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.family == TEXT_FAMILY[wrapper]
    assert any("tensors of the checkpoint are not used" in warning for warning in checkpoint.warnings)
    report = align(Job(str(path), layout="tp=2", **{**options, "ignore_eos": False}))
    assert report.verdict == "aligned"


def test_kimi_k25_is_read_as_the_hub_spells_it(tmp_path: Path) -> None:
    path = save_wrapped(tmp_path, "kimi_k25")
    as_saved = open_checkpoint(path)
    as_the_hub_has_kimi(path)
    published = open_checkpoint(path)
    assert published.graph == as_saved.graph
    assert align(Job(str(path), dtype="float32", kv_dtype="float32")).verdict == "aligned"


def changed(path: Path, **changes: object) -> Path:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path


def test_what_a_wrapper_does_not_know_is_refused(tmp_path: Path) -> None:
    path = save_wrapped(tmp_path, "llama4")
    with pytest.raises(UnsupportedError, match="llama4 does not know twist=1 beside text_config"):
        read_config(changed(path, twist=1))
    raw = json.loads((path / "config.json").read_text())
    del raw["twist"]
    with pytest.raises(UnsupportedError, match="text_config.model_type='mamba' is not supported in llama4"):
        read_config(raw | {"text_config": raw["text_config"] | {"model_type": "mamba"}})


def test_a_cap_that_only_one_of_transformers_classes_heeds_is_refused(tmp_path: Path) -> None:
    raw = json.loads((save_wrapped(tmp_path, "gemma3") / "config.json").read_text())
    with pytest.raises(UnsupportedError, match="final_logit_softcapping=30.0 is not supported in text_config"):
        read_config(raw | {"text_config": raw["text_config"] | {"final_logit_softcapping": 30.0}})


def test_a_wrapper_and_its_text_must_tie_alike(tmp_path: Path) -> None:
    path = save_wrapped(tmp_path, "gemma3")
    with pytest.raises(ConfigError, match="tie_word_embeddings is False and in text_config True; keep one"):
        read_config(changed(path, tie_word_embeddings=False))


def test_packed_experts_inside_a_wrapper_are_read_as_the_hub_packs_kimi_k26(tmp_path: Path) -> None:
    """int4 in groups of 32 for routed experts alone, below language_model., the rules of packing in text_config."""
    from packed_checkpoints import compressed, library_weights, quantization_config
    from safetensors.torch import load_file, save_file

    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "n_group": 5, "topk_group": 3}
    path = save_wrapped(tmp_path, "kimi_k25", **sizes)
    as_the_hub_has_kimi(path)
    file = path / "model.safetensors"
    plain = {name.replace("model.blocks.", "model.layers."): tensor for name, tensor in load_file(file).items()}
    packed = {}
    for name, tensor in plain.items():
        routed = ".mlp.experts." in name and name.startswith("language_model.")
        state = compressed(tensor, "int4", tensor.dtype) if routed else {"weight": tensor}
        packed |= {f"{name.removesuffix('.weight')}.{key}": t for key, t in state.items()} if routed else {name: tensor}
    save_file(packed, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    ignored = [
        "language_model.lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|down)_proj.*",
    ]
    config["text_config"]["quantization_config"] = quantization_config("int4") | {"ignore": ignored}
    (path / "config.json").write_text(json.dumps(config))
    meant = tmp_path / "meant"
    meant.mkdir()
    save_file(plain | library_weights(path, "int4"), meant / "model.safetensors", metadata={"format": "pt"})
    del config["text_config"]["quantization_config"]
    (meant / "config.json").write_text(json.dumps(config))
    asked = {"prompt_ids": tuple(map(tuple, PROMPTS)), "max_new_tokens": 2, "logits": True, "ignore_eos": True}
    exact = {"dtype": "float32", "kv_dtype": "float32"}
    ours, theirs = (run_job(Job(str(one), layout="tp=2", **asked, **exact)).logits for one in (path, meant))
    assert ours is not None and theirs is not None
    for name, values in theirs.items():
        assert np.abs(ours[name] - values).max() <= 1e-4 * values.std()
