"""The one reader of Hugging Face's config.json, in the spelling of transformers 4 and 5."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..isa.errors import ConfigError, UnsupportedError
from .family import Family
from .fields import Fields, cut, short
from .missing import what_is_missing
from .model_config import ModelConfig
from .packs.quantization_config import read_quantization
from .paths import refuse_endless
from .registry import known_families
from .wrappers import text_part

__all__ = ["ModelConfig", "family_of", "read_config", "no_constant", "no_repeats", "read_json"]

LARGEST_JSON_BYTES = 256 * 2**20

# Keys that leave the numbers of a forward pass alone: bookkeeping, training, and defaults of `generate`.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path
    _source attn_implementation attention_dropout auto_map bad_words_ids begin_suppress_tokens
    cache_implementation classifier_dropout custom_pipelines decoder_start_token_id diversity_penalty do_sample
    early_stopping embd_pdrop encoder_no_repeat_ngram_size exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id hidden_dropout id2label initializer_range
    is_llama_config keys_to_ignore_at_inference label2id language length_penalty max_length min_length
    mlp_dropout model_max_length no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix
    problem_type remove_invalid_values repetition_penalty resid_pdrop residual_dropout return_dict
    return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tokenizer_class top_k top_p torchscript transformers.js_config transformers_version typical_p
    unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_flash_attn
    """.split()
)


def read_config(
    source: str | Path | Mapping[str, Any], name: str | None = None, where: str | None = None
) -> ModelConfig:
    """The ModelConfig of a config.json (a file, or a directory that holds one) or of its dictionary.

    `name` is for display (default: the directory or file), `where` stands in errors (default: the path). Raises
    ConfigError for damaged or inconsistent values, UnsupportedError for mathematics siltwin does not do, each
    naming the file and the key.
    """
    if isinstance(source, Mapping):
        raw, where, name = dict(source), where or "config", name or "model"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        raw, where = read_json(path), where or str(path)
        name = name or (path.resolve().parent.name if path.name == "config.json" else path.stem)
    raw = text_part(raw, where, HARMLESS)
    family = _known(raw, where)
    raw["model_type"] = family.name
    fields = Fields(raw, where)
    config = family.read(fields, name)
    for key in ("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"):
        fields.neutral(key, False, None)
    for key in ("chunk_size_feed_forward", "pruned_heads", "per_layer_config"):
        fields.neutral(key, None, 0, {}, [])
    fields.take("quantization_config", None, record=False)
    fields.neutral("is_decoder", True, False, None)  # a causal language model either way
    fields.refuse_the_rest(HARMLESS, f"the {family.name} family")
    packed = raw.get("quantization_config") != {}
    return replace(config, quantization=read_quantization(raw, where) if packed else None)


def family_of(config: ModelConfig) -> Family:
    """The family that read this config."""
    return known_families()[config.family]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, refusing what JSON allows and a model cannot mean: NaN, Infinity and repeated keys."""
    try:
        refuse_endless(path)
        if path.stat().st_size > LARGEST_JSON_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes is no JSON file of a model")
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant, object_pairs_hook=no_repeats)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds a JSON {type(value).__name__}; it must be an object")
    return value


def no_constant(text: str) -> Any:
    """Refuse NaN and Infinity, which Python's JSON reader takes (a hook for json.loads)."""
    raise ValueError(f"{text} is not a number a model can use")


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different (a hook for json.loads)."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _known(raw: Mapping[str, Any], where: str) -> Family:
    families = known_families()
    model_type = raw.get("model_type")
    for family in families.values():
        if family.claims(raw):
            return family
    if not isinstance(model_type, str):
        raise ConfigError(f"{where}: model_type is {short(model_type)}; it must be one of {', '.join(families)}")
    if model_type not in families:
        raise UnsupportedError(
            f"{cut(model_type)} is not supported: {what_is_missing(raw)}; known: {', '.join(families)} ({where})"
        )
    return families[model_type]
