"""Published figures of whole systems: their conditions, the steps that stand for them, and where their time goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ...models.shelf import find_model
from ..job import Job
from ..run import run_job

ACCEPTED = 0.7  # of the second tokens that multi-token prediction guesses
DIES_A_PACKAGE = 2
MODULE = "multi-token prediction"
PS_PER_MS = 10**9
MS_PER_S = 1000.0


@dataclass(frozen=True)
class Published:
    """A published rate, in tokens a second and package, and the step that stands for it.

    `job` is that step on all cards; `tokens` is how many a package gains by it. `missing` says what of the real system
    the step has not.
    """

    name: str
    tokens_per_s: float
    tokens: float
    job: Job
    conditions: tuple[str, ...]
    missing: tuple[str, ...]
    source: str

    @property
    def step_ms(self) -> float:
        """The time of the step that the published rate means."""
        return MS_PER_S * self.tokens / self.tokens_per_s


@dataclass(frozen=True)
class Emulated:
    """A published rate beside the emulated step: `items` are the critical milliseconds of its parts, largest first."""

    published: Published
    items: tuple[tuple[str, float], ...]

    @property
    def step_ms(self) -> float:
        """The emulated time of the step."""
        return sum(time for _, time in self.items)

    @property
    def tokens_per_s(self) -> float:
        """The emulated rate, in tokens a second and package."""
        return MS_PER_S * self.published.tokens / self.step_ms

    @property
    def error(self) -> float:
        """By what fraction the emulated rate is above the published one."""
        return self.tokens_per_s / self.published.tokens_per_s - 1


def emulate(published: Published) -> Emulated:
    """Run the step, and the module that guesses the second token, as programs of their own on the same cards."""
    items = _parts_of(published.job)
    with _prediction_module(published.job) as module:
        items.append((MODULE, sum(time for _, time in _parts_of(module))))
    return Emulated(published, tuple(sorted(items, key=lambda item: -item[1])))


def _parts_of(job: Job) -> list[tuple[str, float]]:
    report = run_job(job).report
    return [
        (part.part, part.time_ps / PS_PER_MS)
        for phase in (report.phases.prefill, report.phases.mixed, report.phases.decode)
        if phase is not None
        for part in phase.breakdown.parts
    ]


@contextmanager
def _prediction_module(job: Job) -> Iterator[Job]:
    """The job of a model with one layer, with experts, and a head: the module for the next token but one.

    Its projection from two hidden states to one is left out, and its embedding counted, which it shares.
    """
    config = json.loads(find_model(job.model).read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        yield replace(job, model=str(path))


def _deepseek(**options: int | str) -> Job:
    """DeepSeek-R1, which has the shapes of V3, in int8 on dies of CloudMatrix384."""
    given: dict[str, object] = {
        "card": "ascend-910c",
        "cluster": "cloudmatrix-384",
        "weights": "int8",
        "activations": "int8",
        "payload": False,
        **options,
    }
    return Job("DeepSeek-V3", **given)  # type: ignore[arg-type]


def _decode(name: str, requests: int, tokens_per_s: float) -> Published:
    packages = 160
    return Published(
        name=name,
        tokens_per_s=tokens_per_s,
        tokens=requests * (1 + ACCEPTED),
        job=_deepseek(
            layout="dp=320,ep=320",
            redundant_experts=64,
            batch=requests * packages,
            cached_len=4096,
            input_len=2,
            output_len=0,
            mla="absorbed",
        ),
        conditions=(
            f"{requests} requests a package, 4,096 tokens of KV each, on 160 packages (320 dies)",
            "320 slots of experts, one a die: 256 experts and 64 copies; every expert gets as many tokens",
            "a step takes two tokens of each request, of which 1.7 are kept",
            "latent attention absorbs, its up-projection held in bf16",
        ),
        missing=(
            "steps are whole: two micro-batches would gain nothing here, where the real system gains a little",
            "shared experts stand on every die, not on 32 dies of their own",
            "no host work, no sampling of more than the greedy token, one row of logits a request and not two",
            "the module's projection of two hidden states into one, about 75 us",
        ),
        source="arXiv 2506.12708; conditions recalled",
    )


CLOUDMATRIX = (
    _decode("decode, 96 requests a package", 96, 1943.0),
    _decode("decode, 8 requests a package", 8, 538.0),
    Published(
        name="prefill, 16,384 tokens a package",
        tokens_per_s=6688.0,
        tokens=16384,
        job=_deepseek(layout="dp=32,ep=32", batch=64, input_len=4096, output_len=0, overlap=True),
        conditions=(
            "prompts of 4,096 tokens, two a die, on 16 packages (32 dies)",
            "eight experts a die, without copies; every expert gets as many tokens",
            "two micro-batches, one beside the other's exchanges",
        ),
        missing=(
            "attention is data-parallel throughout; the real system cuts prompts by sequence, heads and sequence again",
            "tokens travel to experts in bf16, not int8",
        ),
        source="arXiv 2506.12708; conditions recalled",
    ),
)
