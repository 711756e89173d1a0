"""The two ends of a stage: inputs, embedding or receive before its layers; head and pick, or send, after them."""

from __future__ import annotations

import numpy as np

from ...isa.dma import EMBEDDING, GATHER, HOST_LOAD, HOST_STORE
from ...isa.dtype import FP32, INT32, DType, decode, encode
from ...isa.link import ALL_GATHER, RECV, REDUCE_SCATTER, SEND
from ...isa.operands import Ref
from ...isa.program import Buffer, Space
from ...isa.scaling import SOFT_CAP
from ...isa.tensor import MATMUL
from ...isa.vector import ARGMAX, SAMPLE, SCALE
from ...models.blocks import LatentAttention, ResidualMix
from . import stream
from .builder import BlockBuilder, buffer
from .context import attention_inputs, kinds_of, state_inputs
from .residuals import first, mix, snapshots_before
from .stage import Stage
from .standing import VOCABULARY
from .weights import head_name

LOGITS_DTYPE = FP32  # as they leave the accumulator: rounding them to 16 bits would make ties of near tokens


def load_inputs(stage: Stage) -> None:
    """What the stage reads of the step's inputs comes from host memory."""
    block = stage.program.block("inputs")
    for device in _needed(stage):
        name = f"host.{device.name}"
        host = block.param(name, buffer(name, Space.HOST, device.type.dtype, *device.type.shape))
        block.emit(HOST_LOAD(dst=block.param(device.name, device), src=host))
    stage.program.call(block)


def _needed(stage: Stage) -> list[Buffer]:
    inputs = stage.inputs
    needed = [inputs.positions, inputs.slots]
    if stage.options.mode == "whole":
        needed += [inputs.tables, inputs.q_lens, inputs.kv_lens]
    else:
        needed += attention_inputs(stage.options.mode, stage.layout.cp, kinds_of(stage.graph, stage.layers))
    needed += [reach.named(one) for reach in stage.limited_reaches for one in (inputs.slots, inputs.tables)]
    if stage.has_states and stage.options.mode in ("whole", "decode"):
        needed += [inputs.states, *([] if stage.options.mode == "whole" else [inputs.q_lens, inputs.kv_lens])]
    elif stage.has_states:
        needed += state_inputs(stage.layout.cp)
    if stage.is_first:
        needed.insert(0, inputs.ids)
    if stage.is_last and stage.options.head == "pick":
        needed.append(inputs.rows)
        if stage.options.sampling.temperature > 0:
            needed.append(inputs.keys)
    return needed


def embed(stage: Stage) -> None:
    """x = the embeddings of the ids, each found on the rank that holds its row and summed over all."""
    graph = stage.graph
    table = stage.weights.vocabulary("embedding", graph.embedding, graph.vocab_size, graph.hidden_size)
    first = stage.own(VOCABULARY if stage.layout.tp > 1 else 0)
    block = stage.program.block("embed")
    x, ids = block.param("x", stage.x), block.param("ids", stage.inputs.ids)
    whole = block.local("embedded", stage.options.dtype, "tokens", graph.hidden_size) if stage.is_shared else x
    block.emit(EMBEDDING(dst=whole, table=stage.weight(block, "table", table), ids=ids, first=first))
    if stage.is_shared:
        block.emit(REDUCE_SCATTER(dst=x, src=whole, group="tp"))
    else:
        stage.all_reduce(block, x)
    if graph.embedding_scale != 1:
        block.emit(SCALE(dst=x, x=x, factor=_rounded(graph.embedding_scale, stage.options.dtype)))
    stage.program.call(block)


def _rounded(value: float, dtype: DType) -> float:
    """A factor as a tensor of `dtype` holds it."""
    return float(decode(encode(np.array([value], np.float32), dtype), dtype)[0])


def _carried(stage: Stage, block: BlockBuilder, layer: int) -> list[Ref]:
    """What a stage that begins with `layer` takes of those before: x, snapshots, and a choice that the layer shares."""
    refs = [block.param("x", stage.x)]
    if count := snapshots_before(stage, layer):
        refs.append(first(stage, block, count))
    attention = stage.graph.layers[layer].attention
    if isinstance(attention, LatentAttention) and attention.takes_choice:
        refs.append(stage.choice(block, attention.top_k))
    return refs


def receive(stage: Stage) -> None:
    """x, and what else layers of this stage need, comes from the stage before."""
    block = stage.program.block("receive")
    for carried in _carried(stage, block, stage.layers.start):
        block.emit(RECV(x=carried, group="pp", peer=stage.number - 1))
    stage.program.call(block)


def send(stage: Stage) -> None:
    """x, and what else the next stage needs, goes there."""
    block = stage.program.block("send")
    for carried in _carried(stage, block, stage.layers.stop):
        block.emit(SEND(x=carried, group="pp", peer=stage.number + 1))
    stage.program.call(block)


def head(stage: Stage) -> None:
    """Final norm and logits of the wanted rows, over the vocabulary shards, and the pick, on every rank."""
    graph, dtype = stage.graph, stage.options.dtype
    block = stage.program.block("head")
    wanted = block.local("wanted", dtype, "rows", graph.hidden_size)
    rows = block.param("rows", stage.inputs.rows)
    x = stream.gathered(stage, block, "gathered", block.param("x", stage.x))
    block.emit(GATHER(dst=wanted, src=x, index=rows))
    if graph.final_mix is not None:
        wanted = _final_mix(stage, block, graph.final_mix, wanted, rows)
    normed = block.local("normed", dtype, "rows", graph.hidden_size)
    stage.norm(block, "final_norm", graph.final_norm, normed, wanted)
    name = head_name(graph, stage.layout)
    weight = stage.weights.vocabulary(name, graph.lm_head, graph.vocab_size, graph.hidden_size)
    w = stage.weight(block, "head", weight)
    logits = buffer("logits", Space.ACTIVATION, LOGITS_DTYPE, "rows", graph.vocab_size)
    whole = block.param("logits", logits)
    if stage.layout.tp == 1:
        block.emit(MATMUL(dst=whole, a=normed, w=w, bias=None))
    else:
        shard = block.local("shard", LOGITS_DTYPE, "rows", weight.type.shape[0])
        block.emit(MATMUL(dst=shard, a=normed, w=w, bias=None))
        block.emit(ALL_GATHER(dst=whole, src=shard, group="tp", axis="columns"))
    if graph.logit_cap:
        block.emit(SOFT_CAP(dst=whole, x=whole, cap=graph.logit_cap))
    _pick(stage, block, whole)
    stage.program.call(block)


def _final_mix(stage: Stage, block: BlockBuilder, final: ResidualMix, wanted: Ref, rows: Ref) -> Ref:
    """The wanted rows of the stream, mixed with all snapshots of theirs."""
    dtype, hidden = stage.options.dtype, stage.graph.hidden_size
    count = snapshots_before(stage, stage.layers.stop)
    gathered = block.local("wanted_snapshots", dtype, "rows", count * hidden)
    snapshots = stream.gathered(stage, block, "all_snapshots", first(stage, block, count), count * hidden)
    block.emit(GATHER(dst=gathered, src=snapshots, index=rows))
    mixed = block.local("mixed_stream", dtype, "rows", hidden)
    mix(stage, block, final, "final_mix", mixed, gathered, wanted)
    return mixed


def _pick(stage: Stage, block: BlockBuilder, logits: Ref) -> None:
    sampling = stage.options.sampling
    picked = block.param("picked", buffer("picked", Space.INPUT, INT32, "rows"))
    if sampling.temperature > 0:
        keys = block.param("keys", stage.inputs.keys)
        block.emit(SAMPLE(picked, logits, keys, sampling.temperature, sampling.top_k, sampling.top_p))
    else:
        block.emit(ARGMAX(dst=picked, x=logits))
    host = block.param("host.picked", buffer("host.picked", Space.HOST, INT32, "rows"))
    block.emit(HOST_STORE(dst=host, src=picked))
