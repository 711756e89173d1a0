"""Small random checkpoints of Kimi K3, as its published files are spelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from kimi_k3_statement import FP4, KimiK3, Tensors
from safetensors.torch import save_file

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 60,
    "intermediate_size": 56,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "q_lora_rank": 26,
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "linear_heads": 4,
    "linear_dim": 12,
    "attn_res_block_size": 3,
    "num_experts": 10,
    "num_experts_per_token": 3,
    "moe_intermediate_size": 20,
    "routed_expert_hidden_size": 33,
    "num_shared_experts": 2,
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "gate_lower_bound": -5.0,
}

# Routed experts in mxfp4, as the published config says it.
MXFP4 = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "symmetric": True,
            },
        }
    },
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*",
    ],
}


def small_config(packed: bool = False, **changes: Any) -> dict[str, Any]:
    """A wrapper's config.json of SIZES and `changes`; None leaves an addition of K3's out."""
    sizes = SIZES | changes
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    full = sorted({*range(4, layers + 1, 4), layers})
    linear = {
        "full_attn_layers": full,
        "kda_layers": [index for index in range(1, layers + 1) if index not in full],
        "head_dim": sizes.pop("linear_dim"),
        "num_heads": sizes.pop("linear_heads"),
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": sizes.pop("use_full_rank_gate", True),
    }
    if (bound := sizes.pop("gate_lower_bound")) is not None:
        linear["gate_lower_bound"] = bound
    text = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_key_value_heads": heads,
        "hidden_act": "situ",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "linear_attn_config": linear,
        "latent_moe_use_norm": True,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.3,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        **{key: value for key, value in sizes.items() if value is not None or key == "q_lora_rank"},
    }
    if packed:
        text["quantization_config"] = MXFP4
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "float32",
        "tie_word_embeddings": False,
        "vision_config": {"patch_size": 14},
        "text_config": text,
    }


class _Drawn:
    """Random tensors under hub names."""

    def __init__(self, seed: int) -> None:
        self.draw, self.tensors = torch.Generator().manual_seed(seed), Tensors()

    def normal(self, name: str, *shape: int, std: float = 1.0, mean: float = 0.0) -> None:
        self.tensors[name] = mean + std * torch.randn(*shape, generator=self.draw)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        self.normal(f"{name}.weight", rows, columns, std=columns**-0.5)

    def norm(self, name: str, size: int) -> None:
        self.normal(f"{name}.weight", size, std=0.2, mean=1.0)

    def mlp(self, at: str, names: tuple[str, str, str], width: int, hidden: int) -> None:
        for name in names[:2]:
            self.matrix(f"{at}.{name}", width, hidden)
        self.matrix(f"{at}.{names[2]}", hidden, width)

    def mix(self, at: str, hidden: int) -> None:
        self.norm(f"{at}_norm", hidden)
        self.normal(f"{at}_proj.weight", 1, hidden, std=2 * hidden**-0.5)


def random_tensors(config: dict[str, Any], seed: int) -> Tensors:
    """Every tensor of a config, all of them random."""
    c, drawn = config["text_config"], _Drawn(seed)
    hidden = c["hidden_size"]
    drawn.normal("model.embed_tokens.weight", c["vocab_size"], hidden)
    drawn.matrix("lm_head", c["vocab_size"], hidden)
    drawn.norm("model.norm", hidden)
    residuals = c.get("attn_res_block_size") is not None
    if residuals:
        drawn.mix("model.output_attn_res", hidden)
    for index in range(c["num_hidden_layers"]):
        at = f"model.layers.{index}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            drawn.norm(f"{at}.{name}", hidden)
        if residuals:
            for name in ("self_attention_res", "mlp_res"):
                drawn.mix(f"{at}.{name}", hidden)
        is_full = index + 1 in c["linear_attn_config"]["full_attn_layers"]
        (_draw_latent if is_full else _draw_delta)(drawn, c, f"{at}.self_attn")
        if index < c["first_k_dense_replace"]:
            drawn.mlp(f"{at}.mlp", ("gate_proj", "up_proj", "down_proj"), c["intermediate_size"], hidden)
        else:
            _draw_experts(drawn, c, f"{at}.block_sparse_moe")
    return drawn.tensors


def _draw_latent(drawn: _Drawn, c: dict[str, Any], at: str) -> None:
    heads, hidden, latent = c["num_attention_heads"], c["hidden_size"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    if (rank := c.get("q_lora_rank")) is None:
        drawn.matrix(f"{at}.q_proj", heads * (nope + rope), hidden)
    else:
        drawn.matrix(f"{at}.q_a_proj", rank, hidden)
        drawn.norm(f"{at}.q_a_layernorm", rank)
        drawn.matrix(f"{at}.q_b_proj", heads * (nope + rope), rank)
    drawn.matrix(f"{at}.kv_a_proj_with_mqa", latent + rope, hidden)
    drawn.norm(f"{at}.kv_a_layernorm", latent)
    drawn.matrix(f"{at}.kv_b_proj", heads * (nope + v), latent)
    if c["mla_use_output_gate"]:
        drawn.matrix(f"{at}.g_proj", heads * v, hidden)
    drawn.matrix(f"{at}.o_proj", hidden, heads * v)


def _draw_delta(drawn: _Drawn, c: dict[str, Any], at: str) -> None:
    linear, hidden = c["linear_attn_config"], c["hidden_size"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    for part in "qkv":
        drawn.matrix(f"{at}.{part}_proj", heads * dim, hidden)
        drawn.normal(f"{at}.{part}_conv1d.weight", heads * dim, 1, linear["short_conv_kernel_size"], std=0.5)
    drawn.matrix(f"{at}.f_a_proj", dim, hidden)
    drawn.matrix(f"{at}.f_b_proj", heads * dim, dim)
    drawn.matrix(f"{at}.b_proj", heads, hidden)
    if linear["use_full_rank_gate"]:
        drawn.matrix(f"{at}.g_proj", heads * dim, hidden)
    else:
        drawn.matrix(f"{at}.g_a_proj", dim, hidden)
        drawn.matrix(f"{at}.g_b_proj", heads * dim, dim)
    drawn.matrix(f"{at}.o_proj", hidden, heads * dim)
    drawn.norm(f"{at}.o_norm", dim)
    drawn.normal(f"{at}.dt_bias", heads * dim, std=0.5)
    drawn.normal(f"{at}.A_log", max(heads, dim), std=0.5)  # what pads the heads' is noise that must not be read


def _draw_experts(drawn: _Drawn, c: dict[str, Any], at: str) -> None:
    experts, hidden, width = c["num_experts"], c["hidden_size"], c["moe_intermediate_size"]
    latent = c.get("routed_expert_hidden_size")
    drawn.matrix(f"{at}.gate", experts, hidden)
    drawn.normal(f"{at}.gate.e_score_correction_bias", experts, std=0.1)
    if latent is not None:
        drawn.matrix(f"{at}.routed_expert_down_proj", latent, hidden)
        drawn.matrix(f"{at}.routed_expert_up_proj", hidden, latent)
        if c["latent_moe_use_norm"]:
            drawn.norm(f"{at}.routed_expert_norm", latent)
    shared = c["num_shared_experts"] * width
    drawn.mlp(f"{at}.shared_experts", ("gate_proj", "up_proj", "down_proj"), shared, hidden)
    for expert in range(experts):
        drawn.mlp(f"{at}.experts.{expert}", ("w1", "w3", "w2"), width, latent or hidden)
        if "quantization_config" in c:
            for name in ("w1", "w3", "w2"):
                _pack(drawn.tensors, f"{at}.experts.{expert}.{name}")


def _pack(tensors: Tensors, name: str) -> None:
    """A matrix as mxfp4: codes nearest after a scale of 2^(floor(log2 amax) - 2) for 32 inputs."""
    matrix = tensors.pop(f"{name}.weight")
    blocks = matrix.view(len(matrix), -1, 32)
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1).clamp_min(1e-30))) - 2
    scaled = (blocks / torch.exp2(exponents)[..., None]).clamp(-6, 6)
    codes = (scaled[..., None] - FP4).abs().argmin(-1).reshape(matrix.shape).to(torch.uint8)
    tensors[f"{name}.weight_packed"] = codes[:, ::2] | (codes[:, 1::2] << 4)
    tensors[f"{name}.weight_scale"] = (exponents + 127).to(torch.uint8)


def save_kimi_k3(directory: Path, seed: int, packed: bool = False, **changes: Any) -> tuple[Path, KimiK3]:
    """A checkpoint below `directory`, as K3's files are: a wrapper's config and names; and its model."""
    config = small_config(packed, **changes)
    tensors = random_tensors(config, seed)
    path = directory / f"kimi_k3-{seed}{'-mxfp4' * packed}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    files = {f"language_model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(files | {"vision_tower.patch.weight": torch.zeros(2, 2)}, path / "model.safetensors")
    return path, KimiK3(config, tensors)
