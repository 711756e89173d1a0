"""The compositions: for each instruction that others make up, which ones, over which buffers between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ....isa.attention_parts import HEADS_MATMUL, MASKED_SOFTMAX, PAGED_SCORES, PAGED_VALUES
from ....isa.dma import GATHER
from ....isa.dtype import FP32, DType
from ....isa.elementary import CLAMP, MAP, MULTIPLY
from ....isa.experts import GROUPED_GATED
from ....isa.instruction import Dim, Instruction, TensorType
from ....isa.latent import LATENT_ATTENTION
from ....isa.operands import Ref
from ....isa.rows import RMS_SCALE, SIGMOID_GATE, SUM_SQUARES
from ....isa.scaling import SOFT_CAP
from ....isa.situ import GROUPED_SITU_GATED, SITU_GATED
from ....isa.tensor import ATTENTION
from ....isa.vector import ADD, ADD_RMSNORM, GATED, OAI_ALPHA, OAI_LIMIT, RMSNORM, ROPE, SCALE
from .rewrite import CONTEXT, BlockEditor

LOWEST = -3.0e38
TANH_SLOPE, TANH_CUBE = (
    0.7978845608028654,
    0.044715,
)  # of GELU by tanh, which is g * sigmoid(2 * slope * (g + cube g^3))
ROOT_HALF = 0.7071067811865476


class NotComposed(Exception):
    """Why an instruction has no composition."""


class Composing:
    """The parts of one composition, in order, and its own buffers."""

    def __init__(self, editor: BlockEditor) -> None:
        self._editor = editor
        self.parts: list[Instruction] = []

    def type_of(self, ref: Ref) -> TensorType:
        """Type of an operand."""
        return self._editor.type_of(ref)

    def local(self, label: str, dtype: DType, *shape: Dim) -> Ref:
        """A buffer between the parts."""
        return self._editor.local(label, dtype, *shape)

    def like(self, label: str, ref: Ref, dtype: DType = FP32) -> Ref:
        """A buffer of an operand's shape."""
        return self.local(label, dtype, *self.type_of(ref).shape)

    def emit(self, *instructions: Instruction) -> None:
        """The next parts."""
        self.parts += instructions

    def columns(self, ref: Ref, start: int, size: int) -> Ref:
        """Columns of an operand, counted from its own first; NotComposed where each card binds that for itself."""
        if ref.at is not None:
            raise NotComposed(f"{ref} begins where an extent says")
        return Ref(ref.buffer, ref.start + start, size)

    def width(self, ref: Ref) -> int:
        """Columns of an operand."""
        columns = self.type_of(ref).shape[-1]
        if not isinstance(columns, int):
            raise NotComposed(f"%{ref.buffer} has as many columns as an extent says")
        return columns


Composer = Callable[[Any, Composing], None]
COMPOSERS: dict[str, Composer] = {}
C = TypeVar("C", bound=Composer)


def composes(instruction: type[Instruction], *operands: str) -> Callable[[C], C]:
    """Register how an instruction is composed; `operands` are those that the composition knows (none: all).

    An operand that it does not know must have its default, so that an option which comes later is never dropped.
    """

    def register(composer: C) -> C:
        def checked(composed: Instruction, composing: Composing) -> None:
            defaults = {field.name: field.default for field in fields(composed)}  # type: ignore[arg-type]
            for name in composed.operands:
                unknown = bool(operands) and name not in operands
                if unknown and (defaults[name] is MISSING or getattr(composed, name) != defaults[name]):
                    raise NotComposed(f"its composition knows no {name}={getattr(composed, name)}")
            composer(composed, composing)

        COMPOSERS[instruction.mnemonic] = checked
        return composer

    return register


PAGED = ("tables", "q_lens", "kv_lens", "q_extent", "kv_extent")


def _paged(i: Instruction, *names: str) -> dict[str, Any]:
    return {name: getattr(i, name) for name in names or PAGED}


def _weights(i: Any, make: Composing, scores: Ref, dtype: DType, **limits: Any) -> Ref:
    """The softmax of scores, in the dtype that the product with the values takes."""
    weights = scores if dtype is FP32 else make.like("weights", scores, dtype)
    lengths = _paged(i, "q_lens", "kv_lens", "q_extent", "kv_extent")
    make.emit(MASKED_SOFTMAX(dst=weights, x=scores, **limits, **lengths))
    return weights


@composes(
    ATTENTION,
    *("dst", "q", "cache", *PAGED, "heads", "kv_heads", "qk_dim", "v_dim"),
    *("scale", "window", "sinks", "chunk", "soft_cap"),
)
def _attention(i: ATTENTION, make: Composing) -> None:
    """A batched product with the cached keys, a masked softmax, a batched product with the cached values."""
    q = make.type_of(i.q)
    scores = make.local("scores", FP32, q.shape[0], i.heads, CONTEXT)
    heads = {"cache": i.cache, "heads": i.heads, "kv_heads": i.kv_heads, **_paged(i)}
    make.emit(PAGED_SCORES(dst=scores, q=i.q, onto=None, first=0, dim=i.qk_dim, scale=i.scale, **heads))
    if i.soft_cap:
        make.emit(SOFT_CAP(scores, scores, i.soft_cap))
    weights = _weights(i, make, scores, q.dtype, window=i.window, chunk=i.chunk, sinks=i.sinks)
    make.emit(PAGED_VALUES(dst=i.dst, weights=weights, first=i.kv_heads * i.qk_dim, dim=i.v_dim, **heads))


@composes(
    LATENT_ATTENTION,
    *("dst", "q_nope", "q_rope", "cache", "w", *PAGED, "heads", "nope_dim", "rope_dim", "v_dim", "scale", "chosen"),
    *("order", "piece_tokens"),
)
def _latent_attention(i: LATENT_ATTENTION, make: Composing) -> None:
    """The absorbed order: queries times K, scores over latents and over rotated parts, and V times what these weigh."""
    if i.order == "expanded":
        raise NotComposed("its composition absorbs; ask for --mla absorbed or auto")
    q, latent = make.type_of(i.q_nope), make.width(i.cache) - i.rope_dim
    scores = make.local("scores", FP32, q.shape[0], i.heads, CONTEXT)
    absorbed, mixed = (
        make.local(name, q.dtype, q.shape[0], i.heads * latent) for name in ("latent_queries", "latent_values")
    )
    heads = {"cache": i.cache, "heads": i.heads, "kv_heads": 1, **_paged(i)}
    make.emit(
        HEADS_MATMUL(dst=absorbed, a=i.q_nope, w=i.w, heads=i.heads, first=0, outputs="columns"),
        PAGED_SCORES(dst=scores, q=absorbed, onto=None, first=0, dim=latent, scale=i.scale, **heads),
        PAGED_SCORES(dst=scores, q=i.q_rope, onto=scores, first=latent, dim=i.rope_dim, scale=i.scale, **heads),
    )
    weights = _weights(i, make, scores, q.dtype, window=0, chunk=0, sinks=None, chosen=i.chosen)
    make.emit(
        PAGED_VALUES(dst=mixed, weights=weights, first=0, dim=latent, **heads),
        HEADS_MATMUL(dst=i.dst, a=mixed, w=i.w, heads=i.heads, first=i.nope_dim, outputs="rows"),
    )


@composes(RMSNORM, "dst", "x", "weight", "eps", "plus_one")
def _rmsnorm(i: RMSNORM, make: Composing) -> None:
    """The sum of squares of each run, then what it scales; a run a head where the weight is a head's."""
    run, x = make.width(i.weight), make.type_of(i.x)
    runs = make.width(i.x) // run
    squares = make.local("squares", FP32, *x.shape[:-1], runs)
    for n in range(runs):
        part, of_part = make.columns(i.x, n * run, run), make.columns(squares, n, 1)
        make.emit(SUM_SQUARES(dst=of_part, x=part))
    for n in range(runs):
        dst, part, of_part = (
            make.columns(i.dst, n * run, run),
            make.columns(i.x, n * run, run),
            Ref(squares.buffer, n, 1),
        )
        make.emit(RMS_SCALE(dst, part, of_part, i.weight, count=run, eps=i.eps, plus_one=i.plus_one))


@composes(ADD_RMSNORM, "dst", "x", "delta", "weight", "eps", "plus_one")
def _add_rmsnorm(i: ADD_RMSNORM, make: Composing) -> None:
    """The sum, then its norm."""
    make.emit(ADD(i.x, i.x, i.delta), RMSNORM(i.dst, i.x, i.weight, i.eps, i.plus_one))


@composes(SIGMOID_GATE, "dst", "x", "gate")
def _sigmoid_gate(i: SIGMOID_GATE, make: Composing) -> None:
    """The sigmoid, then the product."""
    opened = make.like("sigmoid", i.gate)
    make.emit(MAP(opened, i.gate, "sigmoid"), MULTIPLY(i.dst, i.x, opened))


@composes(SOFT_CAP, "dst", "x", "cap")
def _soft_cap(i: SOFT_CAP, make: Composing) -> None:
    """tanh between two scalings."""
    bounded = make.like("bounded", i.x)
    make.emit(SCALE(bounded, i.x, 1 / i.cap), MAP(bounded, bounded, "tanh"), SCALE(i.dst, bounded, i.cap))


@composes(GROUPED_GATED, "dst", "x", "counts", "extent", "at", "experts", "activation")
def _grouped_gated(i: GROUPED_GATED, make: Composing) -> None:
    """The gate over all rows, whether an expert's or left over."""
    make.emit(GATED(i.dst, i.x, i.activation))


@composes(GATED, "dst", "x", "activation")
def _gated(i: GATED, make: Composing) -> None:
    """The activation of the gate half from elementary instructions, then its product with the up half."""
    half = make.width(i.dst)
    gate, up = make.columns(i.x, 0, half), make.columns(i.x, half, half)
    if i.activation == "swiglu_oai":
        _swiglu_oai(i, make, gate, up)
        return
    if i.activation not in _ACTIVATIONS:
        raise NotComposed(f"no elementary instructions compose {i.activation}")
    shared = make.like("activated", i.dst)
    _ACTIVATIONS[i.activation](make, shared, gate)
    make.emit(MULTIPLY(i.dst, shared, up))


def _silu(make: Composing, out: Ref, gate: Ref) -> None:
    make.emit(SIGMOID_GATE(out, gate, gate))


def _gelu(make: Composing, out: Ref, gate: Ref) -> None:
    """gate / 2 * (1 + erf(gate / sqrt 2))."""
    make.emit(SCALE(out, gate, ROOT_HALF), MAP(out, out, "erf"), MULTIPLY(out, out, gate))
    make.emit(ADD(out, out, gate), SCALE(out, out, 0.5))


def _gelu_tanh(make: Composing, out: Ref, gate: Ref) -> None:
    """gate * sigmoid(2 * slope * (gate + cube * gate^3))."""
    make.emit(MULTIPLY(out, gate, gate), MULTIPLY(out, out, gate), SCALE(out, out, TANH_CUBE), ADD(out, out, gate))
    make.emit(SCALE(out, out, 2 * TANH_SLOPE), SIGMOID_GATE(out, gate, out))


def _swiglu_oai(i: GATED, make: Composing, gate: Ref, up: Ref) -> None:
    """min(gate, limit) * sigmoid(alpha * that) * (clamped up + 1), the last product as p * up + p."""
    low, opened, high = (make.like(name, i.dst) for name in ("clamped_gate", "opened", "clamped_up"))
    make.emit(CLAMP(low, gate, LOWEST, OAI_LIMIT), SCALE(opened, low, OAI_ALPHA), SIGMOID_GATE(low, low, opened))
    make.emit(CLAMP(high, up, -OAI_LIMIT, OAI_LIMIT), MULTIPLY(high, high, low), ADD(i.dst, high, low))


@composes(GROUPED_SITU_GATED, "dst", "x", "counts", "extent", "at", "experts", "beta", "linear_beta")
def _grouped_situ_gated(i: GROUPED_SITU_GATED, make: Composing) -> None:
    """The gate over all rows, whether an expert's or left over."""
    make.emit(SITU_GATED(i.dst, i.x, i.beta, i.linear_beta))


@composes(SITU_GATED, "dst", "x", "beta", "linear_beta")
def _situ_gated(i: SITU_GATED, make: Composing) -> None:
    """Both halves capped softly, the gate's times its own sigmoid, then their product."""
    half = make.width(i.dst)
    gate, up = make.columns(i.x, 0, half), make.columns(i.x, half, half)
    low, high = make.like("capped_gate", i.dst), make.like("capped_up", i.dst)
    make.emit(SOFT_CAP(low, gate, i.beta), SIGMOID_GATE(low, low, gate))
    make.emit(SOFT_CAP(high, up, i.linear_beta), MULTIPLY(i.dst, low, high))


_ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}


@composes(ROPE, "x", "cos", "sin", "positions", "head_dim", "rotary_dim", "interleaved")
def _rope(i: ROPE, make: Composing) -> None:
    """Rows of both tables gathered by position; then, a head after the other, four products and two sums."""
    if i.interleaved:
        raise NotComposed("neighbours that pair are no range of columns, which elementary instructions take")
    tokens, half, kind = make.type_of(i.x).shape[0], i.rotary_dim // 2, make.type_of(i.cos)
    across, along = (make.local(name, kind.dtype, tokens, half) for name in ("cosines", "sines"))
    make.emit(GATHER(across, i.cos, i.positions), GATHER(along, i.sin, i.positions))
    a_cos, b_sin, b_cos, a_sin = (make.local(n, FP32, tokens, half) for n in ("a_cos", "b_sin", "b_cos", "a_sin"))
    for at in range(0, make.width(i.x), i.head_dim):
        a, b = make.columns(i.x, at, half), make.columns(i.x, at + half, half)
        make.emit(MULTIPLY(a_cos, a, across), MULTIPLY(b_sin, b, along), SCALE(b_sin, b_sin, -1.0))
        make.emit(MULTIPLY(b_cos, b, across), MULTIPLY(a_sin, a, along))
        make.emit(ADD(a, a_cos, b_sin), ADD(b, b_cos, a_sin))
