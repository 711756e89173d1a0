"""A tokenizer from GGUF metadata: byte-level BPE under the pre-tokenizer the file names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ..isa.errors import ConfigError, NotYetError

LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_CONTROL, _USER_DEFINED = 3, 4
# Patterns as published in the tokenizer.json of each vocabulary.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises into a ConfigError that begins with `where`.

    It raises bare Exception, and where its Rust code panics on a damaged file a BaseException.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ConfigError(f"{where} ({error})") from None


def gguf_tokenizer(metadata: dict[str, Any], where: str) -> tokenizers.Tokenizer:
    """The tokenizer of a GGUF file; NotYetError for vocabularies that are not byte-level BPE."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise NotYetError(f"{where}: tokenizer.ggml.model {model!r} is not supported yet; known: gpt2 (byte-level BPE)")
    tokens = _strings(metadata, "tokenizer.ggml.tokens", where)
    merges = [_merge(text, where) for text in _strings(metadata, "tokenizer.ggml.merges", where)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ConfigError(f"{where}: tokenizer.ggml.tokens holds a token twice")
    pre = metadata.get("tokenizer.ggml.pre")
    whole_words_first = pre in LLAMA3_NAMES  # a word that is a token is not merged up to
    with library_errors(f"{where}: tokenizer.ggml.merges"):
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words_first))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, where)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, tokens, metadata, where)
    return tokenizer


def _strings(metadata: dict[str, Any], key: str, where: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where}: {key} is missing or no list of strings")
    return value


def _merge(text: str, where: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    if not left or not right:
        raise ConfigError(f"{where}: tokenizer.ggml.merges holds {text!r}; a merge is two tokens and a space")
    return left, right


def _pre_tokenizer(name: Any, where: str) -> Any:
    """How text is cut before merging. A vocabulary whose cut is unknown is refused: it would give other ids."""
    if name == "smollm":  # digits one by one, then GPT-2's cut
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if name in ("gpt-2", "gpt2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in LLAMA3_NAMES or name == "qwen2":
        cut = pre_tokenizers.Split(Regex(_QWEN2 if name == "qwen2" else _LLAMA3), behavior="isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(["smollm", "gpt-2", "qwen2", *LLAMA3_NAMES])
    raise NotYetError(f"{where}: tokenizer.ggml.pre {name!r} is not supported yet; known: {known}")


def _add_special(tokenizer: Any, tokens: list[str], metadata: dict[str, Any], where: str) -> None:
    """Tokens that stay whole in text: control ones are dropped when decoding, user-defined ones are not."""
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
        raise ConfigError(f"{where}: tokenizer.ggml.token_type does not have one entry a token")
    pairs = list(zip(tokens, kinds, strict=False))
    control = [AddedToken(token, normalized=False, special=True) for token, kind in pairs if kind == _CONTROL]
    added = [AddedToken(token, normalized=False, special=False) for token, kind in pairs if kind == _USER_DEFINED]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(added)
