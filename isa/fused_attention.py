"""Fused attention: the rotation of queries and keys, what is written to the cache, and attention, in one launch."""

from __future__ import annotations

from .dma import COPY, SCATTER
from .fused import Parts, check_parts, execute_parts, work_of_parts
from .instruction import Instruction, Memory, Shapes, Sizes, require
from .latent import LATENT_ATTENTION
from .operands import ExtentName, In, InOut, OptionalIn, Out, Ref
from .tensor import ATTENTION
from .vector import ROPE
from .work import Order, Unit, Work


class ROPE_ATTENTION(Instruction, opcode=0xA9, unit=Unit.TENSOR):
    """The rope of queries and keys, the scatter of keys and values into the cache, and attention, in one.

    qkv is [tokens, queries | keys | values] and stays as it is; the first `rotary_dim` elements of each query and key
    head are rotated, and what goes to the cache is the rotated keys and the values.
    """

    dst: Out
    cache: InOut
    qkv: In
    cos: In
    sin: In
    positions: In
    slots: In
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    rotary_dim: int
    interleaved: bool
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    window: int
    sinks: OptionalIn
    chunk: int
    soft_cap: float

    def parts(self, t: Shapes) -> Parts:
        """A copy of qkv, rotated, scattered and attended to."""
        turned, rows = "fused/turned", t.type_of(self.qkv)
        queries, keys = self.heads * self.qk_dim, self.kv_heads * self.qk_dim
        q, both = Ref(turned, 0, queries), Ref(turned, 0, queries + keys)
        cached = Ref(turned, queries, self.kv_heads * (self.qk_dim + self.v_dim))
        rotation = (self.cos, self.sin, self.positions, self.qk_dim, self.rotary_dim, self.interleaved)
        own = {name: getattr(self, name) for name in ATTENTION.operands if name in self.operands}
        made = (
            COPY(Ref(turned), self.qkv),
            ROPE(both, *rotation),
            SCATTER(self.cache, cached, self.slots),
            ATTENTION(q=q, **own),
        )
        return Parts({turned: rows}, made)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "kv_heads", "qk_dim", "v_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        wide = self.heads * self.qk_dim + self.kv_heads * (self.qk_dim + self.v_dim)
        row = t.type_of(self.qkv)
        require(row.shape[-1] == wide, self, f"qkv is {row}, must be [tokens, {wide}]")
        check_parts(self, t)

    def work(self, s: Sizes) -> Work:
        return work_of_parts(self, s)

    def execute(self, m: Memory) -> None:
        execute_parts(self, m)


class ROPE_LATENT_ATTENTION(Instruction, opcode=0xAB, unit=Unit.TENSOR):
    """The ropes of queries and of the shared key, the scatter of latents into the cache, and latent attention, in one.

    latents is [tokens, latent_dim + rope_dim]: its last rope_dim columns and every head of q_rope are rotated; both
    stay as they are, and what goes to the cache is latents with these columns rotated.
    """

    dst: Out
    cache: InOut
    latents: In
    q_nope: In
    q_rope: In
    w: In
    cos: In
    sin: In
    positions: In
    slots: In
    tables: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    rotary_dim: int
    interleaved: bool
    heads: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    order: Order = "auto"
    piece_tokens: int = 0

    def parts(self, t: Shapes) -> Parts:
        """Copies of queries and latents, rotated; the latents scattered; and attention."""
        q, row, cached = Ref("fused/queries"), Ref("fused/row"), t.type_of(self.latents)
        shared = Ref(row.buffer, int(cached.shape[-1]) - self.rope_dim, self.rope_dim)
        rotation = (self.cos, self.sin, self.positions, self.rope_dim, self.rotary_dim, self.interleaved)
        own = {name: getattr(self, name) for name in LATENT_ATTENTION.operands if name in self.operands}
        made = (
            COPY(q, self.q_rope),
            ROPE(q, *rotation),
            COPY(row, self.latents),
            ROPE(shared, *rotation),
            SCATTER(self.cache, row, self.slots),
            LATENT_ATTENTION(**own | {"q_rope": q}),
        )
        return Parts({q.buffer: t.type_of(self.q_rope), row.buffer: cached}, made)

    def check(self, t: Shapes) -> None:
        row = t.type_of(self.latents)
        wide = row.shape[-1]
        require(
            isinstance(wide, int) and 0 < self.rope_dim < wide,
            self,
            f"latents is {row}, must be [tokens, latent + {self.rope_dim}]",
        )
        check_parts(self, t)

    def work(self, s: Sizes) -> Work:
        return work_of_parts(self, s)

    def execute(self, m: Memory) -> None:
        execute_parts(self, m)
