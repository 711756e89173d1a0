"""config.json in both spellings becomes one ModelConfig; what is wrong or unknown is refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.dtype import BF16, FP16, FP32
from siltwin.isa.errors import ConfigError, SiltwinError, UnsupportedError
from siltwin.models import families
from siltwin.models.config import read_config
from siltwin.models.registry import known_families

LLAMA = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 16}
V4_ROPE = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
V5_ROPE = {"rope_parameters": {**V4_ROPE["rope_scaling"], "rope_theta": 500000.0}}  # type: ignore[dict-item]


def llama(**changes: Any) -> dict[str, Any]:
    return LLAMA | changes


def refused(raw: dict[str, Any], kind: type[SiltwinError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        read_config(raw, where="config.json")
    assert type(caught.value) is kind
    return str(caught.value)


def test_the_registry_finds_the_families() -> None:
    dense, experts = ["llama", "mistral", "qwen2", "qwen3"], ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss"]
    experts += ["glm4_moe", "minimax_m2"]
    assert set(known_families()) >= {*dense, *experts}


def test_a_new_family_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "olmo9.py").write_text(
        "from siltwin.models.families.llama import read\n"
        "from siltwin.models.dense_decoder import build_dense\n"
        "from siltwin.models.family import Family\n"
        "FAMILY = Family('olmo9', 'Olmo9ForCausalLM', read, build_dense)\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    known_families.cache_clear()
    try:
        assert read_config(llama(model_type="olmo9")).family == "olmo9"
    finally:
        known_families.cache_clear()


def test_the_v4_and_v5_spellings_mean_the_same() -> None:
    base = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    old = read_config(base | V4_ROPE | {"torch_dtype": "float16"})
    new = read_config(base | V5_ROPE | {"dtype": "float16"})
    assert old == new
    assert old.dtype is FP16
    assert (old.rope.theta, old.rope.scaling.rule, old.rope.scaling.factor) == (500000.0, "llama3", 8.0)


def test_the_oldest_spelling_calls_the_rule_type() -> None:
    config = read_config(llama(rope_scaling={"type": "linear", "factor": 2.0}))
    assert (config.rope.scaling.rule, config.rope.scaling.factor) == ("linear", 2.0)


def test_two_rope_tables_that_disagree_are_refused() -> None:
    both = llama(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default"})
    assert "rope_scaling and rope_parameters disagree" in refused(both)


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [({}, BF16), ({"dtype": "float32"}, FP32), ({"torch_dtype": "bfloat16"}, BF16), ({"dtype": None}, BF16)],
)
def test_the_dtype_of_the_config_counts_and_bf16_stands_in(keys: dict[str, Any], dtype: Any) -> None:
    assert read_config(llama(**keys)).dtype is dtype


@pytest.mark.parametrize(("value", "ids"), [(2, (2,)), ([2, 7], (2, 7)), (None, ()), (0, (0,))])
def test_eos_may_be_an_id_a_list_or_null(value: Any, ids: tuple[int, ...]) -> None:
    assert read_config(llama(eos_token_id=value)).eos_ids == ids


def test_head_dim_need_not_be_hidden_over_heads() -> None:
    config = read_config(llama(head_dim=20))
    assert (config.head_dim, config.hidden_size // config.num_heads) == (20, 8)


@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")],
)
def test_activations_by_their_published_names(name: str, activation: str) -> None:
    assert read_config(llama(hidden_act=name)).activation == activation


def test_what_the_file_leaves_out_is_told() -> None:
    raw = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "rope_theta")}
    config = read_config(raw, where="config.json")
    assert config.num_kv_heads == 6
    assert sorted(text.split(" ")[0] for text in config.assumed) == ["num_key_value_heads=6", "rope_theta=10000.0"]


def test_llama_biases_are_read() -> None:
    config = read_config(llama(attention_bias=True, mlp_bias=True))
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, True, True)


def test_qwen2_biases_q_k_v_and_not_o() -> None:
    config = read_config(llama(model_type="qwen2"))
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)


# Windows as configuration_qwen2.py, configuration_qwen3.py and configuration_mistral.py of transformers 5.24 set them.
@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 16}, (16, 16, 16)),
        ({"model_type": "mistral", "sliding_window": None}, (0, 0, 0)),
        ({"model_type": "mistral"}, (4096, 4096, 4096)),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 16}, (0, 0, 0)),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            (0, 16, 16),
        ),
        ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}, (0, 0, 0)),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 16,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (16, 0, 16),
        ),
    ],
)
def test_windows_by_layer(keys: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert read_config(LLAMA | {"head_dim": 8} | keys).windows == windows


def test_a_sliding_layer_without_a_window_is_refused() -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert "layer_types" in refused(QWEN3 | {"layer_types": kinds})


def test_an_unknown_key_is_refused_by_name_value_and_file() -> None:
    text = refused(llama(attn_logit_softcapping=30.0), UnsupportedError)
    assert "config.json: the llama family does not know attn_logit_softcapping=30.0" in text


@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [
        ("pretraining_tp", 2, 1),
        ("sliding_window", 64, None),
        ("is_encoder_decoder", True, False),
        ("partial_rotary_factor", 0.5, 1.0),
        ("chunk_size_feed_forward", 8, 0),
        ("per_layer_config", {"0": {}}, None),
    ],
)
def test_a_key_is_accepted_only_where_it_changes_nothing(key: str, value: Any, neutral: Any) -> None:
    read_config(llama(**{key: neutral}))
    assert f"{key}={value!r}" in refused(llama(**{key: value}), UnsupportedError)


def test_bookkeeping_keys_and_remote_code_are_passed_over() -> None:
    plain = read_config(LLAMA)
    keys = {"initializer_range": 0.1, "use_cache": False, "auto_map": {"AutoModel": "evil.py--Evil"}, "_source": "x"}
    assert read_config(llama(**keys, transformers_version="5.0", pad_token_id=-1)) == plain


def test_a_quantization_config_is_read_or_refused_by_name() -> None:
    config = read_config(llama(quantization_config={"quant_method": "fp8"}))
    assert config.quantization is not None and config.quantization.method == "fp8"
    assert "quantization_config" not in config.to_hf()
    assert read_config(llama(quantization_config={})).quantization is None
    assert "quant_method='gptq'" in refused(llama(quantization_config={"quant_method": "gptq"}), UnsupportedError)


def test_an_unknown_architecture_names_what_is_missing_and_what_is_known() -> None:
    raw = {"model_type": "kimi_k9", "kv_lora_rank": 512, "n_routed_experts": 896}
    assert refused(raw, UnsupportedError).startswith(
        "kimi_k9 is not supported: no family has this model_type; other families have attention kind multi-head latent "
        "attention (kv_lora_rank=512); mixture of experts (n_routed_experts=896); "
        f"known: {', '.join(known_families())}"
    )


@pytest.mark.parametrize(
    ("raw", "lacking"),
    [
        (
            {"model_type": "longcat_flash", "zero_expert_num": 256, "kv_lora_rank": 512},
            "no family has experts that pass their input on (zero_expert_num=256); other families have",
        ),
        (
            {"model_type": "deepseek_v4", "hc_mult": 4, "o_groups": 8, "scoring_func": "sqrtsoftplus"},
            "no family has output projections in groups (o_groups=8), hyper-connections (hc_mult=4), "
            "experts scored by sqrtsoftplus; known:",
        ),
        (
            {"model_type": "mimo_v2_flash", "attention_value_scale": 0.707, "scoring_func": "sigmoid"},
            "no family has scaled values, and kv heads and sizes that differ by kind of layer "
            "(attention_value_scale=0.707); known:",
        ),
    ],
)
def test_mathematics_that_no_family_has_is_named(raw: dict[str, Any], lacking: str) -> None:
    assert lacking in refused(raw, UnsupportedError)


def test_a_nested_text_config_betrays_its_attention_too() -> None:
    raw = {"model_type": "kimi_k9", "text_config": {"linear_attn_config": {"num_heads": 4}}}
    assert "attention kind linear attention" in refused(raw, UnsupportedError)


def test_a_classifier_is_no_causal_model() -> None:
    assert "LlamaForSequenceClassification" in refused(
        llama(architectures=["LlamaForSequenceClassification"]), UnsupportedError
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -48),
        ("hidden_size", 0),
        ("hidden_size", "48"),
        ("hidden_size", 48.0),
        ("hidden_size", True),
        ("hidden_size", None),
        ("hidden_size", 2**40),
        ("num_hidden_layers", 10**9),
        ("vocab_size", [1]),
        ("num_key_value_heads", 4),
        ("head_dim", 7),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "1e-5"),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", -1.0),
        ("rope_theta", float("inf")),
        ("tie_word_embeddings", "yes"),
        ("eos_token_id", -1),
        ("eos_token_id", [1, "2"]),
        ("torch_dtype", 16),
        ("dtype", "float99"),
        ("architectures", "LlamaForCausalLM"),
        ("rope_scaling", [1]),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"type": "linear", "factor": -2.0}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.5, "high_freq_factor": 4.0}),
        ("rope_scaling", {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}),
        ("model_type", None),
    ],
)
def test_bad_values_are_refused_with_the_key_and_the_file(key: str, value: Any) -> None:
    text = refused(llama(**{key: value}))
    named = {"rope_scaling": ("rope_scaling",), "head_dim": ("head_dim",)}.get(key, (key,))
    assert "config.json" in text and any(name in text for name in named)


@pytest.mark.parametrize(
    "key", [key for key in LLAMA if key not in ("num_key_value_heads", "hidden_act", "rope_theta")]
)
def test_a_size_that_is_missing_has_no_silent_default(key: str) -> None:
    raw = {name: value for name, value in LLAMA.items() if name != key}
    assert key in refused(raw)


def test_unknown_rope_rules_and_rope_keys_are_refused() -> None:
    assert "'ntk'" in refused(llama(rope_scaling={"type": "ntk", "factor": 2.0}), UnsupportedError)
    assert "mrope_section" in refused(llama(rope_scaling={"type": "default", "mrope_section": [1]}), UnsupportedError)
    nested = {"full_attention": {"rope_type": "default"}}
    assert "one table a layer kind" in refused(llama(rope_parameters=nested), UnsupportedError)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "rope", [{}, V4_ROPE, V5_ROPE, {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7}}]
)
def test_a_config_written_back_reads_the_same(model_type: str, rope: dict[str, Any]) -> None:
    keys = {"model_type": model_type, "tie_word_embeddings": True, "eos_token_id": [3, 5], "dtype": "float16"}
    config = read_config(LLAMA | {"head_dim": 8} | rope | keys)
    assert read_config(json.loads(json.dumps(config.to_hf()))) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not valid JSON"),
        ("[1, 2]", "must be an object"),
        ('{"rms_norm_eps": NaN}', "NaN"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ("[" * 100_000, "not valid JSON"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "not valid JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=named) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config.json: cannot be read"):
        read_config(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [*LLAMA, "head_dim", "rope_scaling", "rope_parameters", "eos_token_id", "dtype", "layer_types", "sliding_window"]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([LLAMA, QWEN3, LLAMA | {"model_type": "mistral"}]), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_no_value_of_any_key_raises_anything_but_our_errors(base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        read_config(base | changes)
    except SiltwinError:
        pass
