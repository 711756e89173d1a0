"""Formats on every kind of block: latent and linear attention, experts; a whole checkpoint in mxfp8."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from checkpoints import reference, save  # noqa: E402
from latent_checkpoints import pack_fp8, save_latent  # noqa: E402
from linear_checkpoints import save_linear  # noqa: E402
from packed_checkpoints import is_packed  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from siltwin.isa.errors import NotYetError  # noqa: E402
from siltwin.isa.formats.quantise import dequantise, quantise  # noqa: E402
from siltwin.isa.formats.scheme import SCHEMES  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.run import RunResult, run_job  # noqa: E402

PROMPT = [(7 * index + 3) % 97 for index in range(21)]
UNTOUCHED = ("in_proj_ba", "conv1d")  # beta, decay and convolutions


def run(path: Path, layout: str, **options: Any) -> RunResult:
    given: dict[str, Any] = {"prompt_ids": (tuple(PROMPT),), "max_new_tokens": 4, "ignore_eos": True, "logits": True}
    return run_job(Job(str(path), layout=layout, **({"dtype": "float32", "kv_dtype": "float32"} | given | options)))


def decoded(path: Path, scheme: str) -> Path:
    """A checkpoint whose projections are what the scheme makes of those at `path`."""
    plain = Path(shutil.copytree(path, path.with_name("decoded")))
    tensors = load_file(plain / "model.safetensors")
    for name, tensor in tensors.items():
        if is_packed(name, tensor) and not any(part in name for part in UNTOUCHED):
            tensors[name] = torch.from_numpy(dequantise(quantise(tensor.float().numpy(), SCHEMES[scheme])))
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    return plain


@pytest.mark.parametrize(
    ("family", "asked", "scheme", "layouts"),
    [
        ("deepseek_v2", {"weights": "int4", "group": 32}, "int4_g32", ["tp=1", "tp=2"]),
        ("deepseek_v3", {"weights": "fp8", "group": 128}, "fp8_e4m3_block128x128", ["tp=2,ep=2", "pp=2"]),
        ("qwen3_next", {"weights": "int8"}, "int8_channel", ["tp=1", "tp=2"]),
        ("llama", {"weights": "mxfp8"}, "mxfp8_e4m3", ["tp=1", "tp=2", "dp=2"]),
    ],
)
def test_quantised_on_loading_the_logits_are_those_of_the_decoded_weights(
    tmp_path: Path, family: str, asked: dict[str, Any], scheme: str, layouts: list[str]
) -> None:
    makers: dict[str, Any] = {"deepseek_v2": save_latent, "deepseek_v3": save_latent, "qwen3_next": save_linear}
    path = makers.get(family, save)(tmp_path, family, 0)
    logits, tokens, _ = reference(decoded(path, scheme), PROMPT, 4)
    for layout in layouts:
        result = run(path, layout, **asked)
        assert result.logits is not None
        assert np.abs(result.logits["logits_0"] - logits).max() <= 1e-4 * logits.std(), layout
        assert list(result.report.requests[0].tokens) == tokens
        assert "scale" in result.report.cards[0].by_tag


def test_packed_latent_attention_holds_codes_wherever_heads_are_cut(tmp_path: Path) -> None:
    path = save_latent(tmp_path, "deepseek_v3", 1)
    pack_fp8(path)
    whole = run(path, "tp=1", weights="dequantised")
    for layout in ("tp=1", "tp=2,ep=2", "pp=2"):
        result = run(path, layout)
        assert result.logits is not None and whole.logits is not None
        difference = np.abs(result.logits["logits_0"] - whole.logits["logits_0"]).max()
        assert difference <= 1e-4 * whole.logits["logits_0"].std(), layout
        kinds = set(result.report.cards[0].weights)
        assert {"replicated fp8_e4m3", "sharded fp8_e4m3", "expert fp8_e4m3", "expert scale"} <= kinds
        assert not any("put together" in warning for warning in result.report.warnings)


def test_codes_in_the_cache_are_not_there_yet_under_context_parallelism(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0)
    with pytest.raises(NotYetError, match="--kv-dtype int8"):
        run(path, "cp=2", kv_dtype="int8")
