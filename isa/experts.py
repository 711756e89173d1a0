"""Instructions of expert layers: routing, permutation by expert, grouped products and gates, weighted sums back.

A layer's counts are a vector extent that `route` writes: entry p * experts + e is how many choices of expert e the
tokens of part p made. What works on experts first, first + 1, ... of a part reads its entries from `at` on.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from .counts import at_least, check_total, total_of
from .instruction import (
    Array,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    known,
    require,
    require_apart,
    require_convertible,
    require_floats,
    require_rows,
    rows_cols,
)
from .operands import ExtentName, ExtentOut, In, Number, OptionalIn, Out, Ref
from .vector import Activation, activate
from .work import GroupedShape, MoveShape, Unit, VectorShape, Work

Scoring = Literal["softmax", "sigmoid", "selected_softmax", "selected_sigmoid"]


class ROUTE(Instruction, opcode=0x2B, unit=Unit.VECTOR):
    """Choose experts for every token: ids[t] the top ones of logits[t], best first, weights[t] what each counts.

    Scores are softmax or sigmoid of the logits in fp32; selected_softmax and selected_sigmoid choose by the logits
    themselves, and take the softmax over the chosen or the sigmoid of each. `bias` is added for the choice alone. With
    `groups` above 1 only experts of the `top_groups` best groups may be chosen; a group's score is the sum of its
    `group_best` best (biased) scores. The lower index wins a tie, and a NaN loses to all. Weights are divided by their
    sum + eps if `renormalise`, then times `scale`. Token t is of part t % parts; the counts of all parts go to `counts`
    and to the extent.
    """

    ids: Out
    weights: Out
    counts: Out
    logits: In
    bias: OptionalIn
    extent: ExtentOut
    parts: int
    scoring: Scoring
    groups: int
    top_groups: int
    group_best: int
    renormalise: bool
    eps: float
    scale: float

    def check(self, t: Shapes) -> None:
        ids, weights, logits = t.type_of(self.ids), t.type_of(self.weights), t.type_of(self.logits)
        experts = logits.shape[-1]
        require(
            len(logits.shape) == 2 and isinstance(experts, int) and experts > 0,
            self,
            f"logits is {logits}, must be [tokens, experts]",
        )
        require_floats(self, t, self.logits, self.weights, self.bias)
        top = ids.shape[-1]
        require(
            ids.dtype.name == "int32" and len(ids.shape) == 2 and ids.shape[0] == logits.shape[0],
            self,
            f"ids is {ids}, must be int32 [{logits.shape[0]}, chosen]",
        )
        require(isinstance(top, int) and 0 < top <= int(experts), self, f"{top} of {experts} experts cannot be chosen")
        require(weights.shape == ids.shape, self, f"weights is {weights}, must be [{', '.join(map(str, ids.shape))}]")
        self._check_rules(int(experts), int(top))
        counts = t.type_of(self.counts)
        wanted = self.parts * int(experts)
        require(str(counts) == f"int32[{wanted}]", self, f"counts is {counts}, must be int32[{wanted}]")
        if self.bias is not None:
            bias = t.type_of(self.bias)
            require(bias.shape == (experts,), self, f"bias is {bias}, must be [{experts}]")

    def _check_rules(self, experts: int, top: int) -> None:
        require(self.parts > 0, self, "parts must be 1 or more")
        require(self.eps >= 0, self, "eps must be 0 or more")
        require(self.groups > 0 and experts % self.groups == 0, self, f"groups must divide {experts} experts")
        size = experts // self.groups
        require(1 <= self.top_groups <= self.groups, self, f"top_groups must be 1 to {self.groups}")
        require(1 <= self.group_best <= size, self, f"group_best must be 1 to {size}, the experts of a group")
        require(top <= self.top_groups * size, self, f"{top} experts cannot be chosen from {self.top_groups} groups")
        by_logits = self.scoring.startswith("selected")
        require(not (by_logits and self.bias), self, f"{self.scoring} chooses by the logits: it takes no bias")

    def work(self, s: Sizes) -> Work:
        rows, cols = s.shape(self.logits)
        return Work(
            Unit.VECTOR,
            ops=8 * rows * cols,
            read_bytes=bytes_of(s, self.logits, self.bias),
            write_bytes=bytes_of(s, self.ids, self.weights, self.counts),
            dtype=s.type_of(self.logits).dtype,
            shape=VectorShape(rows, cols, 4),  # score, choose, sum, write
        )

    def execute(self, m: Memory) -> None:
        scores = self._scores(m.get(self.logits))
        choice = scores if self.bias is None else scores + m.get(self.bias)
        choice = self._limited(np.where(np.isnan(choice), np.float32(-np.inf), choice))
        top = m.shape(self.ids)[1]
        ids = np.argsort(-choice, axis=-1, kind="stable")[:, :top]
        weights = np.take_along_axis(scores, ids, axis=-1)
        if self.scoring == "selected_softmax":
            weights = softmax(weights)
        if self.scoring == "selected_sigmoid":
            weights = sigmoid(weights)
        if self.renormalise:
            weights = weights / (weights.sum(axis=-1, keepdims=True, dtype=np.float32) + np.float32(self.eps))
        m.put(self.ids, ids)
        m.put(self.weights, weights * np.float32(self.scale))
        counts = np.zeros((self.parts, choice.shape[1]), np.int64)
        np.add.at(counts, (np.arange(len(ids))[:, None] % self.parts, ids), 1)
        m.put(self.counts, counts.reshape(-1))
        m.write_extent(self.extent, counts.reshape(-1))

    def _scores(self, logits: Array) -> Array:
        if self.scoring == "softmax":
            return softmax(logits)
        return sigmoid(logits) if self.scoring == "sigmoid" else logits

    def _limited(self, choice: Array) -> Array:
        """Minus infinity for experts outside a token's best groups."""
        if self.groups == 1:
            return choice
        grouped = choice.reshape(len(choice), self.groups, -1)
        totals = np.sort(grouped, axis=-1)[..., ::-1][..., : self.group_best].sum(axis=-1, dtype=np.float32)
        best = np.argsort(-totals, axis=-1, kind="stable")[:, : self.top_groups]
        allowed = np.zeros(totals.shape, bool)
        np.put_along_axis(allowed, best, True, axis=-1)
        limited: Array = np.where(allowed[..., None], grouped, np.float32(-np.inf)).reshape(choice.shape)
        return limited


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    one = np.float32(1)
    with np.errstate(over="ignore"):  # exp(-x) beyond float32 makes 0
        share: Array = one / (one + np.exp(-x))
    return share


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = weights / weights.sum(axis=-1, keepdims=True)
    return total


def local_counts(
    instruction: Instruction, s: Sizes, extent: str, at: int | str, experts: int, rows: int
) -> tuple[int, ...]:
    """Rows of each of `experts` experts; ProgramError when the extent has no such entries or they pass `rows`."""
    counts, first = s.extent(extent), s.number(at)
    own = counts[first : first + experts]
    if len(own) != experts:
        require(False, instruction, f"{extent} has {len(counts)} entries, not {first} + {experts}")
    check_total(instruction, extent, own, rows)
    return own


def check_ids(instruction: Instruction, t: Shapes, *refs: Ref) -> None:
    """Choices by token: [tokens, chosen], all of one shape, integers int32."""
    shape = t.type_of(refs[0]).shape
    for ref in refs:
        kind = t.type_of(ref)
        require(len(kind.shape) == 2 and kind.shape == shape, instruction, f"{ref} is {kind}, must be [tokens, chosen]")


class PERMUTE(Instruction, opcode=0x36, unit=Unit.DMA):
    """dst = the rows of x for experts first to first + experts - 1, expert by expert, each in the order of its tokens.

    Only tokens of `part` (t % parts) count. slots[t, j] is the row of dst that holds token t for its choice j, or -1.
    Rows of dst beyond the last are left as they are.
    """

    dst: Out
    slots: Out
    x: In
    ids: In
    extent: ExtentName
    first: Number
    experts: int
    part: Number
    parts: int

    def check(self, t: Shapes) -> None:
        dst, slots, x, ids = (t.type_of(ref) for ref in (self.dst, self.slots, self.x, self.ids))
        check_ids(self, t, self.ids, self.slots)
        require(ids.dtype.name == slots.dtype.name == "int32", self, f"ids is {ids} and slots {slots}: must be int32")
        require(
            len(dst.shape) == 2 and len(x.shape) == 2 and dst.shape[1] == x.shape[1] and x.shape[0] == ids.shape[0],
            self,
            f"dst is {dst} and x is {x}: must be [rows, columns] and [{ids.shape[0]}, columns]",
        )
        require_convertible(self, t, self.dst, self.x)
        require_apart(self, self.dst, self.x)
        require(known(self.first) >= 0 and self.experts > 0, self, "first must be 0 or more, experts 1 or more")
        require(0 <= known(self.part) < self.parts, self, f"part must be 0 to {self.parts - 1}")

    def work(self, s: Sizes) -> Work:
        cols = s.shape(self.dst)[1]
        total = len(s.extent(self.extent)) // self.parts
        at = s.number(self.part) * total + s.number(self.first)
        rows = total_of(local_counts(self, s, self.extent, at, self.experts, s.shape(self.dst)[0]))
        row_bytes = s.type_of(self.x).dtype.bytes_of(cols)
        return Work(
            Unit.DMA,
            read_bytes=rows * row_bytes + bytes_of(s, self.ids),
            write_bytes=rows * s.type_of(self.dst).dtype.bytes_of(cols) + bytes_of(s, self.slots),
            shape=MoveShape(rows, row_bytes),
        )

    def execute(self, m: Memory) -> None:
        ids, dst = m.get(self.ids), m.get(self.dst).copy()
        first = m.number(self.first)
        local = (ids >= first) & (ids < first + self.experts)
        local &= (np.arange(len(ids)) % self.parts == m.number(self.part))[:, None]
        tokens, choices = np.nonzero(local)
        order = np.argsort(ids[tokens, choices], kind="stable")
        require(len(order) <= len(dst), self, f"{len(order)} rows are chosen, and dst has {len(dst)}")
        slots = np.full(ids.shape, -1, np.int32)
        slots[tokens[order], choices[order]] = np.arange(len(order))
        dst[: len(order)] = m.get(self.x)[tokens[order]]
        m.put(self.slots, slots)
        m.put(self.dst, dst)


def check_counts(instruction: Instruction, t: Shapes, counts: Ref, at: int | str) -> None:
    kind = t.type_of(counts)
    require(len(kind.shape) == 1 and kind.dtype.name == "int32", instruction, f"counts is {kind}, must be int32 [n]")
    require(known(at) >= 0, instruction, "at must be 0 or more")


def memory_counts(instruction: Instruction, m: Memory, counts: Ref, bound: tuple[int, ...], at: int | str) -> None:
    """The counts in memory must be those that Work is computed from."""
    first = m.number(at)
    held = m.get(counts)[first : first + len(bound)].tolist()
    require(tuple(held) == bound, instruction, f"counts {held} in memory, {list(bound)} bound")


class GROUPED_MATMUL(Instruction, opcode=0x12, unit=Unit.TENSOR):
    """A product for each expert's rows: dst[rows of e] = a[rows of e] @ w[e]^T (+ bias[e]), accumulated in fp32.

    a and dst hold the rows of w's experts one expert after the other, counts[at + e] of them; rows beyond are left as
    they are. w is [experts, n, k].
    """

    dst: Out
    a: In
    w: In
    bias: OptionalIn
    counts: In
    extent: ExtentName
    at: Number

    def check(self, t: Shapes) -> None:
        dst, a, w = t.type_of(self.dst), t.type_of(self.a), t.type_of(self.w)
        require(len(w.shape) == 3 and isinstance(w.shape[0], int), self, f"w is {w}, must be [experts, n, k]")
        require(len(a.shape) == 2 and a.shape[1] == w.shape[2], self, f"a is {a}, must be [rows, {w.shape[2]}]")
        require(dst.shape == (a.shape[0], w.shape[1]), self, f"dst is {dst}, must be [{a.shape[0]}, {w.shape[1]}]")
        require_floats(self, t, self.dst, self.a, self.w, self.bias)
        require_apart(self, self.dst, self.a, self.w, self.bias)
        check_counts(self, t, self.counts, self.at)
        if self.bias is not None:
            bias = t.type_of(self.bias)
            require(bias.shape == w.shape[:2], self, f"bias is {bias}, must be [{w.shape[0]}, {w.shape[1]}]")

    def work(self, s: Sizes) -> Work:
        experts, n, k = s.shape(self.w)
        rows = local_counts(self, s, self.extent, self.at, experts, s.shape(self.a)[0])
        total, used = total_of(rows), sum(count > 0 for count in rows)
        weight_bytes = s.type_of(self.w).dtype.bytes_of(n * k)
        bias_bytes = s.type_of(self.bias).dtype.bytes_of(n) if self.bias is not None else 0
        return Work(
            Unit.TENSOR,
            ops=2 * total * n * k + (total * n if self.bias is not None else 0),
            read_bytes=s.type_of(self.a).dtype.bytes_of(total * k) + used * (weight_bytes + bias_bytes),
            write_bytes=s.type_of(self.dst).dtype.bytes_of(total * n),
            dtype=s.type_of(self.a).dtype,
            shape=GroupedShape(rows, n, k),
        )

    def execute(self, m: Memory) -> None:
        a, w, dst = m.get(self.a), m.get(self.w), m.get(self.dst).copy()
        rows = local_counts(self, m, self.extent, self.at, len(w), len(a))
        memory_counts(self, m, self.counts, rows, self.at)
        stop = 0
        for expert, count in enumerate(rows):
            start, stop = stop, stop + count
            product = m.rules.product(a[start:stop], w[expert])
            dst[start:stop] = product if self.bias is None else product + m.get(self.bias)[expert]
        m.put(self.dst, dst)


class GROUPED_GATED(Instruction, opcode=0x2C, unit=Unit.VECTOR):
    """`gated` over the rows of `experts` experts: counts[at] + ... of them; rows beyond are left as they are."""

    dst: Out
    x: In
    counts: In
    extent: ExtentName
    at: Number
    experts: int
    activation: Activation

    def check(self, t: Shapes) -> None:
        dst, x = t.type_of(self.dst), t.type_of(self.x)
        row = x.shape[-1]
        require(len(x.shape) == 2 and isinstance(row, int) and row % 2 == 0, self, f"x is {x}, must be two halves")
        require(dst.shape == (x.shape[0], int(row) // 2), self, f"dst is {dst}, must be half of {x}")
        require_floats(self, t, self.dst, self.x)
        require_apart(self, self.dst, self.x)
        check_counts(self, t, self.counts, self.at)
        require(self.experts > 0, self, "experts must be 1 or more")

    def work(self, s: Sizes) -> Work:
        rows = total_of(local_counts(self, s, self.extent, self.at, self.experts, s.shape(self.x)[0]))
        cols = s.shape(self.dst)[1]
        return Work(
            Unit.VECTOR,
            ops=6 * rows * cols,
            read_bytes=s.type_of(self.x).dtype.bytes_of(2 * rows * cols),
            write_bytes=s.type_of(self.dst).dtype.bytes_of(rows * cols),
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(rows, cols),
        )

    def execute(self, m: Memory) -> None:
        x, dst = m.get(self.x), m.get(self.dst).copy()
        counts = local_counts(self, m, self.extent, self.at, self.experts, len(x))
        memory_counts(self, m, self.counts, counts, self.at)
        rows, half = sum(counts), x.shape[1] // 2
        dst[:rows] = activate(x[:rows, :half], x[:rows, half:], self.activation)
        m.put(self.dst, dst)


class COMBINE(Instruction, opcode=0x2D, unit=Unit.VECTOR):
    """dst[t] = the sum over a token's choices j of weights[t, j] * x[slots[t, j]], in fp32, rounded once.

    Without weights each counts 1. A slot of -1 adds nothing: its expert is another card's. The rows are those of
    `experts` experts from `at` on.
    """

    dst: Out
    x: In
    slots: In
    weights: OptionalIn
    extent: ExtentName
    at: Number
    experts: int

    def check(self, t: Shapes) -> None:
        dst, x, slots = t.type_of(self.dst), t.type_of(self.x), t.type_of(self.slots)
        check_ids(self, t, *(ref for ref in (self.slots, self.weights) if ref is not None))
        require(slots.dtype.name == "int32", self, f"slots is {slots}, must be int32")
        require(
            len(dst.shape) == 2 and len(x.shape) == 2 and dst.shape[1] == x.shape[1] and dst.shape[0] == slots.shape[0],
            self,
            f"dst is {dst} and x is {x}: must be [{slots.shape[0]}, columns] and [rows, columns]",
        )
        require_floats(self, t, self.dst, self.x, self.weights)
        require_apart(self, self.dst, self.x)
        require(known(self.at) >= 0 and self.experts > 0, self, "at must be 0 or more, experts 1 or more")

    def work(self, s: Sizes) -> Work:
        tokens, cols = rows_cols(s.shape(self.dst))
        rows = total_of(local_counts(self, s, self.extent, self.at, self.experts, s.shape(self.x)[0]))
        return Work(
            Unit.VECTOR,
            ops=2 * rows * cols,
            read_bytes=s.type_of(self.x).dtype.bytes_of(rows * cols) + bytes_of(s, self.slots, self.weights),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(tokens, cols, at_least(1, -(-rows // max(1, tokens)))),
        )

    def execute(self, m: Memory) -> None:
        x, slots = m.get(self.x), m.get(self.slots)
        weights = np.ones(slots.shape, np.float32) if self.weights is None else m.get(self.weights)
        require_rows(self, slots[slots >= 0], len(x), "slot")
        out = np.zeros(m.shape(self.dst), np.float32)
        for choice in range(slots.shape[1]):
            used = slots[:, choice] >= 0
            out[used] += weights[used, choice, None] * x[slots[used, choice]]
        m.put(self.dst, out)
