"""From a Job to what can run: checkpoint opened, card changed and placed, sequences tokenised, all of it checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..emulator.spec import CardSpec, load_card, override
from ..interconnect.choices import Choice
from ..interconnect.cluster import ClusterSpec, load_cluster
from ..isa.dtype import BF16, DType, parse_dtype
from ..isa.errors import ConfigError, NotYetError
from ..models.blocks import LatentAttention
from ..models.checkpoint import Checkpoint, open_checkpoint
from ..models.graph import ropes
from ..models.scale import scaled_checkpoint
from .alerts import parse_alert
from .expert_room import parse_room
from .fabric.sizes import parse_size
from .input_scales import calibration_ids
from .job import MOST_TOKENS, Job
from .kv_policy import kv_policy_of
from .layout import Layout, check_layout, parse_layout
from .layout_warnings import layout_warnings
from .lowering.latent_order import ORDERS, LatentOrder
from .lowering.passes.cache import CodedCache
from .lowering.passes.fuse import parse_fusions
from .lowering.stage import Sampling
from .node import node_of
from .offload import offload_of
from .placement import place, straddling
from .plan import JobPlan, Lengths
from .quantised_weights import activations_of, holding_of, weights_warnings
from .recorded import routing_of
from .replicas import placements_of, read_loads
from .rests_on import learned_off, settings_without_effect, user_set
from .routing import has_experts
from .scheduler import Request

DEFAULT_NEW_TOKENS = 128
CODED = ("fp8_e4m3", "fp8_e5m2", "int8")
RUNNABLE = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Prepared:
    """A job ready to run: `ids` are the prompt tokens of each sequence, `cached` those that stand in its cache."""

    job: Job
    checkpoint: Checkpoint
    plan: JobPlan
    cluster: ClusterSpec
    cluster_cards: int
    placement: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    cached: tuple[tuple[int, ...], ...]
    stop_ids: frozenset[int]
    warnings: tuple[str, ...] = field(default=())

    def choose(
        self, collective: str, size: int, ranks: Sequence[int], num_bytes: int, dtype: DType | None = None
    ) -> Choice:
        """The algorithm and protocol of a collective between ranks of the layout, where they stand on the cluster."""
        return self.cluster.choose(collective, size, [self.placement[rank] for rank in ranks], num_bytes, dtype)

    def requests(self) -> list[Request]:
        """Fresh requests with their tokens."""
        return [
            Request(
                index,
                lengths.prompt_len,
                lengths.max_new_tokens,
                lengths.cached_len,
                prompt=self.ids[index],
                stop_ids=self.stop_ids,
            )
            for index, lengths in enumerate(self.plan.sequences)
        ]


def prepare(
    job: Job, *, any_dtype: bool = False, checkpoint: Checkpoint | None = None, card: CardSpec | None = None
) -> Prepared:
    """Open and check everything that a job names; ConfigError and its kin say what is wrong with it.

    With `any_dtype` whoever asked finds out himself what the card's units do not compute in. `checkpoint` and `card`
    are the job's model and card where they are at hand already.
    """
    for text in job.alerts:
        parse_alert(text)
    card = card or card_of(job)
    layout = replace(parse_layout(job.layout), redundant=job.redundant_experts)
    checkpoint = checkpoint or checkpoint_of(job)
    given = load_cluster(job.cluster) if job.cluster is not None else None
    check_layout(layout, checkpoint.graph, given.cards if given else None)
    if job.save_routing and not has_experts(checkpoint.graph):
        raise ConfigError(f"--save-routing: {checkpoint.graph.name} has no experts; leave it out")
    if job.kv_pages == "ideal" and job.compare_kv:
        raise NotYetError("--compare-kv of --kv-pages ideal comes with a later version; leave one of them out")
    if job.kv_pages == "ideal" and layout.cp > 1:
        raise NotYetError(f"layout {layout}: --kv-pages ideal with cp comes with a later version; leave it unified")
    if job.overlap and layout.cp > 1:
        raise NotYetError(
            f"layout {layout}: --overlap with cp comes with a later version: parts of a context are not yet dealt into "
            "halves; leave one of them out"
        )
    cluster = cluster_of(card, layout.cards, given)
    placement = place(layout, cluster.topology(), job.placement)
    dtype, kv_dtype = _dtypes(job, checkpoint, None if any_dtype else card)
    ids, cached, lengths = _sequences(job, checkpoint)
    loads = read_loads(job.expert_loads, checkpoint.graph) if job.expert_loads is not None else {}
    plan = JobPlan(
        graph=checkpoint.graph,
        layout=layout,
        card=card,
        dtype=dtype,
        kv_dtype=kv_dtype,
        sequences=lengths,
        chunk_tokens=job.chunk_tokens,
        micro_batches=job.micro_batches,
        sequence_parallel=job.sequence_parallel,
        overlap=job.overlap,
        placements=placements_of(checkpoint.graph, layout, loads),
        sampling=Sampling(job.temperature, job.top_k, job.top_p),
        all_logits=job.logits,
        cp_prefill="allgather" if job.cp_prefill == "allgather" else "ring",
        holding=(holding := holding_of(job.weights, job.group, checkpoint)),
        cache=coded_cache_of(kv_dtype, job.kv_scales, layout),
        activations=activations_of(job.activations, job.calibrate is not None, holding, card),
        calibration=() if job.calibrate is None else calibration_ids(job.calibrate, checkpoint, job.seed),
        fuse=parse_fusions(job.fuse),
        kv_pages="ideal" if job.kv_pages == "ideal" else "unified",
        kv_policy=kv_policy_of(
            job.kv_policy,
            None if job.kv_granule is None else parse_size(job.kv_granule, "--kv-granule", "write 2MiB"),
            job.kv_pages,
        ),
        routing=None if job.payload else routing_of(job, checkpoint.graph),
        expert_room=parse_room(job.expert_room),
        latent=latent_order_of(job),
        offload=offload_of(job, checkpoint.graph, layout),
    )
    ignores_stop = job.ignore_eos or job.batch is not None
    return Prepared(
        job=job,
        checkpoint=checkpoint,
        plan=plan,
        cluster=cluster,
        cluster_cards=given.cards if given else layout.cards,
        placement=placement,
        ids=ids,
        cached=cached,
        stop_ids=frozenset() if ignores_stop else _stop_ids(checkpoint),
        warnings=(
            *checkpoint.warnings,
            *weights_warnings(plan, checkpoint),
            *_warnings(plan, cluster, placement, given is not None),
        ),
    )


def card_of(job: Job) -> CardSpec:
    """The card of a job, with the numbers that it changes."""
    return override(load_card(job.card), dict(job.overrides)) if job.overrides else load_card(job.card)


def checkpoint_of(job: Job) -> Checkpoint:
    """The model of a job, or a small one of its architecture."""
    return scaled_checkpoint(job.model, job.seed) if job.scale else open_checkpoint(job.model, job.seed)


def _stop_ids(checkpoint: Checkpoint) -> frozenset[int]:
    ids = set(checkpoint.config.eos_ids)
    if checkpoint.tokenizer is not None:
        ids |= set(checkpoint.tokenizer.eos_ids)
    return frozenset(ids)


def cluster_of(card: CardSpec, cards: int, given: ClusterSpec | None) -> ClusterSpec:
    """The links between a layout's cards: the named cluster's, or those of the card's usual node.

    Cards of a named cluster that the layout leaves over stay dark; their links stay in place.
    """
    return node_of(card, cards) if given is None else given


def _dtypes(job: Job, checkpoint: Checkpoint, card: CardSpec | None) -> tuple[DType, DType]:
    dtype = parse_dtype(job.dtype) if job.dtype is not None else checkpoint.config.dtype
    kv_dtype = parse_dtype(job.kv_dtype) if job.kv_dtype is not None else BF16
    for option, value, known in (("--dtype", dtype, RUNNABLE), ("--kv-dtype", kv_dtype, (*RUNNABLE, *CODED))):
        if value.name not in known:
            raise NotYetError(f"{option} {value.name} comes with a later version; use one of {', '.join(known)}")
    if card is not None and dtype.name not in card.tensor.rate:
        rates = ", ".join(card.tensor.rate)
        raise ConfigError(f"{card.name} has no tensor rate for --dtype {dtype.name}; it has {rates}")
    return dtype, kv_dtype


def latent_order_of(job: Job) -> LatentOrder:
    """How latent attention takes its products: by each sequence's lengths unless the job says."""
    order = next((order for order in ORDERS if order == job.mla), LatentOrder.order)
    return LatentOrder(order, job.mla_piece_tokens or LatentOrder.piece_tokens)


def coded_cache_of(kv_dtype: DType, scales: str | None, layout: Layout) -> CodedCache | None:
    """How caches hold codes: fp8 without scales unless they are asked for by head, int8 by head."""
    if kv_dtype.name not in CODED:
        if scales is not None:
            raise ConfigError(f"--kv-scales are those of a cache in {', '.join(CODED)}; --kv-dtype is {kv_dtype}")
        return None
    if scales not in (None, "tensor", "head"):
        raise ConfigError(f"--kv-scales {scales!r} is none; choose head (of each token) or tensor")
    if scales == "tensor" and not kv_dtype.is_float:
        raise ConfigError(f"--kv-scales tensor leaves {kv_dtype} without scales; use head")
    if layout.cp > 1:
        raise NotYetError(
            f"--kv-dtype {kv_dtype.name} with cp={layout.cp}: contexts that lie over several cards are not yet read "
            "in codes; use --kv-dtype bf16, or leave cp at 1"
        )
    return CodedCache(kv_dtype, scales == "head" or not kv_dtype.is_float)


def _warnings(plan: JobPlan, cluster: ClusterSpec, placement: tuple[int, ...], named: bool) -> list[str]:
    warnings = [
        f"{path}={user_set(plan.card)[path]} was set and changes no figure of this job"
        for path in settings_without_effect(plan.card, plan.layout.cards, named)
    ]
    warnings += learned_off(plan.card)
    if plan.kv_dtype.bits < plan.dtype.bits:
        warnings.append(
            f"the KV cache is {plan.kv_dtype.name} while the model computes in {plan.dtype.name}; "
            f"for an exact comparison give --kv-dtype {plan.dtype.name}"
        )
    if plan.kv_pages == "ideal" and not plan.limited_reaches:
        warnings.append("--kv-pages ideal changes nothing: no layer of this model has a window or chunks")
    if plan.latent != LatentOrder() and not any(
        isinstance(layer.attention, LatentAttention) for layer in plan.graph.layers
    ):
        warnings.append("--mla changes nothing: no layer of this model has latent attention")
    if apart := straddling(plan.layout, placement, cluster.topology()):
        warnings.append(apart)
    sampling = plan.sampling
    if not sampling.temperature and (sampling.top_k or sampling.top_p < 1):
        warnings.append("--top-k and --top-p change nothing at --temperature 0, which picks the likeliest token")
    warnings += layout_warnings(plan)
    return warnings + _longrope_warnings(plan) + [f"cluster {cluster.name}: {note}" for note in cluster.notes]


def _longrope_warnings(plan: JobPlan) -> list[str]:
    """Where one set of longrope's factors for the whole job is not what transformers would take for each sequence."""
    rope = next((rope for rope in ropes(plan.graph) if rope.scaling.rule == "longrope"), None)
    if rope is None:
        return []
    original, requests = rope.scaling.original_max_position_embeddings, plan.requests()
    longest = max(request.most_kv_tokens for request in requests)
    if longest <= original or min(request.cached_len + request.prompt_len for request in requests) > original:
        return []
    return [
        f"longrope: the longest sequence reaches {longest} tokens, past the original {original}, so every sequence of "
        f"the job uses the long factors from its first token on; transformers uses the short ones up to {original}"
    ]


Sequences = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[Lengths, ...]]


def _sequences(job: Job, checkpoint: Checkpoint) -> Sequences:
    if job.batch is not None:
        return _sized(job, checkpoint)
    if not job.prompts and not job.prompt_ids:
        raise ConfigError("nothing to run: give --prompt TEXT, --prompt-ids FILE.json, or --batch N with --input-len")
    ids = job.prompt_ids or _tokenise(job, checkpoint)
    limit = checkpoint.graph.max_position_embeddings
    for index, prompt in enumerate(ids):
        _check_ids(index, prompt, checkpoint)
        if len(prompt) > limit:
            raise ConfigError(
                f"prompt {index} has {len(prompt)} tokens and {checkpoint.config.name} takes at most {limit} "
                f"(max_position_embeddings); shorten it"
            )
    new = [_new_tokens(job, index, len(prompt), limit) for index, prompt in enumerate(ids)]
    lengths = tuple(Lengths(len(prompt), count) for prompt, count in zip(ids, new, strict=True))
    return ids, ((),) * len(ids), lengths


def _new_tokens(job: Job, index: int, prompt_len: int, limit: int) -> int:
    """Tokens to generate: as asked, or as many as the default and the model's positions allow."""
    room = limit - prompt_len + 1
    if job.max_new_tokens is None:
        return min(DEFAULT_NEW_TOKENS, room)
    if job.max_new_tokens > room:
        raise ConfigError(
            f"prompt {index} of {prompt_len} tokens and --max-new-tokens {job.max_new_tokens} pass the model's "
            f"{limit} positions (max_position_embeddings); at most {room} new tokens fit"
        )
    return job.max_new_tokens


def _tokenise(job: Job, checkpoint: Checkpoint) -> tuple[tuple[int, ...], ...]:
    if not all(prompt.strip() for prompt in job.prompts):
        raise ConfigError("--prompt is empty; give some text")
    tokenizer = checkpoint.require_tokenizer()
    if tokenizer.chat_template is None or job.raw_prompt:
        return tuple(tuple(tokenizer.encode(prompt)) for prompt in job.prompts)
    chats = tokenizer.encode_chats([[{"role": "user", "content": prompt}] for prompt in job.prompts])
    return tuple(map(tuple, chats))


def _check_ids(index: int, ids: tuple[int, ...], checkpoint: Checkpoint) -> None:
    vocab = checkpoint.graph.vocab_size
    if not ids:
        raise ConfigError(f"prompt {index} is empty; every prompt needs at least one token")
    wrong = [token for token in ids if not 0 <= token < vocab]
    if wrong:
        raise ConfigError(f"prompt {index}: token id {wrong[0]} is outside the vocabulary, 0 to {vocab - 1}")


def _sized(job: Job, checkpoint: Checkpoint) -> Sequences:
    """Sequences of which only sizes matter: seeded ids, so that the payload may still be on."""
    assert job.batch is not None
    prompt_len, cached_len, steps = job.input_len or 0, job.cached_len or 0, job.output_len or 0
    if not prompt_len and not cached_len:
        raise ConfigError("--batch needs --input-len (new prompt tokens), --cached-len, or both")
    if not prompt_len and not steps:
        raise ConfigError("--input-len 0 and --output-len 0 leave nothing to do; ask for decode steps or prompt tokens")
    lengths = Lengths(prompt_len, steps + bool(prompt_len), cached_len)
    limit = checkpoint.graph.max_position_embeddings
    if cached_len + prompt_len + steps > limit:
        raise ConfigError(
            f"--cached-len {cached_len} + --input-len {prompt_len} + --output-len {steps} pass the model's "
            f"{limit} positions (max_position_embeddings)"
        )
    tokens = job.batch * (prompt_len + cached_len)
    if job.payload and tokens > MOST_TOKENS:
        raise ConfigError(f"{tokens} tokens are too many to compute (at most {MOST_TOKENS}); add --no-payload")
    draw = np.random.default_rng(job.seed)
    vocab = checkpoint.graph.vocab_size

    def ids(count: int) -> tuple[tuple[int, ...], ...]:
        if not job.payload:
            return ((),) * (job.batch or 0)
        return tuple(tuple(map(int, draw.integers(0, vocab, count))) for _ in range(job.batch or 0))

    return ids(max(1, prompt_len)), ids(cached_len), (lengths,) * job.batch
