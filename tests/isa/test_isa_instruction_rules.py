"""The rules of each instruction: one legal form, and every way to break it with the reason that is given."""

from dataclasses import fields

import pytest

from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import Instruction
from siltwin.isa.registry import INSTRUCTIONS

LEGAL: dict[str, tuple[str, str]] = {
    "matmul": ("dst=%d a=%a w=%w bias=%b", "d: bf16[t, 8]; a: bf16[t, 4]; w: bf16[8, 4]; b: fp32[8]"),
    "attention": (
        "dst=%d q=%q cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens heads=4 kv_heads=2 "
        "qk_dim=8 v_dim=4 scale=0.5 window=0 sinks=%s chunk=0 soft_cap=0.0",
        "d: bf16[t, 16]; q: bf16[t, 32]; c: bf16[9, 16, 24]; p: int32[n, 3]; l: int32[n]; k: int32[n]; s: fp32[4]",
    ),
    "latent_attention": (
        "dst=%d q_nope=%q q_rope=%r cache=%c w=%w tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens "
        "heads=4 nope_dim=8 rope_dim=6 v_dim=5 scale=0.5",
        "d: bf16[t, 20]; q: bf16[t, 32]; r: bf16[t, 24]; c: bf16[9, 16, 22]; w: bf16[52, 16]; p: int32[n, 3]; "
        "l: int32[n]; k: int32[n]",
    ),
    "rmsnorm": ("dst=%d x=%x weight=%w eps=1e-06 plus_one=no", "d: bf16[t, 8]; x: bf16[t, 8]; w: bf16[4]"),
    "add_rmsnorm": (
        "dst=%d x=%x delta=%y weight=%w eps=1e-06 plus_one=no",
        "d: bf16[t, 8]; x: bf16[t, 8]; y: bf16[t, 8]; w: bf16[8]",
    ),
    "layernorm": ("dst=%d x=%x weight=%w bias=%b eps=0.0", "d: bf16[3, 8]; x: bf16[3, 8]; w: fp32[8]; b: fp32[8]"),
    "rope": (
        "x=%x cos=%c sin=%s positions=%p head_dim=8 rotary_dim=6 interleaved=no",
        "x: bf16[t, 16]; c: fp32[99, 3]; s: fp32[99, 3]; p: int32[t]",
    ),
    "gated": ("dst=%d x=%x activation=silu", "d: bf16[t, 5]; x: bf16[t, 10]"),
    "add": ("dst=%d a=%a b=%b", "d: bf16[t, 6]; a: fp32[t, 6]; b: bf16[t, 6]"),
    "scale": ("dst=%d x=%x factor=0.5", "d: bf16[7, 2]; x: fp32[7, 2]"),
    "cast": ("dst=%d x=%x", "d: bf16[2, 2]; x: fp32[2, 2]"),
    "softmax": ("dst=%d x=%x", "d: fp32[t, 5]; x: bf16[t, 5]"),
    "argmax": ("dst=%d x=%x", "d: int32[t]; x: bf16[t, 9]"),
    "sample": ("dst=%d x=%x keys=%k temperature=0.7 top_k=4 top_p=0.9", "d: int32[t]; x: fp32[t, 9]; k: int64[t]"),
    "copy": ("dst=%d src=%s", "d: bf16[t, 6]; s: fp32[t, 6]"),
    "gather": ("dst=%d src=%s index=%i", "d: bf16[2, 4]; s: fp32[t, 4]; i: int32[2]"),
    "scatter": ("dst=%d src=%s index=%i", "d: bf16[9, 16, 24]; s: fp32[t, 24]; i: int32[t]"),
    "embedding": ("dst=%d table=%w ids=%i first=50", "d: bf16[t, 4]; w: bf16[50, 4]; i: int32[t]"),
    "host_load": ("dst=%d src=%h", "d: int32[t]; h: int32[t] host"),
    "host_store": ("dst=%h src=%s", "h: fp32[t, 2] host; s: fp32[t, 2]"),
    "send": ("x=%x group=g peer=3", "x: bf16[t, 4]"),
    "recv": ("x=%x group=g peer=3", "x: bf16[t, 4]"),
    "recv_reduce": ("x=%x group=g peer=3", "x: bf16[t, 4]"),
    "all_reduce": ("x=%x group=g", "x: bf16[t, 4]"),
    "all_gather": ("dst=%d src=%s group=g axis=columns", "d: bf16[t, 10]; s: bf16[t, 3]"),
    "reduce_scatter": ("dst=%d src=%s group=g", "d: bf16[2, 4]; s: bf16[7, 4]"),
    "broadcast": ("x=%x group=g root=3", "x: bf16[t, 4]"),
    "barrier": ("group=g", ""),
    "reduce": ("x=%x group=g root=3", "x: bf16[t, 4]"),
    "link_gather": ("dst=%d src=%s group=g root=3 axis=columns", "d: bf16[t, 10]; s: bf16[t, 3]"),
    "link_scatter": ("dst=%d src=%s group=g root=3 axis=rows", "d: bf16[2, 4]; s: bf16[7, 4]"),
    "all_to_all": (
        "dst=%d src=%s group=g send_counts=q_lens recv_counts=kv_lens",
        "d: bf16[t, 2, 4]; s: bf16[9, 2, 4]",
    ),
    "wait": ("semaphore=q count=0", ""),
    "signal": ("semaphore=s count=1", ""),
    "halt": ("", ""),
    "sum_squares": ("dst=%d x=%x", "d: fp32[t, 1]; x: bf16[t, 8]"),
    "rms_scale": (
        "dst=%d x=%x squares=%s weight=%w count=16 eps=1e-06",
        "d: bf16[t, 8]; x: bf16[t, 8]; s: fp32[t, 1]; w: bf16[8]",
    ),
    "dequantise": (
        "dst=%d codes=%c scales=%s scheme=int4_g32",
        "d: bf16[6, 70]; c: uint8[6, 35]; s: bf16[6, 3]",
    ),
    "rms_unit": ("dst=%d x=%x run=4 eps=1e-06", "d: bf16[t, 8]; x: bf16[t, 8]"),
    "position_scale": ("x=%x positions=%p step=8.0 strength=0.1", "x: bf16[t, 8]; p: int32[t]"),
    "soft_cap": ("dst=%d x=%x cap=30.0", "d: bf16[t, 8]; x: fp32[t, 8]"),
    "scale_routed": (
        "x=%x slots=%s weights=%w extent=q_lens at=0 experts=2",
        "x: bf16[n, 8]; s: int32[t, 3]; w: fp32[t, 3]",
    ),
    "sigmoid_gate": ("dst=%d x=%x gate=%g", "d: bf16[t, 8]; x: bf16[t, 8]; g: bf16[t, 1]"),
    "route": (
        "ids=%i weights=%w counts=%c logits=%l bias=%b extent=q_lens parts=2 scoring=sigmoid groups=4 top_groups=2 "
        "group_best=2 renormalise=yes eps=0.0 scale=2.5",
        "i: int32[t, 3]; w: fp32[t, 3]; c: int32[16]; l: fp32[t, 8]; b: fp32[8]",
    ),
    "permute": (
        "dst=%d slots=%s x=%x ids=%i extent=q_lens first=4 experts=4 part=1 parts=2",
        "d: bf16[n, 4]; s: int32[t, 3]; x: bf16[t, 4]; i: int32[t, 3]",
    ),
    "grouped_matmul": (
        "dst=%d a=%a w=%w bias=%b counts=%c extent=q_lens at=4",
        "d: bf16[n, 8]; a: bf16[n, 4]; w: bf16[4, 8, 4]; b: bf16[4, 8]; c: int32[16]",
    ),
    "grouped_gated": (
        "dst=%d x=%x counts=%c extent=q_lens at=0 experts=4 activation=silu",
        "d: bf16[n, 8]; x: bf16[n, 16]; c: int32[16]",
    ),
    "combine": (
        "dst=%d x=%x slots=%s weights=%w extent=q_lens at=0 experts=4",
        "d: fp32[t, 4]; x: bf16[n, 4]; s: int32[t, 3]; w: fp32[t, 3]",
    ),
    "causal_conv": (
        "dst=%d x=%x weight=%w state=%s slots=%i q_lens=%q kv_lens=%k q_extent=q_lens kv_extent=q_lens",
        "d: fp32[t, 4]; x: bf16[t, 4]; w: fp32[4, 3]; s: bf16[n, 8]; i: int32[3]; q: int32[3]; k: int32[3]",
    ),
    "gated_delta": (
        "dst=%d q=%a k=%b v=%v decay=%g beta=%p a_log=%l dt_bias=%m state=%s slots=%i q_lens=%q "
        "kv_lens=%k q_extent=q_lens kv_extent=q_lens heads=4 key_heads=2 key_dim=3 value_dim=2 "
        "lower_bound=-5.0",
        "d: fp32[t, 8]; a: bf16[t, 6]; b: bf16[t, 6]; v: bf16[t, 8]; g: bf16[t, 12]; p: bf16[t, 4]; l: "
        "fp32[4]; m: fp32[12]; s: fp32[n, 24]; i: int32[3]; q: int32[3]; k: int32[3]",
    ),
}

ROOTED = ("broadcast", "reduce", "link_gather", "link_scatter")
BROKEN: list[tuple[str, str, str]] = [  # mnemonic, "what was -> what stands instead", the reason
    ("matmul", "w: bf16[8, 4] -> w: bf16[8]", "w must be .n, k., is bf16.8."),
    ("matmul", "a: bf16[t, 4] -> a: bf16[t, 5]", "their k differ"),
    ("matmul", "d: bf16[t, 8] -> d: bf16[t, 4]", "dst is bf16.t, 4., must be"),
    ("matmul", "d: bf16[t, 8] -> d: bf16[3, 8]", "dst is bf16.3, 8., must be"),
    ("matmul", "d: bf16[t, 8] -> d: int32[t, 8]", "%d is int32.*must hold floats"),
    ("matmul", "w: bf16[8, 4] -> w: int8[8, 4]", "%w is int8.*must hold floats"),
    ("matmul", "a: bf16[t, 4] -> a: int8[t, 4]", "%a is int8.*must hold floats"),
    ("matmul", "b: fp32[8] -> b: fp32[4]", "bias is fp32.4., must be .8."),
    ("matmul", "b: fp32[8] -> b: int32[8]", "%b is int32.*must hold floats"),
    ("matmul", "dst=%d -> dst=%e[0:8]; a: bf16[t, 4] -> e: bf16[t, 9]; a=%a -> a=%e[5:9]", "%e.0:8. overlaps %e.5:9."),
    ("attention", "heads=4 -> heads=0", "heads must be above 0"),
    ("attention", "kv_heads=2 -> kv_heads=0", "kv_heads must be above 0"),
    ("attention", "kv_heads=2 -> kv_heads=-2", "kv_heads must be above 0"),
    ("attention", "kv_heads=2 -> kv_heads=3", "heads=4 is not a multiple of kv_heads=3"),
    ("attention", "qk_dim=8 -> qk_dim=0", "qk_dim must be above 0"),
    ("attention", "v_dim=4 -> v_dim=-1", "v_dim must be above 0"),
    ("attention", "s: fp32[4] -> s: fp32[2]", "sinks is fp32.2., must be .4."),
    ("attention", "s: fp32[4] -> s: int32[4]", "%s is int32.*must hold floats"),
    ("attention", "window=0 -> window=-1", "window must be 0 .none. or more"),
    ("attention", "chunk=0 -> chunk=-1", "chunk must be 0 .none. or more"),
    ("attention", "soft_cap=0.0 -> soft_cap=-1.0", "soft_cap must be 0 .none. or more"),
    ("attention", "window=0 -> window=4; chunk=0 -> chunk=4", "window and chunk exclude each other"),
    ("rms_unit", "run=4 -> run=3", "run=3 must divide the rows"),
    ("rms_unit", "run=4 -> run=0", "run=0 must divide the rows"),
    ("rms_unit", "eps=1e-06 -> eps=-1.0", "eps must be 0 or more"),
    ("rms_unit", "d: bf16[t, 8] -> d: bf16[t, 4]", "they must have one shape"),
    ("position_scale", "p: int32[t] -> p: int64[t]", "positions is int64.*must be int32"),
    ("position_scale", "p: int32[t] -> p: int32[n]", "positions is int32.n., must be"),
    ("position_scale", "x: bf16[t, 8] -> x: int8[t, 8]", "%x is int8.*must hold floats"),
    ("position_scale", "x: bf16[t, 8] -> x: bf16[t, 2, 4]", "x is .*must be .tokens, columns."),
    ("position_scale", "step=8.0 -> step=0.0", "step must be above 0"),
    ("soft_cap", "cap=30.0 -> cap=0.0", "cap must be above 0"),
    ("soft_cap", "x: fp32[t, 8] -> x: fp32[t, 9]", "they must have one shape"),
    ("scale_routed", "w: fp32[t, 3] -> w: fp32[t, 2]", "must be .tokens, chosen."),
    ("scale_routed", "s: int32[t, 3] -> s: int64[t, 3]", "slots is int64.*must be int32"),
    ("scale_routed", "x: bf16[n, 8] -> x: bf16[n]", "x is .*must be .rows, columns."),
    ("scale_routed", "x: bf16[n, 8] -> x: int32[n, 8]", "%x is int32.*must hold floats"),
    ("scale_routed", "experts=2 -> experts=0", "experts 1 or more"),
    ("attention", "q: bf16[t, 32] -> q: bf16[t, 31]", "q is .*must be .tokens, 32."),
    ("attention", "q: bf16[t, 32] -> q: bf16[t, 1, 32]", "q is .*must be .tokens, 32."),
    ("attention", "d: bf16[t, 16] -> d: bf16[t, 32]", "dst is .*must be"),
    ("attention", "c: bf16[9, 16, 24] -> c: bf16[9, 16, 23]", "cache is .*must be .pages, page_tokens, 24."),
    ("attention", "c: bf16[9, 16, 24] -> c: bf16[144, 24]", "cache is .*must be .pages, page_tokens, 24."),
    ("attention", "c: bf16[9, 16, 24] -> c: bf16[9, 0, 24]", "page_tokens a number above 0"),
    ("attention", "c: bf16[9, 16, 24] -> c: bf16[9, t, 24]", "page_tokens a number above 0"),
    ("attention", "c: bf16[9, 16, 24] -> c: int8[9, 16, 24]", "%c is int8.*must hold floats"),
    ("attention", "l: int32[n] -> l: int32[t]", "q_lens is int32.t. and kv_lens is int32.n."),
    ("attention", "l: int32[n] -> l: int64[n]", "q_lens is int64.n. and kv_lens is int32.n."),
    ("attention", "l: int32[n] -> l: int32[n, 1]; k: int32[n] -> k: int32[n, 1]", "must be int32 .sequences."),
    ("attention", "l: int32[n] -> l: int64[n]; k: int32[n] -> k: int64[n]", "tables and lengths must be int32"),
    ("attention", "p: int32[n, 3] -> p: int32[t, 3]", "tables is .*must be int32 .sequences, pages."),
    ("attention", "p: int32[n, 3] -> p: int32[n]", "tables is .*must be int32 .sequences, pages."),
    ("attention", "p: int32[n, 3] -> p: int64[n, 3]", "tables and lengths must be int32"),
    ("attention", "q_extent=q_lens -> q_extent=t", "vector extent 't' is not declared"),
    ("attention", "kv_extent=kv_lens -> kv_extent=z", "vector extent 'z' is not declared"),
    ("latent_attention", "heads=4 -> heads=0", "heads must be above 0"),
    ("latent_attention", "nope_dim=8 -> nope_dim=0", "nope_dim must be above 0"),
    ("latent_attention", "rope_dim=6 -> rope_dim=0", "rope_dim must be above 0"),
    ("latent_attention", "v_dim=5 -> v_dim=-1", "v_dim must be above 0"),
    ("latent_attention", "q: bf16[t, 32] -> q: bf16[t, 31]", "q_nope is .*must be .'t', 32."),
    ("latent_attention", "r: bf16[t, 24] -> r: bf16[n, 24]", "q_rope is .*must be .'t', 24."),
    ("latent_attention", "d: bf16[t, 20] -> d: bf16[t, 32]", "dst is .*must be .'t', 20."),
    ("latent_attention", "c: bf16[9, 16, 22] -> c: bf16[9, 16, 6]", "cache is .*latent . 6"),
    ("latent_attention", "c: bf16[9, 16, 22] -> c: bf16[9, t, 22]", "page_tokens a number above 0"),
    ("latent_attention", "w: bf16[52, 16] -> w: bf16[52, 15]", "w is .*must be .52, 16."),
    ("latent_attention", "w: bf16[52, 16] -> w: int8[52, 16]", "%w is int8.*must hold floats"),
    ("latent_attention", "p: int32[n, 3] -> p: int32[t, 3]", "tables is .*must be int32 .sequences, pages."),
    ("latent_attention", "dst=%d -> dst=%q; v_dim=5 -> v_dim=8; 52 -> 64", "%q overlaps %q"),
    ("attention", "dst=%d -> dst=%q; v_dim=4 -> v_dim=8; 24] -> 32]", "%q overlaps %q"),
    ("rmsnorm", "eps=1e-06 -> eps=-1e-06", "eps must be 0 or more"),
    ("rmsnorm", "w: bf16[4] -> w: bf16[3]", "weight is .*must divide rows of"),
    ("rmsnorm", "w: bf16[4] -> w: bf16[0]", "weight is .*must divide rows of"),
    ("rmsnorm", "w: bf16[4] -> w: bf16[t]", "weight is .*must divide rows of"),
    ("rmsnorm", "w: bf16[4] -> w: bf16[1, 4]", "weight is .*must divide rows of"),
    ("rmsnorm", "d: bf16[t, 8] -> d: bf16[8, t]", "they must have one shape"),
    ("rmsnorm", "x: bf16[t, 8] -> x: int32[t, 8]", "%x is int32.*must hold floats"),
    ("rmsnorm", "w: bf16[4] -> w: int8[4]", "%w is int8.*must hold floats"),
    ("rmsnorm", "d: bf16[t, 8] -> d: bf16[t, 0]; x: bf16[t, 8] -> x: bf16[t, 0]", "its rows are empty"),
    ("rmsnorm", "d: bf16[t, 8] -> d: bf16[4]; x: bf16[t, 8] -> x: bf16[4]; dst=%d -> dst=%w", "%w overlaps %w"),
    ("layernorm", "d: bf16[3, 8] -> d: fp32[8]; x: bf16[3, 8] -> x: fp32[8]; dst=%d -> dst=%b", "%b overlaps %b"),
    ("add_rmsnorm", "y: bf16[t, 8] -> y: fp32[t, 8]", "x and delta must have one type"),
    ("add_rmsnorm", "y: bf16[t, 8] -> y: bf16[8]", "x and delta must have one type"),
    ("add_rmsnorm", "dst=%d -> dst=%x", "%x overlaps %x"),
    ("add_rmsnorm", "eps=1e-06 -> eps=-1.0", "eps must be 0 or more"),
    ("layernorm", "eps=0.0 -> eps=-0.1", "eps must be 0 or more"),
    ("layernorm", "w: fp32[8] -> w: fp32[4]; b: fp32[8] -> b: fp32[4]", "weight is fp32.4. and a row of x is 8"),
    ("layernorm", "b: fp32[8] -> b: fp32[4]", "bias and weight must have one shape"),
    ("layernorm", "b: fp32[8] -> b: int32[8]", "%b is int32.*must hold floats"),
    ("rope", "head_dim=8 -> head_dim=0", "head_dim must be above 0"),
    ("rope", "head_dim=8 -> head_dim=-8", "head_dim must be above 0"),
    ("rope", "head_dim=8 -> head_dim=7", "x is .*must be .tokens, heads . 7."),
    ("rope", "x: bf16[t, 16] -> x: bf16[16]", "x is .*must be .tokens, heads . 8."),
    ("rope", "x: bf16[t, 16] -> x: bf16[t, n]", "x is .*must be .tokens, heads . 8."),
    ("rope", "x: bf16[t, 16] -> x: int8[t, 16]", "%x is int8.*must hold floats"),
    ("rope", "rotary_dim=6 -> rotary_dim=0", "rotary_dim must be even, within a head"),
    ("rope", "rotary_dim=6 -> rotary_dim=5", "rotary_dim must be even, within a head"),
    ("rope", "rotary_dim=6 -> rotary_dim=10", "rotary_dim must be even, within a head"),
    ("rope", "s: fp32[99, 3] -> s: bf16[99, 3]", "must be one type"),
    ("rope", "s: fp32[99, 3] -> s: fp32[98, 3]", "must be one type"),
    ("rope", "c: fp32[99, 3] -> c: fp32[99, 6]; s: fp32[99, 3] -> s: fp32[99, 6]", "cos is .*must be .positions, 3."),
    ("rope", "c: fp32[99, 3] -> c: fp32[3]; s: fp32[99, 3] -> s: fp32[3]", "cos is .*must be .positions, 3."),
    ("rope", "p: int32[t] -> p: int64[t]", "positions is int64.t., must be int32"),
    ("rope", "p: int32[t] -> p: int32[n]", "positions is int32.n., must be int32"),
    ("gated", "x: bf16[t, 10] -> x: bf16[t, 9]", "rows of x must be two halves"),
    ("gated", "x: bf16[t, 10] -> x: bf16[t, n]", "rows of x must be two halves"),
    ("gated", "d: bf16[t, 5] -> d: bf16[t, 10]", "dst is .*must be half of"),
    ("gated", "d: bf16[t, 5] -> d: int8[t, 5]", "%d is int8.*must hold floats"),
    ("gated", "dst=%d -> dst=%x[0:5]", "%x.0:5. overlaps %x"),
    ("add", "b: bf16[t, 6] -> b: bf16[6]", "they must have one shape"),
    ("add", "a: fp32[t, 6] -> a: fp32[t, 5]", "they must have one shape"),
    ("add", "a: fp32[t, 6] -> a: int32[t, 6]", "%a is int32.*must hold floats"),
    ("add", "d: bf16[t, 6] -> d: bf16[t, 9]; dst=%d -> dst=%d[0:6]; a=%a -> a=%d[3:9]", "overlaps %d.3:9."),
    ("scale", "d: bf16[7, 2] -> d: bf16[2, 7]", "they must have one shape"),
    ("scale", "x: fp32[7, 2] -> x: int32[7, 2]", "%x is int32.*must hold floats"),
    ("cast", "d: bf16[2, 2] -> d: bf16[4]", "dst and x must have one shape"),
    ("cast", "d: bf16[2, 2] -> d: int8[2, 2]", "fp32 does not convert to int8"),
    ("cast", "x: fp32[2, 2] -> x: int64[2, 2]", "int64 does not convert to bf16"),
    ("softmax", "d: fp32[t, 5] -> d: fp32[t, 6]", "they must have one shape"),
    ("softmax", "d: fp32[t, 5] -> d: fp32[t, 0]; x: bf16[t, 5] -> x: bf16[t, 0]", "its rows are empty"),
    ("argmax", "d: int32[t] -> d: int64[t]", "dst is int64.t., must be int32"),
    ("argmax", "d: int32[t] -> d: int32[n]", "dst is int32.n., must be int32"),
    ("argmax", "x: bf16[t, 9] -> x: bf16[t]", "x is bf16.t., must be .rows, columns."),
    ("argmax", "x: bf16[t, 9] -> x: int32[t, 9]", "%x is int32.*must hold floats"),
    ("argmax", "x: bf16[t, 9] -> x: bf16[t, 0]", "its rows are empty"),
    ("sample", "k: int64[t] -> k: int32[t]", "keys is int32.t., must be int64 .t."),
    ("sample", "k: int64[t] -> k: int64[n]", "keys is int64.n., must be int64 .t."),
    ("sample", "temperature=0.7 -> temperature=0.0", "temperature > 0"),
    ("sample", "top_k=4 -> top_k=-1", "top_k >= 0"),
    ("sample", "top_p=0.9 -> top_p=0.0", "0 < top_p <= 1"),
    ("sample", "top_p=0.9 -> top_p=1.1", "0 < top_p <= 1"),
    ("copy", "d: bf16[t, 6] -> d: bf16[t, 5]", "dst and src must have one shape"),
    ("copy", "d: bf16[t, 6] -> d: int32[t, 6]", "fp32 does not convert to int32"),
    ("copy", "src=%s -> src=%d", "%d overlaps %d"),
    ("gather", "i: int32[2] -> i: int64[2]", "%i is int64.2., must be int32"),
    ("gather", "i: int32[2] -> i: int32[3]", "%i is int32.3., must have one entry a row of %d"),
    ("gather", "s: fp32[t, 4] -> s: fp32[t, 5]", "rows must be as long"),
    ("gather", "s: fp32[t, 4] -> s: int32[t, 4]", "int32 does not convert to bf16"),
    ("gather", "s: fp32[t, 4] -> s: fp32[1, t, 4]", "src is .*must be .rows, columns."),
    ("gather", "d: bf16[2, 4] -> d: bf16[2, 1, 4]", "%d is .*must be .rows, columns."),
    ("scatter", "i: int32[t] -> i: int64[t]", "%i is int64.t., must be int32"),
    ("scatter", "i: int32[t] -> i: int32[n]", "must have one entry a row of %s"),
    ("scatter", "s: fp32[t, 24] -> s: fp32[t, 23]", "rows must be as long"),
    ("scatter", "s: fp32[t, 24] -> s: fp32[t, 1, 24]", "%s is .*must be .rows, columns."),
    ("scatter", "s: fp32[t, 24] -> s: int64[t, 24]", "int64 does not convert to bf16"),
    ("embedding", "first=50 -> first=-1", "first must be 0 or more"),
    ("embedding", "i: int32[t] -> i: int64[t]", "%i is int64.t., must be int32"),
    ("embedding", "w: bf16[50, 4] -> w: bf16[50, 5]", "rows must be as long"),
    ("embedding", "w: bf16[50, 4] -> w: bf16[50, 1, 4]", "table is .*must be .rows, columns."),
    ("host_load", "d: int32[t] -> d: int64[t]", "dst and src must have one type"),
    ("host_load", "h: int32[t] host -> h: int32[t]", "h must lie in host memory"),
    ("host_store", "s: fp32[t, 2] -> s: fp32[t, 2] host", "s must lie in device memory"),
    ("host_store", "h: fp32[t, 2] host -> h: fp32[2] host", "dst and src must have one type"),
    *[(m, "peer=3 -> peer=4", "peer 4 is not in group 'g' of 4") for m in ("send", "recv", "recv_reduce")],
    *[(m, "peer=3 -> peer=-1", "peer -1 is not in group 'g' of 4") for m in ("send", "recv", "recv_reduce")],
    *[(m, "group=g -> group=t", "group 't' is not declared") for m in ("send", "recv", "all_reduce", "barrier")],
    ("recv_reduce", "x: bf16[t, 4] -> x: int32[t, 4]", "%x is int32.*must hold floats"),
    ("all_reduce", "x: bf16[t, 4] -> x: int32[t, 4]", "%x is int32.*must hold floats"),
    ("all_gather", "s: bf16[t, 3] -> s: fp32[t, 3]", "dtypes differ"),
    ("all_gather", "s: bf16[t, 3] -> s: bf16[t, 4]", "is no even share of bf16.t, 10. over 4"),
    ("all_gather", "s: bf16[t, 3] -> s: bf16[n, 3]", "is no part of bf16.t, 10. along its columns"),
    ("all_gather", "s: bf16[t, 3] -> s: bf16[t]", "their ranks differ"),
    ("all_gather", "axis=columns -> axis=rows", "is no part of bf16.t, 10. along its rows"),
    ("all_gather", "src=%s -> src=%d[0:3]", "%d overlaps %d.0:3."),
    ("reduce_scatter", "d: bf16[2, 4] -> d: bf16[3, 4]", "is no even share of bf16.7, 4. over 4"),
    ("reduce_scatter", "d: bf16[2, 4] -> d: bf16[0, 4]", "is no even share of bf16.7, 4. over 4"),
    ("reduce_scatter", "d: bf16[2, 4] -> d: bf16[2, 3]", "is no part of bf16.7, 4. along its rows"),
    ("reduce_scatter", "d: bf16[2, 4] -> d: int8[2, 4]; s: bf16[7, 4] -> s: int8[7, 4]", "must hold floats"),
    *[(m, "root=3 -> root=4", "peer 4 is not in group 'g' of 4") for m in ROOTED],
    *[(m, "root=3 -> root=-1", "peer -1 is not in group 'g' of 4") for m in ROOTED],
    ("reduce", "x: bf16[t, 4] -> x: int32[t, 4]", "%x is int32.*must hold floats"),
    ("link_gather", "s: bf16[t, 3] -> s: fp32[t, 3]", "dtypes differ"),
    ("link_gather", "s: bf16[t, 3] -> s: bf16[t, 4]", "is no even share of bf16.t, 10. over 4"),
    ("link_gather", "axis=columns -> axis=rows", "is no part of bf16.t, 10. along its rows"),
    ("link_gather", "src=%s -> src=%d[0:3]", "%d overlaps %d.0:3."),
    ("link_scatter", "d: bf16[2, 4] -> d: bf16[3, 4]", "is no even share of bf16.7, 4. over 4"),
    ("link_scatter", "d: bf16[2, 4] -> d: bf16[2, 5]", "is no part of bf16.7, 4. along its rows"),
    ("link_scatter", "axis=rows -> axis=columns", "is no part of bf16.7, 4. along its columns"),
    ("link_scatter", "src=%s -> src=%d", "is no even share of bf16.2, 4. over 4"),
    ("all_to_all", "s: bf16[9, 2, 4] -> s: fp32[9, 2, 4]", "dtypes differ"),
    ("all_to_all", "s: bf16[9, 2, 4] -> s: bf16[9, 8]", "rows of bf16.t, 2, 4. and bf16.9, 8. differ"),
    ("all_to_all", "src=%s -> src=%d", "%d overlaps %d"),
    ("all_to_all", "send_counts=q_lens -> send_counts=t", "vector extent 't' is not declared"),
    ("all_to_all", "group=g -> group=t", "group 't' is not declared"),
    ("sum_squares", "d: fp32[t, 1] -> d: fp32[t, 2]", "must be one column of"),
    ("sum_squares", "x: bf16[t, 8] -> x: int8[t, 8]", "%x is int8.*must hold floats"),
    ("rms_scale", "s: fp32[t, 1] -> s: fp32[t]", "must be one column of"),
    ("rms_scale", "w: bf16[8] -> w: bf16[4]", "weight is bf16.4. and a row of x is 8"),
    ("rms_scale", "count=16 -> count=0", "count must be above 0"),
    ("rms_scale", "dst=%d -> dst=%x[0:8]; squares=%s -> squares=%x[0:1]", "overlaps"),
    ("dequantise", "d: bf16[6, 70] -> d: int8[6, 70]", "%d is int8.*must hold floats"),
    ("dequantise", "d: bf16[6, 70] -> d: bf16[t, 70]", "must be .\\.\\.\\., out, in., all numbers"),
    ("dequantise", "c: uint8[6, 35] -> c: uint8[6, 70]", "%c is uint8.*must be uint8.6, 35. for int4_g32"),
    ("dequantise", "c: uint8[6, 35] -> c: int8[6, 35]", "%c is int8.*must be uint8.6, 35. for int4_g32"),
    ("dequantise", "s: bf16[6, 3] -> s: bf16[6, 2]", "%s is bf16.6, 2., must be bf16.6, 3."),
    ("dequantise", "scheme=int4_g32 -> scheme=mxfp4", "%s is bf16.6, 3., must be e8m0.6, 3. for mxfp4"),
    ("dequantise", "c: uint8[6, 35] -> c: bf16[6, 70]; codes=%c -> codes=%d", "%d overlaps %d"),
    ("sigmoid_gate", "g: bf16[t, 1] -> g: bf16[t, 2]", "must be one column of"),
    (
        "sigmoid_gate",
        "dst=%d -> dst=%g; g: bf16[t, 1] -> g: bf16[t, 9]; dst=%g -> dst=%g[0:8]; gate=%g -> gate=%g[7:8]",
        "overlaps",
    ),
    ("route", "i: int32[t, 3] -> i: int64[t, 3]", "ids is int64.*must be int32"),
    ("route", "i: int32[t, 3] -> i: int32[n, 3]", "ids is int32.*must be int32 .t, chosen."),
    ("route", "w: fp32[t, 3] -> w: fp32[t, 4]", "weights is fp32.*must be .t, 3."),
    ("route", "i: int32[t, 3] -> i: int32[t, 9]", "9 of 8 experts cannot be chosen"),
    (
        "route",
        "i: int32[t, 3] -> i: int32[t, 5]; w: fp32[t, 3] -> w: fp32[t, 5]",
        "5 experts cannot be chosen from 2 groups",
    ),
    ("route", "c: int32[16] -> c: int32[8]", "counts is int32.8., must be int32.16."),
    ("route", "c: int32[16] -> c: int64[16]", "counts is int64.16., must be int32.16."),
    ("route", "b: fp32[8] -> b: fp32[4]", "bias is fp32.4., must be .8."),
    ("route", "l: fp32[t, 8] -> l: fp32[t, n]", "logits is .*must be .tokens, experts."),
    ("route", "parts=2 -> parts=0", "parts must be 1 or more"),
    ("route", "groups=4 -> groups=3", "groups must divide 8 experts"),
    ("route", "top_groups=2 -> top_groups=5", "top_groups must be 1 to 4"),
    ("route", "group_best=2 -> group_best=3", "group_best must be 1 to 2"),
    ("route", "eps=0.0 -> eps=-1.0", "eps must be 0 or more"),
    ("route", "scoring=sigmoid -> scoring=selected_softmax", "it takes no bias"),
    ("route", "extent=q_lens -> extent=t", "vector extent, written 't' is not declared"),
    ("permute", "s: int32[t, 3] -> s: int32[t, 4]", "must be .tokens, chosen."),
    ("permute", "i: int32[t, 3] -> i: int64[t, 3]", "must be int32"),
    ("permute", "d: bf16[n, 4] -> d: bf16[n, 5]", "dst is bf16.n, 5. and x is"),
    ("permute", "x: bf16[t, 4] -> x: bf16[n, 4]", "dst is bf16.n, 4. and x is"),
    ("permute", "d: bf16[n, 4] -> d: int8[n, 4]", "bf16 does not convert to int8"),
    ("permute", "first=4 -> first=-1", "first must be 0 or more"),
    ("permute", "part=1 -> part=2", "part must be 0 to 1"),
    ("grouped_matmul", "w: bf16[4, 8, 4] -> w: bf16[32, 4]", "w is .*must be .experts, n, k."),
    ("grouped_matmul", "a: bf16[n, 4] -> a: bf16[n, 5]", "a is .*must be .rows, 4."),
    ("grouped_matmul", "d: bf16[n, 8] -> d: bf16[t, 8]", "dst is .*must be .n, 8."),
    ("grouped_matmul", "b: bf16[4, 8] -> b: bf16[8]", "bias is .*must be .4, 8."),
    ("grouped_matmul", "c: int32[16] -> c: int64[16]", "counts is int64.16., must be int32"),
    ("grouped_matmul", "at=4 -> at=-1", "at must be 0 or more"),
    ("grouped_matmul", "w: bf16[4, 8, 4] -> w: int8[4, 8, 4]", "%w is int8.*must hold floats"),
    ("grouped_gated", "x: bf16[n, 16] -> x: bf16[n, 15]", "must be two halves"),
    ("grouped_gated", "d: bf16[n, 8] -> d: bf16[n, 4]", "must be half of"),
    ("grouped_gated", "experts=4 -> experts=0", "experts must be 1 or more"),
    ("combine", "w: fp32[t, 3] -> w: fp32[t, 2]", "must be .tokens, chosen."),
    ("combine", "s: int32[t, 3] -> s: int64[t, 3]", "slots is int64.*must be int32"),
    ("combine", "d: fp32[t, 4] -> d: fp32[t, 5]", "dst is .* and x is"),
    ("combine", "experts=4 -> experts=0", "experts 1 or more"),
    ("causal_conv", "x: bf16[t, 4] -> x: bf16[t, 5]", "dst is fp32.t, 4. and x is bf16.t, 5."),
    ("causal_conv", "w: fp32[4, 3] -> w: fp32[5, 3]", "must be .4, kernel."),
    ("causal_conv", "w: fp32[4, 3] -> w: fp32[4, 1]", "a kernel of 1 has no state"),
    ("causal_conv", "s: bf16[n, 8] -> s: bf16[n, 9]", "must be .slots, 8."),
    ("causal_conv", "i: int32[3] -> i: int64[3]", "must be int32 .sequences."),
    ("gated_delta", "heads=4 -> heads=3", "heads=3 is not a multiple of key_heads=2"),
    ("gated_delta", "lower_bound=-5.0 -> lower_bound=5.0", "must be 0 .none. or below"),
    ("gated_delta", "g: bf16[t, 12] -> g: bf16[t, 6]", "decay has 6 columns, must have 4 or 12"),
    ("gated_delta", "v: bf16[t, 8] -> v: bf16[t, 7]", "v is .* must be .t, 8."),
    ("gated_delta", "l: fp32[4] -> l: fp32[5]", "a_log is .* must be .4."),
    ("gated_delta", "m: fp32[12] -> m: fp32[4]", "dt_bias is .* must be .12."),
    ("gated_delta", "s: fp32[n, 24] -> s: bf16[n, 24]", "must be fp32 .slots, 24."),
    ("gated_delta", "k: int32[3] -> k: int32[n]", "must be int32 .sequences."),
    ("wait", "semaphore=q -> semaphore=t", "semaphore 't' is not declared"),
    ("signal", "count=1 -> count=0", "a signal must add at least 1"),
    ("signal", "count=1 -> count=-1", "a signal must add at least 1"),
]


def build(bench: object, mnemonic: str, changes: str = "") -> None:
    operands, types = LEGAL[mnemonic]
    whole = f"{mnemonic} {operands}\n{types}"
    for change in filter(None, changes.split("; ")):
        old, _, new = change.partition(" -> ")
        assert old in whole, f"{old!r} does not stand in {whole!r}"
        whole = whole.replace(old, new, 1)
    line, _, types = whole.partition("\n")
    buffers = dict(word.split(": ", 1) for word in types.split("; ") if word)
    bench.program(line.strip(), **buffers)  # type: ignore[attr-defined]


def test_every_instruction_has_a_legal_form_here() -> None:
    assert LEGAL.keys() == INSTRUCTIONS.keys()


@pytest.mark.parametrize("mnemonic", LEGAL)
def test_the_legal_form_is_accepted(bench: object, mnemonic: str) -> None:
    build(bench, mnemonic)


@pytest.mark.parametrize(("mnemonic", "changes", "message"), BROKEN)
def test_a_broken_rule_is_refused_with_its_reason(bench: object, mnemonic: str, changes: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        build(bench, mnemonic, changes)


@pytest.mark.parametrize("mnemonic", [m for m, cls in INSTRUCTIONS.items() if fields(cls)])
def test_every_buffer_that_is_not_there_is_named(bench: object, mnemonic: str) -> None:
    cls: type[Instruction] = INSTRUCTIONS[mnemonic]
    for name, kind in cls.operands.items():
        if kind.role:
            operand = next(word for word in LEGAL[mnemonic][0].split() if word.startswith(f"{name}="))
            with pytest.raises(ProgramError, match="no buffer 'missing'"):
                build(bench, mnemonic, f"{operand} -> {name}=%missing")


def test_in_place_is_legal_where_an_element_depends_on_itself_alone(bench: object) -> None:
    for mnemonic, change in {
        "add": "dst=%d -> dst=%a",
        "scale": "dst=%d -> dst=%x",
        "softmax": "dst=%d -> dst=%x",
    }.items():
        build(bench, mnemonic, change)
    build(bench, "rmsnorm", "dst=%d -> dst=%x")
