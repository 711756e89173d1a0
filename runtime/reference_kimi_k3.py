"""The reference of Kimi K3, which transformers does not have: its mathematics in torch, entered by the lazy door.

It shares nothing with the cards' instructions but the checkpoint's tensors: each sequence is computed whole, without a
cache, head by head and token by token as the published config and tensor table and independent ports of it say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..isa.dtype import FP32, DType
from ..isa.errors import ConfigError
from ..isa.instruction import Array
from ..models.checkpoint import Checkpoint
from .held_cache import CacheCodes
from .held_inputs import InputCodes
from .reference_cache import by_rows
from .reference_inputs import rounded_rows
from .reference_run import NOTHING, ROUNDED, ReferenceRun
from .routes import Routes

LATENT_EPS, L2_EPS = 1e-6, 1e-6
NAME = "Kimi K3 stated in torch {version}, float32"


class KimiK3Reference:
    """Kimi K3's text model with the weights of a checkpoint, in float32 on the CPU."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        try:
            import torch
        except ImportError:
            raise ConfigError("align needs torch (torch is missing); install siltwin[reference]") from None
        self.name = NAME.format(version=torch.__version__)
        self._torch = torch
        self._config: Mapping[str, Any] = checkpoint.config.to_hf()
        self._tensors = {
            name: torch.from_numpy(np.require(checkpoint.load(name, FP32), requirements="W")).reshape(shape)
            for name, shape in checkpoint.shapes.items()
        }
        self._wide = torch.float32
        kinds = enumerate(self._config["mlp_layer_types"])
        self.routed_layers = frozenset(index for index, kind in kinds if kind == "sparse")
        self._routes: dict[int, Routes] = {}
        self._inputs: Mapping[str, Sequence[InputCodes]] = {}
        self._cache: CacheCodes | None = None
        self._forced: Mapping[int, Array] = NOTHING
        self._eps = self._config["rms_norm_eps"]

    def run(
        self,
        ids: Sequence[int],
        longest: int = 0,
        forced: Mapping[int, Array] = NOTHING,
        keys: Mapping[int, Array] = NOTHING,
    ) -> ReferenceRun:
        """A full forward pass over a sequence, without a cache; the job's longest one changes nothing here.

        `forced` are the experts, [tokens, chosen] by layer, that its first tokens take in place of their own choice.
        """
        seen: list[Any] = []
        self._routes, self._forced = {}, forced
        with self._torch.no_grad():
            logits = self._logits(list(ids), seen)
        return ReferenceRun([_array(values) for values in seen], _array(logits), self._routes)

    def show_rounding(self, dtype: DType) -> None:
        """Compute from now on in `dtype` (for fp32 in float64); sums, states and softmax stay in float32 at least."""
        kind = getattr(self._torch, ROUNDED[dtype.name])
        self._tensors = {name: tensor.to(kind) for name, tensor in self._tensors.items()}
        self._wide = self._torch.promote_types(kind, self._torch.float32)

    def _logits(self, ids: list[int], seen: list[Any]) -> Any:
        """Logits [tokens, vocab]; `seen` gets the residual stream after the embedding and after every layer."""
        c, block = self._config, self._config.get("attn_res_block_size")
        x, snapshots = self._tensors["model.embed_tokens.weight"][ids], list[Any]()
        seen.append(x)
        for index in range(c["num_hidden_layers"]):
            at = f"model.layers.{index}"
            read = self._mix([*snapshots, x], f"{at}.self_attention_res")
            attend = self._kda if c["layer_types"][index] == "linear_attention" else self._mla
            made = attend(self._rms(read, f"{at}.input_layernorm"), f"{at}.self_attn")
            if block is not None and index % block == 0:
                snapshots.append(x)
                x = made
            else:
                x = x + made
            normed = self._rms(self._mix([*snapshots, x], f"{at}.mlp_res"), f"{at}.post_attention_layernorm")
            if c["mlp_layer_types"][index] == "sparse":
                x = x + self._moe(normed, f"{at}.block_sparse_moe", index)
            else:
                x = x + self._mlp(normed, f"{at}.mlp", "gate_proj", "up_proj", "down_proj")
            seen.append(x)
        x = self._rms(self._mix([*snapshots, x], "model.output_attn_res"), "model.norm")
        head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
        return self._linear(x, head)

    def quantise_inputs(self, codes: Mapping[str, Sequence[InputCodes]]) -> None:
        """Round from now on the inputs of products with these tensors to codes, as the cards do."""
        self._inputs = codes

    def code_cache(self, codes: CacheCodes | None) -> None:
        """Let attention read from now on what caches in codes hold."""
        self._cache = codes

    def _linear(self, x: Any, name: str) -> Any:
        codes = self._inputs.get(f"{name}.weight")
        x = x if codes is None else rounded_rows(self._torch, x, codes)
        return x @ self._tensors[f"{name}.weight"].T

    def _rms(self, x: Any, name: str, eps: float | None = None) -> Any:
        """In float32 at least, rounded before the weight."""
        wide = x.to(self._wide)
        wide = wide * (wide.square().mean(-1, keepdim=True) + (self._eps if eps is None else eps)).rsqrt()
        return wide.to(x.dtype) * self._tensors[f"{name}.weight"]

    def _mix(self, values: list[Any], name: str) -> Any:
        """Attention residuals: a softmax over a token's states, scored by their norms, of the states themselves."""
        if len(values) == 1:
            return values[0]
        both = self._torch.stack(values).to(self._wide)
        weight = self._tensors[f"{name}_norm.weight"] * self._tensors[f"{name}_proj.weight"][0]
        norms = (both.square().mean(-1) + self._eps).rsqrt()
        shares = (norms * (both @ weight.to(self._wide))).softmax(0)
        return (shares[..., None] * both).sum(0).to(values[0].dtype)

    def _mlp(self, x: Any, at: str, gate: str, up: str, down: str) -> Any:
        opened, raised = self._linear(x, f"{at}.{gate}"), self._linear(x, f"{at}.{up}")
        if self._config["hidden_act"] == "situ":
            beta, most = (self._config[f"activation_situ_{key}"] for key in ("beta", "linear_beta"))
            both = beta * (opened / beta).tanh() * opened.sigmoid() * most * (raised / most).tanh()
        else:
            both = opened * opened.sigmoid() * raised
        return self._linear(both, f"{at}.{down}")

    def _moe(self, x: Any, at: str, layer: int) -> Any:
        """The router sees the whole stream, routed experts may see latents of it."""
        c, torch = self._config, self._torch
        ids, shares = self._routed(x, at, layer)
        is_latent = c.get("routed_expert_hidden_size") is not None
        taken = self._linear(x, f"{at}.routed_expert_down_proj") if is_latent else x
        total = torch.zeros_like(taken)
        for expert in range(c["num_experts"]):
            token, choice = torch.nonzero(ids == expert, as_tuple=True)
            if len(token):
                made = self._mlp(taken[token], f"{at}.experts.{expert}", "w1", "w3", "w2")
                total = total.index_add(0, token, made * shares[token, choice, None].to(made.dtype))
        if is_latent:
            normed = self._rms(total, f"{at}.routed_expert_norm") if c.get("latent_moe_use_norm") else total
            total = self._linear(normed, f"{at}.routed_expert_up_proj")
        if c.get("num_shared_experts"):
            total = total + self._mlp(x, f"{at}.shared_experts", "gate_proj", "up_proj", "down_proj")
        return total

    def _routed(self, x: Any, at: str, layer: int) -> tuple[Any, Any]:
        """Each token's experts and their shares; a correction chooses and never weighs."""
        c = self._config
        logits = self._linear(x, f"{at}.gate").to(self._wide)
        scores = logits.sigmoid()
        choice, groups = self._limited(scores + self._tensors[f"{at}.gate.e_score_correction_bias"])
        ids = choice.topk(c["num_experts_per_token"], -1).indices
        self._routes[layer] = Routes(
            ids.numpy().copy(), _array(logits), _array(choice), None if groups is None else _array(groups)
        )
        if (forced := self._forced.get(layer)) is not None:
            ids[: len(forced)] = self._torch.from_numpy(np.ascontiguousarray(forced, np.int64))
        shares = scores.gather(-1, ids)
        if c["moe_renormalize"]:
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
        return ids, shares * c["routed_scaling_factor"]

    def _limited(self, choice: Any) -> tuple[Any, Any]:
        """Minus infinity for experts outside the groups whose two best add up to most; and the groups' sums."""
        c, groups = self._config, self._config["num_expert_group"]
        if groups == 1:
            return choice, None
        grouped = choice.view(len(choice), groups, -1)
        sums = grouped.topk(2, -1).values.sum(-1)
        best = sums.topk(c["topk_group"], -1).indices
        out = self._torch.ones_like(sums, dtype=self._torch.bool).scatter(-1, best, False)
        return grouped.masked_fill(out[..., None], float("-inf")).flatten(1), sums

    def _mla(self, x: Any, at: str) -> Any:
        """Latent attention without rotation; the elements meant for one count in the scores' scale."""
        c, torch, tokens = self._config, self._torch, len(x)
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        if c.get("q_lora_rank") is None:
            q = self._linear(x, f"{at}.q_proj")
        else:
            q = self._rms(self._linear(x, f"{at}.q_a_proj"), f"{at}.q_a_layernorm", LATENT_EPS)
            q = self._linear(q, f"{at}.q_b_proj")
        made = self._linear(x, f"{at}.kv_a_proj_with_mqa")
        latent, shared = made.split([c["kv_lora_rank"], rope], -1)
        latent = self._rms(latent, f"{at}.kv_a_layernorm", LATENT_EPS)
        if self._cache is not None:
            latent, shared = by_rows(torch, latent, self._cache.latent), by_rows(torch, shared, self._cache.rotated)
        both = self._linear(latent, f"{at}.kv_b_proj")
        k, v = both.view(tokens, heads, -1).split([nope, c["v_head_dim"]], -1)
        k = torch.cat([k, shared[:, None].expand(-1, heads, -1)], -1)
        scores = torch.einsum("thd,shd->hts", q.view(tokens, heads, -1), k).to(self._wide) * (nope + rope) ** -0.5
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1).to(x.dtype)
        out = torch.einsum("hts,shd->thd", weights, v).flatten(1)
        if c.get("mla_use_output_gate"):
            out = out * self._linear(x, f"{at}.g_proj").sigmoid()
        return self._linear(out, f"{at}.o_proj")

    def _kda(self, x: Any, at: str) -> Any:
        """Kimi delta attention: a state a head, decayed a key channel, mended by each token, read by its query."""
        c, torch = self._config, self._torch
        heads, dim = c["linear_num_heads"], c["linear_head_dim"]
        shape = (len(x), heads, dim)
        q, k, v = (self._convolved(x, at, part).to(self._wide).view(shape) for part in "qkv")
        q, k = (part * (part.square().sum(-1, keepdim=True) + L2_EPS).rsqrt() for part in (q, k))
        low = self._linear(self._linear(x, f"{at}.f_a_proj"), f"{at}.f_b_proj")
        shifted = (low + self._tensors[f"{at}.dt_bias"]).to(self._wide).view(shape)
        rate = self._tensors[f"{at}.A_log"].to(self._wide)[:heads].exp()[:, None]
        bound = c.get("gate_lower_bound")
        log_kept = (
            -rate * torch.nn.functional.softplus(shifted) if bound is None else bound * (rate * shifted).sigmoid()
        )
        beta = self._linear(x, f"{at}.b_proj").to(self._wide).sigmoid()
        state, rows = torch.zeros(heads, dim, dim, dtype=self._wide), []
        for t in range(len(x)):
            state = state * log_kept[t].exp()[..., None]
            missing = v[t] - torch.einsum("hk,hkv->hv", k[t], state)
            state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * missing)
            rows.append(torch.einsum("hk,hkv->hv", q[t] * dim**-0.5, state))
        if c.get("use_full_rank_gate"):
            gate = self._linear(x, f"{at}.g_proj")
        else:
            gate = self._linear(self._linear(x, f"{at}.g_a_proj"), f"{at}.g_b_proj")
        out = self._rms(torch.stack(rows).to(x.dtype), f"{at}.o_norm") * gate.view(shape).sigmoid()
        return self._linear(out.flatten(1), f"{at}.o_proj")

    def _convolved(self, x: Any, at: str, part: str) -> Any:
        """A projection, convolved over the last few tokens by channel, through SiLU."""
        weight = self._tensors[f"{at}.{part}_conv1d.weight"]
        made = self._linear(x, f"{at}.{part}_proj").T
        padded = self._torch.nn.functional.pad(made, (weight.shape[-1] - 1, 0))
        summed = self._torch.nn.functional.conv1d(padded[None], weight, groups=len(weight))[0].T
        return summed * summed.sigmoid()


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.float().numpy(), np.float32).copy()
