"""The options of a job, and the Job that they ask for: the same for every command that is about one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .isa.errors import ConfigError

if TYPE_CHECKING:
    from .runtime.job import Job

F = TypeVar("F", bound=Callable[..., Any])

JOB_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.argument("model"),
    click.option("--scale", is_flag=True, help="A small model of MODEL's architecture, with random weights."),
    click.option("--card", metavar="NAME|FILE", help="The card (default: ascend-910b2); see `siltwin cards`."),
    click.option("--cluster", metavar="NAME|FILE", help="How cards are joined (default: the card's usual node)."),
    click.option("--layout", metavar="tp=N,pp=N,dp=N,cp=N,ep=N", help="The mesh of cards (default: one card)."),
    click.option("--placement", metavar="pp,tp|packed|0,1,..", help="Cards of ranks (default: tp within a node)."),
    click.option("--dtype", metavar="DTYPE", help="Weights and activations: float32, bfloat16, float16 (or fp32 ...)."),
    click.option("--kv-dtype", metavar="DTYPE", help="The KV cache: floats, fp8 or int8 (default: bfloat16)."),
    click.option("--kv-scales", metavar="tensor|head", help="Of an fp8 or int8 KV cache (default: tensor for fp8)."),
    click.option(
        "--offload", metavar="experts=SHARE,kv=SHARE", help="Layers whose experts or caches are in host memory."
    ),
    click.option("--kv-policy", metavar="NAME", help="Reserve it paged (the default), preallocated or virtual."),
    click.option("--kv-granule", metavar="SIZE", help="What --kv-policy virtual maps at a time (default: 2MiB)."),
    click.option("--kv-pages", type=click.Choice(["unified", "ideal"]), help="Ideal: windows free pages they left."),
    click.option(
        "--weights",
        metavar="FORMAT",
        help="Held as int8, int4, fp8, mxfp8, mxfp4, nvfp4, as-stored, dequantised.",
    ),
    click.option("--group", type=int, metavar="N", help="Weights that share a scale of --weights (int4: 128, 32)."),
    click.option(
        "--fuse", metavar="NAME,..|all", help="Fusions, as `siltwin coverage` lists them (default: dequantise-matmul)."
    ),
    click.option("--activations", metavar="FORMAT", help="Multiply codes: int8 or fp8 inputs by weights of the same."),
    click.option("--calibrate", metavar="FILE|N", help="One scale for inputs, from a file or N random tokens."),
    click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="A prompt; repeat it for a batch."),
    click.option("--prompt-ids", metavar="FILE.json", help="Prompts as token ids: a list of lists of integers."),
    click.option("--raw-prompt", is_flag=True, help="Do not put prompts into the model's chat template."),
    click.option("--max-new-tokens", type=int, metavar="N", help="The most tokens to generate for each prompt."),
    click.option("--ignore-eos", is_flag=True, help="Generate on when the model would stop."),
    click.option("--temperature", type=float, metavar="T", help="0 (the default) picks the likeliest token."),
    click.option("--top-k", type=int, metavar="K", help="Sample among the K likeliest tokens (0: all)."),
    click.option("--top-p", type=float, metavar="P", help="Sample among the likeliest tokens that hold P together."),
    click.option("--seed", type=int, metavar="S", help="Of sampling, seeded ids and random weights (default: 0)."),
    click.option("--batch", type=int, metavar="N", help="N sequences of which only sizes matter, in place of prompts."),
    click.option("--input-len", type=int, metavar="N", help="New prompt tokens of each (0 if something is cached)."),
    click.option("--output-len", type=int, metavar="N", help="Decode steps of each."),
    click.option("--cached-len", type=int, metavar="N", help="Tokens already in the KV cache of each."),
    click.option("--cp-prefill", metavar="ring|allgather", help="How prompts reach a context over cp (default: ring)."),
    click.option("--mla", metavar="absorbed|expanded|auto", help="Products of latent attention (default: the fewer)."),
    click.option("--mla-piece-tokens", type=int, metavar="N", help="Cached tokens expanded at a time (65536)."),
    click.option("--chunk-tokens", type=int, metavar="N", help="The most prompt tokens a step (default: no bound)."),
    click.option("--sequence-parallel", is_flag=True, help="Norms and residual stream on shares of the tokens."),
    click.option("--overlap", is_flag=True, help="Steps in two halves, one beside the other's exchanges."),
    click.option("--redundant-experts", type=int, metavar="N", default=0, help="Slots for copies of loaded experts."),
    click.option("--expert-loads", metavar="FILE.json", help="Loads by which experts are copied, or a saved routing."),
    click.option("--expert-room", metavar="N|full", help="Rows that may arrive at a card, over an even share."),
    click.option(
        "--routing", metavar="even|zipf:A|..", help="Without numbers: even, multinomial, zipf:A, recorded:FILE."
    ),
    click.option("--micro-batches", type=int, metavar="N", default=1, help="Steps in flight at once (default: 1)."),
    click.option(
        "--engine",
        type=click.Choice(["simpy", "compiled"]),
        help="The calendar (default: simpy, without numbers compiled).",
    ),
    click.option("--fold/--no-fold", default=True, help="Simulate equal cards once (default), or all."),
    click.option("--steady/--no-steady", default=True, help="Take over equal steps (default), or run all."),
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a number of the card."),
    click.option(
        "--strict",
        is_flag=True,
        help="Exit 5 instead of times or bytes that rest on assumed numbers or lie outside what was calibrated.",
    ),
)


def job_options(command: F) -> F:
    """The model and everything that says what it is asked, shared by run, align, limits, plan and coverage."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return command


def job_of(prompt_ids: str | None, overrides: Sequence[str], **asked: Any) -> Job:
    """The Job that the options ask for; what was not given keeps the Job's own default."""
    from .runtime.files import read_prompt_ids
    from .runtime.job import Job

    given = given_of(asked)
    if prompt_ids is not None:
        given["prompt_ids"] = read_prompt_ids(prompt_ids)
    return Job(**given, overrides=tuple(_override(text) for text in overrides))


def given_of(asked: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; what was not keeps its own default."""
    return {name: value for name, value in asked.items() if value is not None}


def _override(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(f"--set {text!r} is not key=value; write it as --set hbm.bandwidth_bytes_per_s=3.2e12")
    return key.strip(), value.strip()
