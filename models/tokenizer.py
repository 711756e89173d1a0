"""Tokenizer: text to ids and back, and conversations to prompts, as the checkpoint defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ..isa.errors import ConfigError
from .chat_template import Conversation, render_chats
from .config import read_json
from .fields import short
from .gguf_file import GgufFile
from .gguf_tokenizer import LLAMA3_NAMES, gguf_tokenizer, library_errors
from .paths import is_there, refuse_endless


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library with what the model's files say beside it.

    `special` holds the texts of bos_token, eos_token, ... for the chat template; `prefix_ids` and `suffix_ids` go
    around a plain prompt where the file asks for it and the library's own post-processor does not (GGUF).
    """

    backend: Any
    where: str
    eos_ids: tuple[int, ...] = ()
    special: Mapping[str, str] | None = None
    chat_template: str | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that encode can give; the model's own vocab_size may be padded beyond it."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain text, with the special tokens the model expects around it."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(f"prompt {short(text)} is no valid Unicode text (a lone surrogate)") from None
        with library_errors(f"{self.where}: tokenizer cannot encode"):
            ids = list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        return [*self.prefix_ids, *ids, *self.suffix_ids] if add_special_tokens else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of some ids; ids of a padded vocabulary that name no token give nothing."""
        wrong = [index for index in ids if not 0 <= int(index) < 2**32]
        if wrong:
            raise ConfigError(f"token id {wrong[0]} is out of range; ids run from 0 to {self.vocab_size - 1}")
        with library_errors(f"{self.where}: tokenizer cannot decode"):
            return str(self.backend.decode([int(index) for index in ids], skip_special_tokens=skip_special_tokens))

    def apply_chat_template(self, messages: Conversation, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation ({"role": ..., "content": ...} each); encode it without special tokens."""
        return self._texts([messages], add_generation_prompt)[0]

    def encode_chat(self, messages: Conversation, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation."""
        return self.encode_chats([messages], add_generation_prompt)[0]

    def encode_chats(
        self, conversations: Sequence[Conversation], add_generation_prompt: bool = True
    ) -> list[list[int]]:
        """Token ids of some conversations; all in one call, for each call starts a process for the template."""
        texts = self._texts(conversations, add_generation_prompt)
        return [self.encode(text, add_special_tokens=False) for text in texts]

    def _texts(self, conversations: Sequence[Conversation], add_generation_prompt: bool) -> list[str]:
        if self.chat_template is None:
            raise ConfigError(f"{self.where}: has no chat template; give the prompt as plain text")
        return render_chats(
            self.chat_template,
            conversations,
            self.where,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **(self.special or {}),
        )


def tokenizer_of_directory(directory: Path, eos_ids: tuple[int, ...] = ()) -> Tokenizer | None:
    """The tokenizer of a Hugging Face directory (tokenizer.json and what lies beside it), or None when it has none."""
    path = directory / "tokenizer.json"
    if not is_there(path):
        return None
    refuse_endless(path)
    with library_errors(f"{path}: no valid tokenizer"):
        backend = tokenizers.Tokenizer.from_file(str(path))
    settings_path = directory / "tokenizer_config.json"
    settings = read_json(settings_path) if is_there(settings_path) else {}
    return Tokenizer(
        backend=backend,
        where=str(settings_path if settings else path),
        eos_ids=eos_ids,
        special=_special_texts(settings),
        chat_template=_template(directory, settings),
    )


def tokenizer_of_gguf(file: GgufFile, eos_ids: tuple[int, ...] = ()) -> Tokenizer | None:
    """The tokenizer inside a GGUF file, or None when it has none."""
    metadata = file.metadata
    if "tokenizer.ggml.model" not in metadata:
        return None
    where = str(file.path)
    backend = gguf_tokenizer(metadata, where)
    tokens = metadata["tokenizer.ggml.tokens"]
    special, ids = {}, {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            continue
        if not isinstance(index, int) or not 0 <= index < len(tokens):
            raise ConfigError(f"{where}: tokenizer.ggml.{key}_token_id is {index}; there are {len(tokens)} tokens")
        special[name], ids[key] = tokens[index], index
    template = metadata.get("tokenizer.chat_template")
    # llama.cpp starts Llama 3 prompts with BOS unless the file says otherwise
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.pre") in LLAMA3_NAMES)
    return Tokenizer(
        backend=backend,
        where=where,
        eos_ids=eos_ids,
        special=special,
        chat_template=template if isinstance(template, str) else None,
        prefix_ids=(ids["bos"],) if adds_bos and "bos" in ids else (),
        suffix_ids=(ids["eos"],) if metadata.get("tokenizer.ggml.add_eos_token") and "eos" in ids else (),
    )


def _special_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and its like, each a string or an object with `content`."""
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or chat_template of tokenizer_config.json: one text, or a list with one named default."""
    path = directory / "chat_template.jinja"
    if is_there(path):
        refuse_endless(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from None
    value = settings.get("chat_template")
    if value is None or isinstance(value, str):
        return value
    named = [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
    default = [item.get("template") for item in named if item.get("name") == "default"]
    if len(default) != 1 or not isinstance(default[0], str):
        raise ConfigError(
            f"{directory / 'tokenizer_config.json'}: chat_template is {short(value)}; it must be a text, or a list of "
            'objects with name and template, one of them named "default"'
        )
    return default[0]
