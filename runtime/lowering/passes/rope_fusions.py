"""The fusion of rope, cache write and attention, over keys and values or over latents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ....isa.dma import SCATTER
from ....isa.fused_attention import ROPE_ATTENTION, ROPE_LATENT_ATTENTION
from ....isa.instruction import Instruction
from ....isa.latent import LATENT_ATTENTION
from ....isa.operands import Ref
from ....isa.tensor import ATTENTION
from ....isa.vector import ROPE
from .window import Found, Window, fusion


@fusion("rope-attention", ROPE_ATTENTION, ROPE_LATENT_ATTENTION)
def rope_attention(window: Window) -> Iterator[Found]:
    """The rotation of queries and keys, the scatter of what is cached, and the attention that follows."""
    if ROPE_ATTENTION.mnemonic in window.native:
        yield from _over_heads(window)
    if ROPE_LATENT_ATTENTION.mnemonic in window.native:
        yield from _over_latents(window)


def _over_heads(window: Window) -> Iterator[Found]:
    """A rotation of queries and keys, the scatter of keys and values, and the attention that follows."""
    for index in window.at(ROPE):
        rope = window.body[index]
        assert isinstance(rope, ROPE)
        readers = window.only_readers(index, rope.x)
        if readers is None or len(readers) != 2:
            continue
        scatter, attention = (window.body[place] for place in readers)
        if not isinstance(scatter, SCATTER) or not isinstance(attention, ATTENTION):
            continue
        qkv = _fused_rows(rope, scatter, attention)
        if qkv is None or window.only_readers(index, qkv) != readers:
            continue
        tables = (rope.cos, rope.sin, rope.positions, scatter.index)
        inputs = [ref for ref, _ in attention.refs() if ref not in (attention.dst, attention.cache, attention.q)]
        still = window.untouched((qkv, *tables, *inputs), index, readers[1], reads=False)
        if not still or not _alone(window, (index, readers[0], readers[1]), scatter.dst):
            continue
        fused = _rope_attention(rope, scatter, attention, qkv)
        yield window.replace((index, *readers), fused), fused


def _alone(window: Window, places: tuple[int, int, int], cache: Ref) -> bool:
    """Whether nothing between the scatter and the attention uses the cache."""
    return window.untouched((cache,), places[0], places[1], reads=True) and window.untouched(
        (cache,), places[1], places[2], reads=True
    )


def _fused_rows(rope: ROPE, scatter: SCATTER, attention: ATTENTION) -> Ref | None:
    """Columns of queries, keys and values that stand side by side; None where they do not."""
    i, start = attention, attention.q.start
    queries, keys = i.heads * i.qk_dim, i.kv_heads * i.qk_dim
    cached = i.kv_heads * (i.qk_dim + i.v_dim)
    wanted = (
        Ref(i.q.buffer, start, queries),
        Ref(i.q.buffer, start, queries + keys),
        Ref(i.q.buffer, start + queries, cached),
    )
    matches = (i.q, rope.x, scatter.src) == wanted and scatter.dst == i.cache and rope.head_dim == i.qk_dim
    return Ref(i.q.buffer, start, queries + cached) if matches and not _unknown(i, ROPE_ATTENTION) else None


def _unknown(attention: ATTENTION | LATENT_ATTENTION, fused: type[Instruction]) -> list[str]:
    """Options of an attention that its fused form has no operand for."""
    defaults = {field.name: field.default for field in fields(attention)}
    own = {"q", *fused.operands}
    return [name for name in attention.operands if name not in own and getattr(attention, name) != defaults[name]]


def _rope_attention(rope: ROPE, scatter: SCATTER, attention: ATTENTION, qkv: Ref) -> ROPE_ATTENTION:
    both = ROPE_ATTENTION.operands.keys() & attention.operands.keys() - {"cache"}
    own = {name: getattr(attention, name) for name in both}
    return ROPE_ATTENTION(
        cache=scatter.dst,
        qkv=qkv,
        cos=rope.cos,
        sin=rope.sin,
        positions=rope.positions,
        slots=scatter.index,
        rotary_dim=rope.rotary_dim,
        interleaved=rope.interleaved,
        **own,
    )


def _over_latents(window: Window) -> Iterator[Found]:
    """Rotations of queries and of the shared key, the scatter of latents, and the latent attention that follows."""
    for index in window.at(LATENT_ATTENTION):
        attention = window.body[index]
        assert isinstance(attention, LATENT_ATTENTION)
        found = _latent_places(window, index, attention)
        if found is None or _unknown(attention, ROPE_LATENT_ATTENTION):
            continue
        turned, shared, written = found
        ropes = [window.body[place] for place in (turned, shared)]
        scatter = window.body[written]
        assert isinstance(scatter, SCATTER)
        rope = ropes[0]
        assert isinstance(rope, ROPE) and isinstance(ropes[1], ROPE)
        if _rotation(rope) != _rotation(ropes[1]) or rope.head_dim != attention.rope_dim:
            continue
        both = ROPE_LATENT_ATTENTION.operands.keys() & attention.operands.keys() - {"cache"}
        fused = ROPE_LATENT_ATTENTION(
            cache=scatter.dst,
            latents=scatter.src,
            cos=rope.cos,
            sin=rope.sin,
            positions=rope.positions,
            slots=scatter.index,
            rotary_dim=rope.rotary_dim,
            interleaved=rope.interleaved,
            **{name: getattr(attention, name) for name in both},
        )
        inputs = [ref for ref, _ in attention.refs() if ref not in (attention.dst, attention.cache, attention.q_rope)]
        inputs += [rope.cos, rope.sin, rope.positions, scatter.index]
        still = window.untouched((attention.q_rope,), turned, index) and window.untouched((scatter.src,), shared, index)
        alone = window.untouched((scatter.dst,), written, index, reads=True)
        if still and alone and window.untouched(inputs, written, index):
            yield window.replace((*sorted((turned, shared, written)), index), fused), fused


def _rotation(rope: ROPE) -> tuple[object, ...]:
    return rope.cos, rope.sin, rope.positions, rope.head_dim, rope.rotary_dim, rope.interleaved


def _latent_places(window: Window, index: int, attention: LATENT_ATTENTION) -> tuple[int, int, int] | None:
    """Where queries and the shared key are rotated and latents are scattered, each for this attention alone."""
    scatters = [place for place in window.at(SCATTER) if place < index]
    written = next((place for place in reversed(scatters) if _writes(window, place, attention.cache)), None)
    if written is None:
        return None
    scatter = window.body[written]
    assert isinstance(scatter, SCATTER)
    columns = window.editor.type_of(scatter.src).shape[-1]
    if not isinstance(columns, int) or columns <= attention.rope_dim:
        return None
    key = Ref(scatter.src.buffer, scatter.src.start + columns - attention.rope_dim, attention.rope_dim)
    turned, shared = (_last_rope(window, index, ref) for ref in (attention.q_rope, key))
    if turned is None or shared is None or shared > written:
        return None
    readers = window.only_readers(turned, attention.q_rope), window.only_readers(shared, scatter.src)
    return (turned, shared, written) if readers == ([index], [written]) else None


def _writes(window: Window, place: int, cache: Ref) -> bool:
    scatter = window.body[place]
    return isinstance(scatter, SCATTER) and scatter.dst == cache


def _last_rope(window: Window, index: int, ref: Ref) -> int | None:
    """The last place before `index` that rotates these very columns."""
    found = None
    for place in window.at(ROPE):
        rope = window.body[place]
        if place < index and isinstance(rope, ROPE) and rope.x == ref:
            found = place
    return found
