"""A Job is checked before anything is built, whoever asks for it: the command line or Python."""

from typing import Any

import numpy as np
import pytest

from siltwin import Twin
from siltwin.emulator.spec import load_card, override
from siltwin.isa.errors import ConfigError
from siltwin.runtime.job import MOST_SEQUENCES, Job
from siltwin.runtime.prepare import cluster_of, prepare

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a bool for a number": ({"batch": True}, "batch=True is a bool; it must be int"),
    "a number for a bool": ({"payload": 1}, "payload=1 is a int; it must be bool"),
    "a text for a number": ({"batch": "3"}, "batch='3' is a str; it must be int"),
    "a float for an int": ({"top_k": 1.0}, "top_k=1.0 is a float"),
    "no model": ({"model": None}, "model=None is a NoneType"),
    "a lone text": ({"prompts": "hi"}, "prompts='hi' is a str"),
    "a number for a text": ({"prompts": (3,)}, r"prompts\[0\]=3 is a int; it must be a text"),
    "flat ids": ({"prompt_ids": (1, 2)}, r"prompt_ids\[0\]=1 is a int; it must be a tuple of token ids"),
    "a float among ids": (
        {"prompt_ids": ((1, 2.0),)},
        r"prompt_ids\[0\]\[1\]=2.0 is a float; it must be a whole number",
    ),
    "a bool among ids": ({"prompt_ids": ((True,),)}, r"prompt_ids\[0\]\[0\]=True is a bool"),
    "an empty dtype": ({"dtype": ""}, "--dtype is empty; name one, or leave the option out"),
    "an empty cluster": ({"cluster": " "}, "--cluster is empty"),
    "an empty kv dtype": ({"kv_dtype": ""}, "--kv-dtype is empty"),
    "a key set twice": ({"overrides": (("clock_hz", "1"), ("clock_hz", "2"))}, "--set clock_hz is given 2 times"),
    "too many sequences": ({"batch": MOST_SEQUENCES + 1, "input_len": 1}, "--batch=65537 must be from 1 to 65536"),
    "too many prompts": ({"prompts": ("x",) * (MOST_SEQUENCES + 1)}, "the number of prompts=65537 must be from 0"),
    "a lone key": ({"overrides": (("clock_hz",),)}, r"overrides hold \('clock_hz',\); each is a .key, value. of two"),
    "a number as a setting": ({"overrides": (("clock_hz", 3),)}, r"overrides hold \('clock_hz', 3\)"),
    "an endless temperature": ({"temperature": float("inf")}, "must be 0 .greedy. or a positive, finite number"),
}


@pytest.mark.parametrize(("asked", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_in_a_job_is_named(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Job(**{"model": "tiny", **asked})


def test_whole_numbers_may_stand_for_floats() -> None:
    job = Job("tiny", temperature=1, top_p=1)
    assert (job.temperature, job.top_p) == (1, 1)


@pytest.mark.parametrize("prompts", [5, [1, 2, 3], {"a": 1}, b"hi", [b"hi"], [["a"]], [None]])
def test_prompts_of_another_form_are_refused_by_the_twin(prompts: Any) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        Twin("smollm2-135m").generate(prompts)


def test_an_option_that_no_job_has_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="a job has no option 'max_tokens'; options: model, card"):
        Twin("smollm2-135m").generate("hi", max_tokens=3)


@pytest.mark.parametrize("settings", [[1], "clock_hz=1", 3])
def test_settings_are_a_mapping(settings: Any) -> None:
    with pytest.raises(ConfigError, match="must map dotted card fields to values"):
        Twin("smollm2-135m", settings=settings)


def test_numpy_numbers_are_numbers() -> None:
    options = {"seed": np.int64(3), "max_new_tokens": np.int32(1), "temperature": np.float32(0.5)}
    assert Twin("SmolLM2-135M", payload=False).generate([[1]], **options).oom is None


def test_numpy_ids_are_ids() -> None:
    report = Twin("SmolLM2-135M").generate(np.array([[1, 2, 3]]), max_new_tokens=1, payload=False)
    assert [request.prompt_tokens for request in report.requests] == [3]


def test_more_tokens_than_can_be_drawn_want_no_payload() -> None:
    sizes = {"batch": MOST_SEQUENCES, "input_len": 257}
    with pytest.raises(ConfigError, match="16842752 tokens are too many to compute .*; add --no-payload"):
        prepare(Job("SmolLM2-135M", **sizes))
    assert len(prepare(Job("SmolLM2-135M", payload=False, **sizes)).ids) == MOST_SEQUENCES


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("node.ports_to_peer", "1000000", "bandwidth_bytes_per_s: must be from 1 to"),
        ("link.latency_ps", "1e15", "latency_ps: must be from 0 to"),
    ],
)
def test_links_beyond_all_wires_are_refused(key: str, value: str, message: str) -> None:
    card = override(load_card("ascend-910b2"), {key: value})
    with pytest.raises(ConfigError, match=f"the links of ascend-910b2 .*{message}"):
        cluster_of(card, 2, None)


def test_sampling_bounds_that_change_nothing_are_told() -> None:
    def told(**sampling: Any) -> bool:
        job = Job("SmolLM2-135M", prompt_ids=((1,),), payload=False, **sampling)
        return any("change nothing at --temperature 0" in warning for warning in prepare(job).warnings)

    assert told(top_k=5) and told(top_p=0.5)
    assert not told() and not told(top_k=5, temperature=0.5)


def test_a_scaled_job_runs_a_small_model_of_its_own_seed() -> None:
    options = {"layout": "dp=2,tp=2,pp=2,ep=4", "prompt_ids": ((1, 2, 3),), "max_new_tokens": 1, "scale": True}
    graphs = [prepare(Job("Kimi-K3", seed=seed, **options)).plan.graph for seed in (0, 0, 5)]
    assert graphs[0] == graphs[1] != graphs[2]
    assert graphs[0].family == "kimi_k3" and graphs[0].hidden_size < 200
