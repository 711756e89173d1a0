"""KV caches in fp8 and int8: bytes by hand, numbers against transformers with keys and values rounded likewise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import transformers  # noqa: E402
from checkpoints import save  # noqa: E402
from latent_checkpoints import save_latent  # noqa: E402

from siltwin.isa.errors import ConfigError, NotYetError  # noqa: E402
from siltwin.models.shelf import find_model  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.prepare import prepare  # noqa: E402
from siltwin.runtime.run import RunResult, run_job  # noqa: E402

PROMPT = tuple((7 * index + 3) % 131 for index in range(37))


def run(path: str | Path, layout: str = "tp=1", **options: Any) -> RunResult:
    given: dict[str, Any] = {"prompt_ids": (PROMPT, PROMPT[:5]), "max_new_tokens": 3, "ignore_eos": True}
    given |= {"logits": True, "dtype": "float32", "kv_dtype": "float32"}
    return run_job(Job(str(path), layout=layout, **(given | options)))


def logits_of(result: RunResult) -> np.ndarray:
    assert result.logits is not None
    return np.asarray(result.logits["logits_0"])


def rounded(x: torch.Tensor, kind: str, group: int | None) -> torch.Tensor:
    """Codes times scales, one scale a run of `group` elements (None: none at all)."""
    largest = 127 if kind == "int8" else 448
    scale = torch.ones(())
    runs = x
    if group is not None:
        padding = -x.shape[-1] % group
        runs = torch.nn.functional.pad(x, (0, padding)).unflatten(-1, (-1, group))
        scale = runs.abs().amax(-1, keepdim=True).clamp(min=1e-30) / largest
    scaled = runs / scale
    codes = scaled.round() if kind == "int8" else scaled.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    values = codes * scale
    return values if group is None else values.flatten(-2)[..., : x.shape[-1]]


class Coded(transformers.DynamicCache):
    """A cache that gives back what codes and scales mean."""

    def __init__(self, kind: str, by_head: bool) -> None:
        super().__init__()
        self.kind, self.by_head = kind, by_head

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *more: Any, **named: Any) -> Any:
        group = key.shape[-1] if self.by_head else None
        held = (rounded(part, self.kind, group) for part in (key, value))
        return super().update(*held, layer, *more, **named)


@pytest.mark.parametrize(
    ("family", "asked", "kind", "by_head"),
    [
        ("llama", {"kv_dtype": "fp8"}, "fp8", False),
        ("qwen3", {"kv_dtype": "fp8", "kv_scales": "head"}, "fp8", True),
        ("qwen2", {"kv_dtype": "int8"}, "int8", True),
    ],
)
def test_attention_reads_what_the_codes_mean(
    tmp_path: Path, family: str, asked: dict[str, str], kind: str, by_head: bool
) -> None:
    path = save(tmp_path, family, 0)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT]), past_key_values=Coded(kind, by_head), use_cache=True).logits[0].numpy()
    exact = logits_of(run(path))
    for layout in ("tp=1", "tp=2", "pp=2"):
        ours = logits_of(run(path, layout, **asked))
        apart = np.abs(ours - expected).max(axis=1) / expected.std()
        # a value on the boundary of two codes may fall to either side, and then moves what follows by a code
        assert (apart[:8] <= 1e-4).all() and apart.max() < 0.05, layout
        assert np.abs(ours - exact).max() > 50 * np.median(apart) * expected.std()


def test_latents_have_a_scale_for_128_and_their_rotated_part_is_bf16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as modeling

    path = save_latent(tmp_path, "deepseek_v2", 0)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for name, module in model.named_modules():
        if name.endswith("kv_a_layernorm"):
            module.register_forward_hook(lambda _module, _given, out: rounded(out, "int8", 128))
    turn = modeling.apply_rotary_emb

    def rounding(*given: Any) -> Any:
        query, key = turn(*given)
        return query, key.bfloat16().float()

    monkeypatch.setattr(modeling, "apply_rotary_emb", rounding)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT]), use_cache=False).logits[0].numpy()
    ours = logits_of(run(path, "tp=2", kv_dtype="int8"))
    apart = np.abs(ours - expected).max(axis=1) / expected.std()
    assert (apart[:8] <= 1e-4).all()


@pytest.mark.parametrize(
    ("model", "asked", "row"),
    [
        ("DeepSeek-V3", {"kv_dtype": "fp8"}, 512 + 4 * 4 + 64 * 2),  # 656
        ("Kimi-K2-Instruct", {"kv_dtype": "int8"}, 656),
        ("DeepSeek-V3", {}, 576 * 2),
        ("Llama-3.1-405B", {"kv_dtype": "fp8"}, 2 * 128),  # one of 8 kv heads on each of 8 cards
        ("Llama-3.1-405B", {"kv_dtype": "int8"}, 2 * (128 + 4)),
        ("Llama-3.1-405B", {"kv_dtype": "fp8", "kv_scales": "head"}, 2 * (128 + 4)),
    ],
)
def test_a_token_takes_as_many_bytes_as_its_codes_and_scales(model: str, asked: dict[str, str], row: int) -> None:
    layers = {"Llama-3.1-405B": 126}.get(model, 61)
    job = Job(str(find_model(model)), layout="tp=8", payload=False, batch=1, input_len=1, **asked)
    assert prepare(job).plan.footprint(0).page_bytes == 16 * layers * row


def test_time_and_bytes_need_no_numbers_and_fewer_bytes_take_less_time(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen3", 0)
    for asked in ({"kv_dtype": "fp8"}, {"kv_dtype": "int8"}):
        on, off = run(path, "tp=2", logits=False, **asked), run(path, "tp=2", logits=False, payload=False, **asked)
        assert on.spans == off.spans and on.memory == off.memory


def test_what_a_cache_cannot_be_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0)
    with pytest.raises(ConfigError, match="--kv-scales tensor leaves int8 without scales"):
        run(path, kv_dtype="int8", kv_scales="tensor")
    with pytest.raises(ConfigError, match="--kv-scales are those of a cache in fp8_e4m3"):
        run(path, kv_scales="head")
    with pytest.raises(ConfigError, match="--kv-scales 'row' is none; choose head"):
        run(path, kv_dtype="fp8", kv_scales="row")
    with pytest.raises(NotYetError, match="--kv-dtype mxfp4 comes with a later version; use one of fp32"):
        run(path, kv_dtype="fp4")
    with pytest.raises(NotYetError, match="--kv-dtype int8 with cp=2: .* use --kv-dtype bf16, or leave cp at 1"):
        run(path, kv_dtype="int8", layout="cp=2")
