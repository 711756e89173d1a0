"""Which sequences an alignment runs: the job's own, a text's windows, extremes, one long one, or a few seeded ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..isa.errors import ConfigError
from .align_ask import AlignAsk
from .extremes import Extreme, extremes
from .job import Job
from .prepare import checkpoint_of
from .texts import Windows, check_logits, read_windows

DEFAULT_SEQUENCES, DEFAULT_TOKENS, DEFAULT_NEW_TOKENS = 2, 24, 8
TEXT_STEP = 2048  # prompt tokens a step, where a text is long and the job does not say


@dataclass(frozen=True)
class Asked:
    """A job with its sequences, and what they are: windows of a text, or extremes."""

    job: Job
    windows: Windows | None = None
    extremes: tuple[Extreme, ...] = ()


def sequences_of(job: Job, ask: AlignAsk) -> Asked:
    """The job with the logits of every position, and with sequences where it names none.

    ConfigError where it names some and the alignment brings its own.
    """
    job = replace(job, payload=True, logits=True, ignore_eos=True)
    own = bool(job.prompts or job.prompt_ids or job.batch is not None)
    if ask.text is not None or ask.extreme:
        option = "--text" if ask.text is not None else "--extreme"
        if own:
            raise ConfigError(f"{option} brings its own sequences; leave out --prompt, --prompt-ids and --batch")
        return _brought(job, ask)
    if ask.drift is not None:
        return Asked(_long_enough(job, ask.drift, own))
    if not own:
        return Asked(replace(job, batch=DEFAULT_SEQUENCES, input_len=DEFAULT_TOKENS, output_len=DEFAULT_NEW_TOKENS - 1))
    return Asked(_with_new_tokens(job))


def _with_new_tokens(job: Job) -> Job:
    if job.batch is None and job.max_new_tokens is None:
        return replace(job, max_new_tokens=DEFAULT_NEW_TOKENS)
    return job


def _brought(job: Job, ask: AlignAsk) -> Asked:
    """A text's windows, or extreme sequences."""
    checkpoint = checkpoint_of(job)
    if ask.text is not None:
        if job.max_new_tokens is not None:
            raise ConfigError("--text is read with teacher forcing and generates nothing; leave out --max-new-tokens")
        windows = read_windows(ask.text, ask.window, ask.stride, checkpoint)
        _check_reach(ask.drift, max(map(len, windows.ids)), "the longest window")
        chunk = job.chunk_tokens or TEXT_STEP
        return Asked(replace(job, prompt_ids=windows.ids, max_new_tokens=1, chunk_tokens=chunk), windows)
    job = _with_new_tokens(job)
    assert job.max_new_tokens is not None, "set above"
    found = tuple(extremes(checkpoint, job.max_new_tokens, job.seed))
    longest = max(len(extreme.ids) for extreme in found) + job.max_new_tokens - 1
    _check_reach(ask.drift, longest, "the longest sequence")
    return Asked(replace(job, prompt_ids=tuple(extreme.ids for extreme in found)), extremes=found)


def _check_reach(drift: int | None, longest: int, what: str) -> None:
    if drift is not None and drift > longest:
        raise ConfigError(f"--drift {drift} passes {what} of {longest} tokens; give at most that")


def _long_enough(job: Job, tokens: int, own: bool) -> Job:
    """The job, with one seeded sequence of so many tokens where it has none, the last of them generated."""
    if own:
        job = _with_new_tokens(job)
        if job.batch is not None:
            sizes = (job.cached_len or 0, job.input_len or 0, job.output_len or 0)
            _check_reach(tokens, sum(sizes), "the sequences")
        elif job.prompt_ids:
            longest = max(map(len, job.prompt_ids)) + (job.max_new_tokens or 1) - 1
            _check_reach(tokens, longest, "the longest sequence")
        return job
    graph = checkpoint_of(job).graph
    if tokens > (limit := graph.max_position_embeddings):
        raise ConfigError(f"--drift {tokens} passes the model's {limit} positions (max_position_embeddings)")
    check_logits("--drift", tokens, graph.vocab_size)
    new = min(DEFAULT_NEW_TOKENS, tokens - 1)
    return replace(job, batch=1, input_len=tokens - new, output_len=new)
