"""Templates: a layer that is another one but for its index and the names of its tensors is that one, renamed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property

from ...isa.program import Buffer, Call
from ...models.blocks import DecoderLayer
from .weights import WeightBuffer


@dataclass(frozen=True)
class Renaming:
    """What belongs to layer `old` as that of layer `new`."""

    old: int
    new: int

    def name(self, text: str) -> str:
        """A buffer or an extent."""
        own = f"layers.{self.old}."
        return f"layers.{self.new}.{text[len(own) :]}" if text.startswith(own) else text

    def tensor(self, text: str) -> str:
        """A tensor of a checkpoint."""
        return text.replace(f".{self.old}.", f".{self.new}.", 1)

    def buffer(self, buffer: Buffer) -> Buffer:
        """A buffer that a call binds; itself where it is no layer's own."""
        name = self.name(buffer.name)
        return buffer if name == buffer.name else Buffer(name, buffer.type, buffer.space)

    def call(self, call: Call) -> Call:
        """A call of a layer's block."""
        return Call(call.block, tuple(map(self.name, call.arguments)), tuple(map(self.name, call.extents)))

    def weight(self, weight: WeightBuffer) -> WeightBuffer:
        """A weight, of which the other layer's tensors are made."""
        pieces = tuple(replace(piece, tensor=self.tensor(piece.tensor)) for piece in weight.pieces)
        return replace(weight, name=self.name(weight.name), pieces=pieces)


@dataclass(frozen=True, eq=False)
class Template:
    """A layer as it was lowered: the call of its block, the buffers that binds, and its weights."""

    index: int
    call: Call
    buffers: tuple[Buffer, ...]
    weights: tuple[WeightBuffer, ...]


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a rank: those that were lowered, and after so many of them those of a template, renamed."""

    lowered: tuple[WeightBuffer, ...] = ()
    repeats: tuple[tuple[int, Template, Renaming], ...] = ()

    @cached_property
    def all(self) -> tuple[WeightBuffer, ...]:
        """Every weight, in the order of the layers."""
        found, at = list[WeightBuffer](), 0
        for position, template, renaming in self.repeats:
            found += (*self.lowered[at:position], *map(renaming.weight, template.weights))
            at = position
        return (*found, *self.lowered[at:])

    def groups(self) -> Iterable[tuple[WeightBuffer, int]]:
        """Every lowered weight, and how many there are that differ in their names alone, itself among them."""
        counts = dict.fromkeys(map(id, self.lowered), 1)
        for _, template, _ in self.repeats:
            for weight in template.weights:
                counts[id(weight)] += 1
        return ((weight, counts[id(weight)]) for weight in self.lowered)


def layer_kind(layer: DecoderLayer) -> Hashable:
    """What two layers share that differ only in their index and in where it stands first in their tensors' names."""
    leaves: list[Hashable] = []
    _collect(layer, layer.index, f".{layer.index}.", leaves)
    return tuple(leaves)


def _collect(value: Hashable, index: int, own: str, leaves: list[Hashable]) -> None:
    """Append what a value is made of, each part after its type or its length, so that nothing else gives the same."""
    if isinstance(value, str):
        at, pattern = value.find(own), value.find("{")
        if pattern >= 0 and not 0 <= at < pattern:  # a number that is put in for the braces might be taken for it
            leaves.append(index)
        leaves.append(value.replace(own, ".#.", 1))
    elif isinstance(value, tuple):
        leaves.append(len(value))
        for item in value:
            _collect(item, index, own, leaves)
    elif names := _names(type(value)):
        leaves.append(type(value))
        for name in names:
            _collect(getattr(value, name), index, own, leaves)
    else:
        leaves.append(value)


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields by which a part of a layer is told from another; none of what is no dataclass."""
    if not is_dataclass(kind):
        return ()
    return tuple(one.name for one in fields(kind) if not (kind is DecoderLayer and one.name == "index"))
