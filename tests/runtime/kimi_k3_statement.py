"""Kimi K3's text model stated in torch, recomputed whole for every sequence.

transformers has no Kimi K3. This is the mathematics as its config, its tensor table and several independent ports agree
on it; with K3's additions off it is transformers' kimi_linear, which a test holds it to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Tensors = dict[str, torch.Tensor]
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def l2(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


class KimiK3:
    """The model of a config and tensors under hub names; `dtype` is what all of it is computed in."""

    def __init__(self, config: dict[str, Any], tensors: Tensors, dtype: torch.dtype = torch.float32) -> None:
        self.config = c = config.get("text_config", config)
        names = {name.removeprefix("language_model."): tensor for name, tensor in tensors.items()}
        self.tensors = {n: t if t.dtype == torch.uint8 else t.to(dtype) for n, t in names.items()}
        self.dtype, self.eps, self.linear = dtype, c["rms_norm_eps"], c["linear_attn_config"]
        self.full = {index - 1 for index in self.linear["full_attn_layers"]}

    def weight(self, name: str) -> torch.Tensor:
        """A matrix; packed as mxfp4 its low nibble comes first, with a scale of 2^(code - 127) for 32 inputs."""
        if f"{name}.weight" in self.tensors:
            return self.tensors[f"{name}.weight"]
        codes, scales = self.tensors[f"{name}.weight_packed"], self.tensors[f"{name}.weight_scale"]
        values = torch.stack([FP4[(codes & 15).long()], FP4[(codes >> 4).long()]], -1).reshape(len(codes), -1)
        return values.to(self.dtype) * torch.exp2(scales.to(self.dtype) - 127).repeat_interleave(32, 1)

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def project(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weight(name).T

    def norm(self, x: torch.Tensor, name: str, eps: float | None = None) -> torch.Tensor:
        return rms(x, self.tensors[f"{name}.weight"], self.eps if eps is None else eps)

    def gated(self, x: torch.Tensor, at: str, names: tuple[str, str, str]) -> torch.Tensor:
        gate, up = (self.project(x, f"{at}.{name}") for name in names[:2])
        if self.config["hidden_act"] == "situ":
            beta, limit = self.config["activation_situ_beta"], self.config["activation_situ_linear_beta"]
            both = beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * limit * torch.tanh(up / limit)
        else:
            both = F.silu(gate) * up
        return self.project(both, f"{at}.{names[2]}")

    def mlp(self, x: torch.Tensor, at: str) -> torch.Tensor:
        return self.gated(x, at, ("gate_proj", "up_proj", "down_proj"))

    def latent_attention(self, x: torch.Tensor, at: str) -> torch.Tensor:
        """No rotation at all, though the elements meant for one count."""
        c, tokens = self.config, len(x)
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        if self.has(f"{at}.q_proj"):
            q = self.project(x, f"{at}.q_proj")
        else:
            q = self.project(
                self.norm(self.project(x, f"{at}.q_a_proj"), f"{at}.q_a_layernorm", 1e-6), f"{at}.q_b_proj"
            )
        made = self.project(x, f"{at}.kv_a_proj_with_mqa")
        latent = self.norm(made[:, : c["kv_lora_rank"]], f"{at}.kv_a_layernorm", 1e-6)
        both = self.project(latent, f"{at}.kv_b_proj").view(tokens, heads, nope + c["v_head_dim"])
        shared = made[:, None, c["kv_lora_rank"] :].expand(tokens, heads, rope)
        k, v = torch.cat([both[..., :nope], shared], -1), both[..., nope:]
        scores = torch.einsum("thd,shd->hts", q.view(tokens, heads, -1), k) * (nope + rope) ** -0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf"))
        out = torch.einsum("hts,shd->thd", scores.softmax(-1), v).reshape(tokens, -1)
        if self.has(f"{at}.g_proj"):
            out = out * torch.sigmoid(self.project(x, f"{at}.g_proj"))
        return self.project(out, f"{at}.o_proj")

    def delta_attention(self, x: torch.Tensor, at: str) -> torch.Tensor:
        tokens, heads, dim = len(x), self.linear["num_heads"], self.linear["head_dim"]

        def convolved(part: str) -> torch.Tensor:
            weight = self.tensors[f"{at}.{part}_conv1d.weight"]
            padded = F.pad(self.project(x, f"{at}.{part}_proj").T[None], (weight.shape[-1] - 1, 0))
            return F.silu(F.conv1d(padded, weight, groups=len(weight))[0].T).view(tokens, heads, dim)

        q, k, v = l2(convolved("q")) * dim**-0.5, l2(convolved("k")), convolved("v")
        decay = self.project(self.project(x, f"{at}.f_a_proj"), f"{at}.f_b_proj") + self.tensors[f"{at}.dt_bias"]
        rate = self.tensors[f"{at}.A_log"].reshape(-1)[:heads].exp().view(1, heads, 1)
        bound = self.linear.get("gate_lower_bound")
        decay = decay.view(tokens, heads, dim)
        log = -rate * F.softplus(decay) if bound is None else bound * torch.sigmoid(rate * decay)
        beta = torch.sigmoid(self.project(x, f"{at}.b_proj"))
        state, rows = x.new_zeros(heads, dim, dim), []
        for t in range(tokens):
            state = state * log[t].exp()[..., None]
            change = (v[t] - (state * k[t][..., None]).sum(-2)) * beta[t][:, None]
            state = state + k[t][..., None] * change[:, None, :]
            rows.append((state * q[t][..., None]).sum(-2))
        if self.has(f"{at}.g_proj"):
            gate = self.project(x, f"{at}.g_proj")
        else:
            gate = self.project(self.project(x, f"{at}.g_a_proj"), f"{at}.g_b_proj")
        out = self.norm(torch.stack(rows), f"{at}.o_norm") * torch.sigmoid(gate.view(tokens, heads, dim))
        return self.project(out.reshape(tokens, -1), f"{at}.o_proj")

    def experts(self, x: torch.Tensor, at: str) -> torch.Tensor:
        c = self.config
        scores = torch.sigmoid(self.project(x, f"{at}.gate"))
        ids = (scores + self.tensors[f"{at}.gate.e_score_correction_bias"]).topk(c["num_experts_per_token"], -1).indices
        shares = scores.gather(-1, ids)
        if c["moe_renormalize"]:
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
        shares = shares * c["routed_scaling_factor"]
        is_latent = self.has(f"{at}.routed_expert_down_proj")
        taken = self.project(x, f"{at}.routed_expert_down_proj") if is_latent else x
        total = torch.zeros_like(taken)
        for expert in ids.unique().tolist():
            token, choice = (ids == expert).nonzero(as_tuple=True)
            made = self.gated(taken[token], f"{at}.experts.{expert}", ("w1", "w3", "w2"))
            total = total.index_add(0, token, made * shares[token, choice, None])
        if is_latent:
            if c.get("latent_moe_use_norm"):
                total = self.norm(total, f"{at}.routed_expert_norm")
            total = self.project(total, f"{at}.routed_expert_up_proj")
        return total + self.mlp(x, f"{at}.shared_experts")

    def mix(self, running: torch.Tensor, snapshots: list[torch.Tensor], at: str) -> torch.Tensor:
        """Attention residuals: shares by the normed values, a sum of the raw ones."""
        values = torch.stack([*snapshots, running], 1)
        query = self.tensors[f"{at}_norm.weight"] * self.tensors[f"{at}_proj.weight"][0]
        scores = (rms(values, torch.ones((), dtype=values.dtype), self.eps) * query).sum(-1)
        return (scores.softmax(-1)[..., None] * values).sum(1)

    @torch.no_grad()
    def logits(self, ids: list[int]) -> np.ndarray:
        """The logits of every position, [tokens, vocabulary]."""
        x, snapshots = self.tensors["model.embed_tokens.weight"][torch.tensor(ids)], []
        block = self.config.get("attn_res_block_size")
        for index in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{index}"
            read = self.mix(x, snapshots, f"{at}.self_attention_res") if snapshots else x
            attend = self.latent_attention if index in self.full else self.delta_attention
            made = attend(self.norm(read, f"{at}.input_layernorm"), f"{at}.self_attn")
            starts = block is not None and index % block == 0
            snapshots = [*snapshots, x] if starts else snapshots
            x = made if starts else x + made
            read = self.mix(x, snapshots, f"{at}.mlp_res") if snapshots else x
            normed = self.norm(read, f"{at}.post_attention_layernorm")
            sparse = self.has(f"{at}.block_sparse_moe.gate")
            x = x + (self.experts(normed, f"{at}.block_sparse_moe") if sparse else self.mlp(normed, f"{at}.mlp"))
        if snapshots:
            x = self.mix(x, snapshots, "model.output_attn_res")
        return self.project(self.norm(x, "model.norm"), "lm_head").numpy()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The next `count` tokens of a prompt."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]
