"""Fused experts: checkpoints saved with transformers 5's own tensors, shown under the names that hubs use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..isa.dtype import DType
from ..isa.formats.quantise import Packed
from ..isa.formats.window import Window
from .blocks import Experts, GatedMlp, Graph, Moe
from .of_tensors import OfTensors
from .store import Array, HoldsPacked, PackedTensor, Shape, TensorStore


@dataclass(frozen=True)
class _View:
    """Rows [start, stop) of entry `expert` of a tensor [experts, out, in]; `expert` None: a tensor by another name."""

    tensor: str
    expert: int | None = None
    start: int = 0
    stop: int = 0


class FusedExpertStore:
    """A store whose fused tensors appear as one tensor an expert, each read a slice at a time."""

    def __init__(self, store: TensorStore, views: dict[str, _View]) -> None:
        self._store, self._views = store, views
        self._hidden = {view.tensor for view in views.values()}

    def names(self) -> Iterable[str]:
        """Every tensor that is not shown in pieces, and every piece."""
        return [*(name for name in self._store.names() if name not in self._hidden), *self._views]

    def shape(self, name: str) -> Shape:
        """The shape of a tensor or piece."""
        view = self._views.get(name)
        if view is None or view.expert is None:
            return self._store.shape(view.tensor if view else name)
        return (view.stop - view.start, *self._store.shape(view.tensor)[2:])

    def dtype(self, name: str) -> DType:
        """The element type in which `read` returns it."""
        return self._store.dtype(self._views[name].tensor if name in self._views else name)

    def where(self, name: str) -> str:
        """The file that holds it."""
        return self._store.where(self._views[name].tensor if name in self._views else name)

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form; of a piece, its whole expert is read."""
        view = self._views.get(name)
        if view is None or view.expert is None:
            return self._store.read(view.tensor if view else name, axis, start, stop)
        whole: Array = self._store.read(view.tensor, 0, view.expert, view.expert + 1)[0][view.start : view.stop]
        return whole[(slice(None),) * axis + (slice(start, stop),)]

    def packed(self) -> OfTensors[PackedTensor]:
        """How every packed weight is stored; none of those shown in pieces is."""
        return self._store.packed() if isinstance(self._store, HoldsPacked) else OfTensors()

    def read_packed(self, name: str, axis: int, start: int, stop: int) -> tuple[Packed, Window]:
        """Whole blocks of a packed weight, as its store reads them."""
        assert isinstance(self._store, HoldsPacked), f"{name} is not stored packed"
        return self._store.read_packed(name, axis, start, stop)


def with_hub_names(store: TensorStore, graph: Graph) -> TensorStore:
    """The store, its fused expert tensors under the graph's names where it lacks those."""
    present, views = set(store.names()), dict[str, _View]()
    for layer in graph.layers:
        if isinstance(layer.mlp, Moe) and not layer.mlp.experts.is_fused:
            views |= _layer_views(store, present, layer.mlp, f"model.layers.{layer.index}.mlp")
        elif isinstance(layer.mlp, GatedMlp):
            views |= _renamed_views(present, layer.mlp)
    return FusedExpertStore(store, views) if views else store


def _renamed_views(present: set[str], mlp: GatedMlp) -> dict[str, _View]:
    """A dense layer that transformers saved under its expert layers' name."""
    names = (*mlp.gate_up.weights, *mlp.down.weights)
    others = {name: name.replace(".mlp.", ".block_sparse_moe.") for name in names if name not in present}
    return {name: _View(other) for name, other in others.items() if other in present}


def _layer_views(store: TensorStore, present: set[str], moe: Moe, prefix: str) -> dict[str, _View]:
    experts, router = moe.experts, moe.router
    gate_up, down = f"{prefix}.experts.gate_up_proj", f"{prefix}.experts.down_proj"
    width, hidden = experts.intermediate_size, experts.hidden_size
    shapes = {gate_up: (experts.count, 2 * width, hidden), down: (experts.count, hidden, width)}
    if any(name not in present or store.shape(name) != shape for name, shape in shapes.items()):
        return {}  # what is missing is named by the graph's own names
    views = _expert_views(experts, gate_up, down)
    for own in (router.projection.weights[0], router.correction):
        if own is not None and own not in present:
            views |= dict([(own, _View(name)) for name in _other_names(own, prefix) if name in present][:1])
    return {name: view for name, view in views.items() if name not in present}


def _expert_views(experts: Experts, gate_up: str, down: str) -> dict[str, _View]:
    width, views = experts.intermediate_size, dict[str, _View]()
    for expert in range(experts.count):
        for half, name in enumerate(experts.gate_up):
            views[name.format(expert)] = _View(gate_up, expert, half * width, (half + 1) * width)
        views[experts.down.format(expert)] = _View(down, expert, 0, experts.hidden_size)
    return views


def _other_names(name: str, prefix: str) -> list[str]:
    """transformers' names of a router's tensor: below mlp, whatever the hub calls the block."""
    return [f"{prefix}.gate.{name.rpartition('.')[2]}", f"{prefix}.{name.rpartition('.')[2]}"]
