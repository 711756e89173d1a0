"""Whole programs: any legal one comes back from bytes and text; all else is refused, fast, as ProgramError."""

import random
import time
import tracemalloc
import zlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siltwin.isa.binary import decode_program, encode_program
from siltwin.isa.check import check_program
from siltwin.isa.errors import ProgramError
from siltwin.isa.operands import NameKind
from siltwin.isa.program import Block, Buffer, Call, Extent, Group, Issue, Program, Space
from siltwin.isa.registry import INSTRUCTIONS, parse_instruction
from siltwin.isa.text import assemble, disassemble

# A legal use of every instruction: its operands, and the types of the buffers it names ({h}: in host memory).
EXAMPLES = {
    "paged_scores": (
        "dst=%d q=%q cache=%c onto=- tables=%p q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl heads=4 kv_heads=2 "
        "first=8 dim=8 scale=0.5",
        "d:fp32[t,4,n] q:bf16[t,32] c:bf16[9,16,24] p:int32[n,3] l:int32[n] k:int32[n]",
    ),
    "paged_values": (
        "dst=%d weights=%w cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl heads=4 kv_heads=2 first=8 "
        "dim=8",
        "d:bf16[t,32] w:fp32[t,4,n] c:bf16[9,16,24] p:int32[n,3] l:int32[n] k:int32[n]",
    ),
    "masked_softmax": (
        "dst=%x x=%x q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl window=0 chunk=8 sinks=%s chosen=-",
        "x:fp32[t,4,n] l:int32[n] k:int32[n] s:fp32[4]",
    ),
    "heads_matmul": ("dst=%d a=%a w=%w heads=2 first=1 outputs=columns", "d:bf16[t,8] a:bf16[t,6] w:bf16[12,4]"),
    "multiply": ("dst=%d a=%a b=%b", "d:bf16[t,6] a:fp32[t,6] b:bf16[t,1]"),
    "map": ("dst=%x x=%x function=erf", "x:fp32[t,6]"),
    "clamp": ("dst=%d x=%x low=-7.0 high=7.0", "d:bf16[t,6] x:fp32[t,6]"),
    "fused_matmul": (
        "dst=%d total=- a=%a delta=- norm=%n w=%w bias=- eps=1e-06 plus_one=yes activation=gelu_tanh",
        "d:bf16[t,4] a:bf16[t,6] n:fp32[6] w:bf16[8,6]",
    ),
    "rope_attention": (
        "dst=%d cache=%c qkv=%x cos=%u sin=%v positions=%i slots=%j tables=%p q_lens=%l kv_lens=%k q_extent=ql "
        "kv_extent=kl rotary_dim=6 interleaved=yes heads=4 kv_heads=2 qk_dim=8 v_dim=4 scale=0.5 window=3 sinks=- "
        "chunk=0 soft_cap=0.0",
        "d:bf16[t,16] c:bf16[9,16,24] x:bf16[t,56] u:fp32[99,3] v:fp32[99,3] i:int32[t] j:int32[t] p:int32[n,3] "
        "l:int32[n] k:int32[n]",
    ),
    "matmul": ("dst=%d a=%a w=%w bias=-", "d:bf16[t,8] a:bf16[t,4] w:fp8_e4m3[8,4]"),
    "attention": (
        "dst=%d q=%q cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl heads=4 kv_heads=2 qk_dim=8 "
        "v_dim=4 scale=0.3535533905932738 window=0 sinks=%s chunk=0 soft_cap=0.0 cache_scales=- cache_group=0",
        "d:bf16[t,16] q:bf16[t,32] c:bf16[9,16,24] p:int32[n,3] l:int32[n] k:int32[n] s:fp32[4]",
    ),
    "latent_attention": (
        "dst=%d q_nope=%q q_rope=%r cache=%c w=%w tables=%p q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl heads=4 "
        "nope_dim=8 rope_dim=6 v_dim=5 scale=0.2672612419124244 chosen=%i cache_scales=- cache_rest=- cache_group=0",
        "d:bf16[t,20] q:bf16[t,32] r:bf16[t,24] c:bf16[9,16,22] w:bf16[52,16] p:int32[n,3] l:int32[n] k:int32[n] "
        "i:int32[t,7]",
    ),
    "select_keys": (
        "dst=%d q=%q weights=%w cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl heads=4 dim=8 "
        "scale=0.125",
        "d:int32[t,7] q:bf16[t,32] w:fp32[t,4] c:bf16[9,16,8] p:int32[n,3] l:int32[n] k:int32[n]",
    ),
    "partial_attention": (
        "dst=%d q=%q before=%d cache=%c tables=%p q_lens=%l kv_lens=%k visible=%v q_extent=ql kv_extent=kl seen=ql "
        "heads=4 kv_heads=2 qk_dim=8 v_dim=4 scale=0.3535533905932738 soft_cap=50.0",
        "d:fp32[t,20] q:bf16[t,32] c:bf16[n,24] p:int32[3,1] l:int32[3] k:int32[3] v:int32[t,2]",
    ),
    "partial_latent_attention": (
        "dst=%d q_nope=%q q_rope=%r before=- cache=%c w=%w tables=%p q_lens=%l kv_lens=%k visible=%v q_extent=ql "
        "kv_extent=kl seen=ql heads=4 nope_dim=8 rope_dim=6 v_dim=5 scale=0.2672612419124244",
        "d:fp32[t,24] q:bf16[t,32] r:bf16[t,24] c:bf16[9,16,22] w:bf16[52,16] p:int32[n,3] l:int32[n] k:int32[n] "
        "v:int32[t,2]",
    ),
    "merge_parts": ("dst=%d parts=%p sinks=%s heads=4 count=3", "d:bf16[t,20] p:fp32[n,24] s:bf16[4]"),
    "all_gather_rows": ("dst=%d src=%s group=g counts=ql", "d:bf16[n,4] s:bf16[t,4]"),
    "rmsnorm": ("dst=%d x=%x weight=%w eps=1e-06 plus_one=yes", "d:fp16[t,8] x:fp32[t,8] w:bf16[4]"),
    "add_rmsnorm": (
        "dst=%d x=%x delta=%y weight=%w eps=1e-05 plus_one=no",
        "d:bf16[t,8] x:bf16[t,8] y:bf16[t,8] w:bf16[8]",
    ),
    "layernorm": ("dst=%d x=%x weight=%w bias=%b eps=0.0", "d:bf16[3,8] x:bf16[3,8] w:fp32[8] b:fp32[8]"),
    "rope": (
        "x=%x[8:24] cos=%c sin=%s positions=%p head_dim=8 rotary_dim=6 interleaved=no",
        "x:bf16[t,24] c:fp32[99,3] s:fp32[99,3] p:int32[t]",
    ),
    "gated": ("dst=%d x=%x activation=gelu_tanh", "d:bf16[t,5] x:bf16[t,10]"),
    "add": ("dst=%d a=%a b=%b", "d:bf16[t,n] a:fp32[t,n] b:bf16[t,n]"),
    "scale": ("dst=%d x=%x factor=-0.1", "d:bf16[7] x:bf16[7]"),
    "cast": ("dst=%d x=%x", "d:fp8_e5m2[2,2,2] x:fp32[2,2,2]"),
    "softmax": ("dst=%d x=%x", "d:fp32[t,n] x:fp32[t,n]"),
    "argmax": ("dst=%d x=%x", "d:int32[t] x:bf16[t,100]"),
    "sample": (
        "dst=%d x=%x keys=%k temperature=0.7 top_k=40 top_p=0.95",
        "d:int32[t] x:fp32[t,100] k:int64[t]",
    ),
    "copy": ("dst=%d src=%s", "d:int4[6] s:int4[6]"),
    "gather": ("dst=%d src=%s index=%i", "d:bf16[2,4] s:bf16[t,4] i:int32[2]"),
    "scatter": ("dst=%d src=%s index=%i", "d:bf16[9,16,24] s:fp32[t,24] i:int32[t]"),
    "embedding": ("dst=%d table=%w ids=%i first=50", "d:bf16[t,4] w:bf16[50,4] i:int32[t]"),
    "host_load": ("dst=%d src=%h", "d:int32[t] h:int32[t]"),
    "host_store": ("dst=%h src=%s", "h:fp32[t,2] s:fp32[t,2]"),
    "host_load_pages": (
        "dst=%d src=%h tables=%p q_lens=%l kv_lens=%k q_extent=ql kv_extent=kl window=128 chunk=0",
        "d:int8[9,16,24] h:int8[9,16,24] p:int32[n,3] l:int32[n] k:int32[n]",
    ),
    "host_store_rows": ("dst=%h src=%s index=%i", "h:bf16[9,16,24] s:bf16[9,16,24] i:int32[t]"),
    "send": ("x=%x group=g peer=1", "x:bf16[t,4]"),
    "recv": ("x=%x group=g peer=0", "x:bf16[t,4]"),
    "recv_reduce": ("x=%x[0:2] group=g peer=2", "x:bf16[t,4]"),
    "all_reduce": ("x=%x group=g", "x:bf16[t,4]"),
    "all_gather": ("dst=%d src=%s group=g axis=columns", "d:bf16[t,10] s:bf16[t,4]"),
    "reduce_scatter": ("dst=%d src=%s group=g", "d:bf16[3,4] s:bf16[7,4]"),
    "broadcast": ("x=%x group=g root=2", "x:bf16[t,4]"),
    "barrier": ("group=g", ""),
    "reduce": ("x=%x group=g root=1", "x:bf16[t,4]"),
    "link_gather": ("dst=%d src=%s group=g root=0 axis=rows", "d:bf16[7,2] s:bf16[3,2]"),
    "link_scatter": ("dst=%d src=%s group=g root=2 axis=columns", "d:bf16[t,4] s:bf16[t,10]"),
    "all_to_all": ("dst=%d src=%s group=g send_counts=ql recv_counts=kl", "d:bf16[t,4] s:bf16[n,4]"),
    "wait": ("semaphore=s count=0", ""),
    "signal": ("semaphore=s count=2", ""),
    "halt": ("", ""),
    "sum_squares": ("dst=%d x=%x", "d:fp32[t,1] x:bf16[t,8]"),
    "rms_scale": (
        "dst=%d x=%x squares=%s weight=%w count=16 eps=1e-06 plus_one=no",
        "d:bf16[t,8] x:bf16[t,8] s:fp32[t,1] w:bf16[8]",
    ),
    "dequantise": (
        "dst=%d codes=%c scales=%s form=int4/nibbles/1x32/fp32 zeros=- divisors=- index=- phase=0",
        "d:bf16[6,70] c:uint8[6,35] s:bf16[6,3]",
    ),
    "fused_packed_matmul": (
        "dst=%d total=- a=%a delta=- norm=%n codes=%c scales=%s form=int4/nibbles/1x32/fp32 bias=- zeros=- divisors=- "
        "index=- phase=0 eps=1e-06 plus_one=no activation=none",
        "d:bf16[t,6] a:bf16[t,70] n:bf16[70] c:uint8[6,35] s:bf16[6,3]",
    ),
    "fused_packed_grouped_matmul": (
        "dst=%d a=%a codes=%c scales=%s form=mxfp4/nibbles/1x32/fp32 counts=%n extent=ql at=0 bias=%b zeros=- "
        "divisors=- index=- phase=0 activation=silu",
        "d:bf16[t,3] a:bf16[t,70] c:uint8[2,6,35] s:e8m0[2,6,3] n:int32[n] b:bf16[2,6]",
    ),
    "packed_matmul": (
        "dst=%d a=%a codes=%c scales=%s form=int4/nibbles/1x32/fp32 bias=%b zeros=- divisors=- index=- phase=0",
        "d:bf16[t,6] a:bf16[t,70] c:uint8[6,35] s:bf16[6,3] b:bf16[6]",
    ),
    "packed_grouped_matmul": (
        "dst=%d a=%a codes=%c scales=%s form=mxfp4/nibbles/1x32/fp32 counts=%n extent=ql at=0 "
        "bias=%b zeros=- divisors=- index=- phase=0",
        "d:bf16[t,6] a:bf16[t,70] c:uint8[2,6,35] s:e8m0[2,6,3] n:int32[n] b:bf16[2,6]",
    ),
    "quantised_matmul": (
        "dst=%d a=%a a_scales=%t codes=%c scales=%s form=int8/plain/1x0/fp32 bias=%b index=- phase=0",
        "d:bf16[t,6] a:int8[t,70] t:fp32[t,1] c:int8[6,70] s:fp32[6,1] b:bf16[6]",
    ),
    "quantised_grouped_matmul": (
        "dst=%d a=%a a_scales=%t codes=%c scales=%s form=fp8_e4m3/plain/128x128/fp32 counts=%n "
        "extent=ql at=0 bias=- index=- phase=0",
        "d:bf16[t,6] a:fp8_e4m3[t,130] t:fp32[t,2] c:fp8_e4m3[2,6,130] s:fp32[2,1,2] n:int32[n]",
    ),
    "quantise": (
        "dst=%d scales=%s x=%x form=int8/plain/1x0/fp32 amax=127.0 rule=nearest phase=0",
        "d:int8[t,70] s:fp32[t,1] x:bf16[t,70]",
    ),
    "grouped_quantise": (
        "dst=%d scales=%s x=%x form=fp8_e4m3/plain/1x32/fp32 amax=448.0 rule=ceil counts=%n "
        "extent=ql at=0 experts=2 phase=0",
        "d:fp8_e4m3[t,70] s:e8m0[t,3] x:bf16[t,70] n:int32[n]",
    ),
    "quantise_static": (
        "dst=%d x=%x scales=%s form=int8/plain/1x0/fp32",
        "d:int8[t,70] x:bf16[t,70] s:fp32[1,1]",
    ),
    "grouped_quantise_static": (
        "dst=%d x=%x scales=%s form=int8/plain/1x0/fp32 counts=%n extent=ql at=0 experts=2",
        "d:int8[t,70] x:bf16[t,70] s:fp32[1,1] n:int32[n]",
    ),
    "rms_unit": ("dst=%d x=%x run=4 eps=1e-06", "d:bf16[t,8] x:bf16[t,8]"),
    "position_scale": ("x=%x positions=%p step=8.0 strength=0.1", "x:bf16[t,8] p:int32[t]"),
    "soft_cap": ("dst=%d x=%x cap=30.0", "d:bf16[t,8] x:fp32[t,8]"),
    "scale_routed": (
        "x=%x slots=%s weights=%w extent=ql at=0 experts=2",
        "x:bf16[n,8] s:int32[t,3] w:fp32[t,3]",
    ),
    "sigmoid_gate": ("dst=%d x=%x gate=%g", "d:bf16[t,8] x:bf16[t,8] g:bf16[t,1]"),
    "residual_mix": (
        "dst=%d snapshots=%s x=%x weight=%w query=%q eps=1e-05",
        "d:bf16[t,8] s:bf16[t,24] x:bf16[t,8] w:bf16[8] q:bf16[8]",
    ),
    "situ_gated": ("dst=%d x=%x beta=4.0 linear_beta=25.0", "d:bf16[t,8] x:fp32[t,16]"),
    "grouped_situ_gated": (
        "dst=%d x=%x counts=%c extent=ql at=0 experts=4 beta=4.0 linear_beta=25.0",
        "d:bf16[n,8] x:bf16[n,16] c:int32[16]",
    ),
    "route": (
        "ids=%i weights=%w counts=%c logits=%l bias=%b extent=used parts=2 scoring=sigmoid groups=4 top_groups=2 "
        "group_best=2 renormalise=yes eps=1e-20 scale=2.5",
        "i:int32[t,3] w:fp32[t,3] c:int32[16] l:fp32[t,8] b:fp32[8]",
    ),
    "tally": (
        "rows=%r counts=%c arriving=%a sizes=ql sent=used received=used2 local=used3 members=3 experts=2",
        "r:int32[2] c:int32[8] a:int32[6]",
    ),
    "choose_replica": (
        "slots=%s counts=%c ids=%i table=%a extent=used parts=2 total=5 shift=1",
        "s:int32[t,3] c:int32[10] i:int32[t,3] a:int32[4,3]",
    ),
    "copy_choices": (
        "ids=%i weights=%w counts=%c chosen=%j shares=%v table=%a extent=used",
        "i:int32[t,6] w:fp32[t,6] c:int32[8] j:int32[t,3] v:fp32[t,3] a:int32[4,2]",
    ),
    "regroup": (
        "dst=%d x=%x arriving=%a local=ql members=3 experts=2 back=yes",
        "d:bf16[n,4] x:fp32[t,4] a:int32[6]",
    ),
    "permute": (
        "dst=%d slots=%s x=%x ids=%i extent=ql first=4 experts=4 part=1 parts=2",
        "d:bf16[n,4] s:int32[t,3] x:bf16[t,4] i:int32[t,3]",
    ),
    "fused_grouped_matmul": (
        "dst=%d a=%a w=%w bias=- counts=%c extent=ql at=4 activation=gelu",
        "d:bf16[n,4] a:bf16[n,4] w:bf16[4,8,4] c:int32[16]",
    ),
    "rope_latent_attention": (
        "dst=%d cache=%c latents=%x q_nope=%q q_rope=%r w=%w cos=%u sin=%v positions=%i slots=%j tables=%p q_lens=%l "
        "kv_lens=%k q_extent=ql kv_extent=kl rotary_dim=6 interleaved=yes heads=4 nope_dim=8 rope_dim=6 v_dim=5 "
        "scale=0.5",
        "d:bf16[t,20] c:bf16[9,16,22] x:bf16[t,22] q:bf16[t,32] r:bf16[t,24] w:bf16[52,16] u:fp32[99,3] v:fp32[99,3] "
        "i:int32[t] j:int32[t] p:int32[n,3] l:int32[n] k:int32[n]",
    ),
    "grouped_matmul": (
        "dst=%d a=%a w=%w bias=%b counts=%c extent=ql at=4",
        "d:bf16[n,8] a:bf16[n,4] w:bf16[4,8,4] b:bf16[4,8] c:int32[16]",
    ),
    "grouped_gated": (
        "dst=%d x=%x counts=%c extent=ql at=0 experts=4 activation=swiglu_oai",
        "d:bf16[n,8] x:bf16[n,16] c:int32[16]",
    ),
    "combine": (
        "dst=%d x=%x slots=%s weights=%w extent=ql at=0 experts=4",
        "d:fp32[t,4] x:bf16[n,4] s:int32[t,3] w:fp32[t,3]",
    ),
    "causal_conv": (
        "dst=%d x=%x weight=%w state=%s slots=%i q_lens=%q kv_lens=%k q_extent=ql kv_extent=ql starts=%y",
        "d:fp32[t,4] x:bf16[t,4] w:fp32[4,3] s:bf16[n,8] i:int32[3] q:int32[3] k:int32[3] y:int32[3]",
    ),
    "gated_delta": (
        "dst=%d q=%a k=%b v=%v decay=%g beta=%p a_log=%l dt_bias=%m state=%s slots=%i q_lens=%q "
        "kv_lens=%k q_extent=ql kv_extent=ql heads=4 key_heads=2 key_dim=3 value_dim=2 lower_bound=-5.0 "
        "starts=-",
        "d:fp32[t,8] a:bf16[t,6] b:bf16[t,6] v:bf16[t,8] g:bf16[t,12] p:bf16[t,4] l:fp32[4] m:fp32[12] "
        "s:fp32[n,24] i:int32[3] q:int32[3] k:int32[3]",
    ),
}
QUEUES = ("q", "end", "param", "dma-0", "x:y/z.1")  # names that a careless reader takes for something else


def typed(prefix: str, types: str) -> list[Buffer]:
    """Buffers of an example, under names that start with `prefix`."""
    lines = [f"buffer {prefix}{word.partition(':')[0]} : {word.partition(':')[2]} activation" for word in types.split()]
    text = "\n".join(["program p", "extent t", "extent n", *lines])
    spaces = {f"{prefix}h": Space.HOST}
    return [Buffer(b.name, b.type, spaces.get(b.name, b.space)) for b in assemble(text).buffers]


def issue_of(mnemonic: str, prefix: str, queue: str, waits: tuple[tuple[str, int], ...] = ()) -> Issue:
    operands = EXAMPLES[mnemonic][0].replace("%", f"%{prefix}")
    operands = operands.replace("=used", f"={prefix}used")  # written by one call alone
    return Issue(queue, parse_instruction(f"{mnemonic} {operands}"), waits)


def program_of(blocks: list[Block], buffers: list[Buffer], calls: list[Call]) -> Program:
    """A program of these parts; what a block writes an extent as is a parameter, bound anew by every call."""
    extents = [Extent("t"), Extent("n"), Extent("ql", True), Extent("kl", True)]
    blocks = [replace(block, extents=tuple(_written(block))) for block in blocks]
    params = {block.name: block.extents for block in blocks}
    calls = [replace(c, extents=tuple(f"call{n}/{e}" for e in params[c.block])) for n, c in enumerate(calls)]
    extents += [Extent(name, True) for call in calls for name in call.extents]
    groups, semaphores = (Group("g", 3),), ("s", "s-1")
    return Program("p", QUEUES, tuple(extents), groups, semaphores, tuple(buffers), tuple(blocks), tuple(calls))


def _written(block: Block) -> list[str]:
    return [
        getattr(issue.instruction, name)
        for issue in block.body
        for name, kind in issue.instruction.operands.items()
        if kind.names is NameKind.EXTENT_OUT
    ]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Legal programs of up to three blocks, each of up to six instructions that wait for what stands above them."""
    blocks, buffers, calls = [], [], []
    for index in range(draw(st.integers(0, 3))):
        counts: Counter[str] = Counter()
        body, params = [], []
        for position in range(draw(st.integers(0, 6))):
            mnemonic, prefix = draw(st.sampled_from(sorted(EXAMPLES.keys() - {"halt"}))), f"b{index}.{position}:"
            params += typed(prefix, EXAMPLES[mnemonic][1])
            waits = draw(st.lists(st.sampled_from([*QUEUES, "s", "s-1"]), max_size=2))
            counted = tuple((name, draw(st.integers(-(1 << 40), counts[name]))) for name in waits)
            body.append(issue_of(mnemonic, prefix, draw(st.sampled_from(QUEUES)), counted))
            counts[body[-1].queue] += 1
            counts["s"] += 2 * (mnemonic == "signal")
        blocks.append(Block(f"block{index}", tuple((b.name, b.type) for b in params), (), tuple(body)))
        buffers += params
        calls += [Call(f"block{index}", tuple(b.name for b in params))] * draw(st.integers(0, 2))
    return program_of(blocks, buffers, calls)


def small() -> Program:
    """A program with a bit of everything, of a few hundred bytes."""
    buffers = typed("x", EXAMPLES["scale"][1]) + typed("h", EXAMPLES["host_load"][1])
    body = (
        issue_of("scale", "x", "q"),
        issue_of("signal", "", "q"),
        issue_of("host_load", "h", "dma-0", (("q", 2), ("s", -3))),
    )
    block = Block("b", tuple((b.name, b.type) for b in buffers), (("l", buffers[0].type),), body)
    return program_of([block], buffers, [Call("b", tuple(b.name for b in buffers))] * 2)


def sealed(body: bytes) -> bytes:
    """Bytes whose checksum fits, whatever they say."""
    return body + zlib.crc32(body).to_bytes(4, "little")


def refused_or_same(data: bytes) -> None:
    """Bytes are refused as ProgramError, or they are exactly what their program is written as."""
    try:
        program = decode_program(data)
    except ProgramError:
        return
    assert encode_program(program) == data


def test_there_is_a_legal_example_of_every_instruction() -> None:
    assert EXAMPLES.keys() == INSTRUCTIONS.keys()
    for mnemonic in EXAMPLES:
        buffers = typed("x", EXAMPLES[mnemonic][1])
        block = Block("b", tuple((b.name, b.type) for b in buffers), (), (issue_of(mnemonic, "x", "q"),))
        check_program(program_of([block], buffers, [Call("b", tuple(b.name for b in buffers))]))


@settings(max_examples=60, deadline=None)
@given(programs())
@example(small())
def test_any_legal_program_comes_back_from_bytes_and_from_text(program: Program) -> None:
    assert decode_program(encode_program(program)) == program
    assert assemble(disassemble(program)) == program
    assert disassemble(assemble(disassemble(program))) == disassemble(program)


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-324)
@example(-0.0)
@example(1.7976931348623157e308)
def test_floats_come_back_to_the_last_bit(factor: float) -> None:
    text = disassemble(small()).replace("factor=-0.1", f"factor={factor!r}")
    program = assemble(text)
    for again in (decode_program(encode_program(program)), assemble(disassemble(program))):
        read = again.blocks[0].body[0].instruction.factor
        assert (read, str(read)) == (factor, str(factor))


def test_a_flip_of_any_byte_is_refused() -> None:
    data = encode_program(small())
    for position in range(len(data)):
        for change in (1, 0x80, 0xFF):
            broken = bytearray(data)
            broken[position] ^= change
            with pytest.raises(ProgramError):
                decode_program(bytes(broken))


def test_any_byte_changed_under_a_fitting_checksum_is_refused_or_another_program() -> None:
    body = encode_program(small())[:-4]
    for position in range(len(body)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF, body[position] ^ 1, body[position] + 1 & 0xFF):
            refused_or_same(sealed(body[:position] + bytes([value]) + body[position + 1 :]))


def test_a_cut_at_any_length_is_refused_whatever_the_checksum_says() -> None:
    data = encode_program(small())
    for length in range(len(data)):
        for broken in (data[:length], sealed(data[: min(length, len(data) - 5)])):
            with pytest.raises(ProgramError):
                decode_program(broken)
    with pytest.raises(ProgramError, match="bytes left over"):
        decode_program(sealed(data[:-4] + b"\0"))


@settings(max_examples=300, deadline=500)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for broken in (data, sealed(b"SLTW\2" + data)):
        refused_or_same(broken)


def test_random_edits_under_a_fitting_checksum_are_refused_or_another_program() -> None:
    body, dice = encode_program(small())[:-4], random.Random(5)
    for _ in range(3000):
        broken = bytearray(body)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(5, len(broken))
            broken[at : at + dice.randint(0, 2)] = dice.randbytes(dice.randint(0, 2))
        refused_or_same(sealed(bytes(broken)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it starts with b''"),
        (b"ELF\x7f" * 9, "not a siltwin program"),
        (b"SLTW", "version - is not readable"),
        (b"SLTW\x09" + bytes(9), "version 09 is not readable; this siltwin reads 2"),
        (b"SLTW\2" + bytes(9), "the checksum does not fit"),
        (sealed(b"SLTW\2" + b"\xff\xff\xff\xff\x0f"), "where at most .* is allowed"),
        (sealed(b"SLTW\2" + b"\xff" * 60), "an integer of more than 64 bits"),
        (sealed(b"SLTW\2" + b"\x80\x00"), "more bytes than it needs"),
        (sealed(b"SLTW\2" + b"\x01\x02\xff\xfe"), "not UTF-8"),
        (sealed(b"SLTW\2" + b"\x01\x7f"), "where at most .* is allowed"),
        (sealed(b"SLTW\2" + b"\x01\x01p\x05"), "string 5 of a table of 1"),
        (sealed(b"SLTW\2" + b"\x01\x01p" + bytes(7)), "the bytes end"),
        (sealed(b"SLTW\2" + b"\x01\x011" + bytes(8)), "'1' is not a legal program name"),
        (sealed(b"SLTW\2" + b"\x02\x01p\x01q" + bytes(8)), "its string table is not the one"),
    ],
)
def test_broken_bytes_are_refused_by_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        decode_program(data)


def test_lies_about_size_cost_neither_time_nor_memory() -> None:
    program = small()
    huge = Group("g", 1 << 20)
    body = encode_program(Program("p", (), (), (huge,), (), (), (), ()))[:-4]
    lies = [
        body[:-6] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + body[-3:],  # a group of 2^63 - 1 ranks
        encode_program(program)[:5] + b"\xff\xff\xff\x7f" * 50_000,
        b"SLTW\2" + b"\xe0\xa7\x12" + bytes(300_000),  # 300,000 empty strings
    ]
    tracemalloc.start()
    for lie in lies:
        with pytest.raises(ProgramError):
            decode_program(sealed(lie))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 30_000_000


def test_checking_grows_with_the_program_and_not_with_its_square() -> None:
    buffers = typed("x", EXAMPLES["scale"][1])
    params = tuple((b.name, b.type) for b in buffers)

    def seconds(count: int) -> float:
        names = tuple(f"q{i}" for i in range(count))
        body = tuple(issue_of("scale", "x", name, ((names[i - 1], 1),) if i else ()) for i, name in enumerate(names))
        program = Program("p", names, (), (), (), tuple(buffers), (Block("b", params, (), body),), ())
        start = time.perf_counter()
        check_program(program)
        return time.perf_counter() - start

    seconds(100)
    assert seconds(4000) < 20 * seconds(1000)


@settings(max_examples=200, deadline=500)
@given(st.text(max_size=120), st.integers(0, 30))
def test_garbage_in_a_text_is_refused_by_its_line(garbage: str, after: int) -> None:
    lines = disassemble(small()).splitlines()
    text = "\n".join([*lines[:after], garbage, *lines[after:]])
    try:
        assert assemble(text) == assemble(disassemble(assemble(text)))
    except ProgramError as error:
        assert str(error).startswith("line ") or "no `program NAME` line" in str(error)


def test_a_text_with_any_word_changed_names_the_line_or_is_another_program() -> None:
    text, dice = disassemble(small()), random.Random(6)
    words = [*text.split(), "", "|", "wait", "end", "9" * 5000, "-1", "call", "\u00b2", "%x[0:", "nan", "#", "[]", ":"]
    for _ in range(1500):
        lines = text.splitlines()
        number = dice.randrange(len(lines))
        pieces = lines[number].split(" ")
        pieces[dice.randrange(len(pieces))] = dice.choice(words)
        lines[number] = " ".join(pieces)
        try:
            program = assemble("\n".join(lines))
        except ProgramError as error:
            assert str(error).startswith("line ") or lines[0] != text.splitlines()[0]
        else:
            assert assemble(disassemble(program)) == program
