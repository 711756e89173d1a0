"""Where experts stand when some stand in several places: the most loaded are copied, and all are packed evenly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from ..isa.errors import ConfigError
from ..isa.instruction import Array, split_even
from ..models.blocks import Graph, Moe
from ..models.fields import cut
from .files import read_text
from .layout import Layout
from .lowering.weights import layer_name
from .recorded import is_recording, recorded_steps, summed

Placement = tuple[int, ...]  # the expert of every slot, member after member


def placement_of(loads: Sequence[float], slots: int, members: int) -> Placement:
    """The expert of each slot: those of most load a copy get one more, then copies go where least load stands.

    At most one copy of an expert stands with a member, as long as there is room elsewhere; the lower index wins a tie.
    As DeepSeek's expert-parallel load balancer does without groups.
    """
    copies = [1] * len(loads)
    for _ in range(slots - len(loads)):
        open_ = [expert for expert, count in enumerate(copies) if count < members]
        copies[max(open_, key=lambda expert: (loads[expert] / copies[expert], -expert))] += 1
    replicas = [(loads[expert] / count, expert) for expert, count in enumerate(copies) for _ in range(count)]
    room = [size for _, size in split_even(slots, members)]
    held: list[list[int]] = [[] for _ in range(members)]
    total = [0.0] * members
    for load, expert in sorted(replicas, key=lambda item: (-item[0], item[1])):
        free = [member for member in range(members) if len(held[member]) < room[member]]
        apart = [member for member in free if expert not in held[member]] or free
        member = min(apart, key=lambda member: (total[member], len(held[member]), member))
        held[member].append(expert)
        total[member] += load
    return tuple(expert for own in held for expert in sorted(own))


def placements_of(graph: Graph, layout: Layout, loads: Mapping[int, Sequence[float]]) -> dict[str, Placement]:
    """The placement of every expert layer by its name; layers without loads count as evenly loaded."""
    if not layout.redundant:
        return {}
    found, known = dict[str, Placement](), dict[tuple[float, ...], Placement]()
    for layer in graph.layers:
        if isinstance(layer.mlp, Moe):
            experts = layer.mlp.experts.count
            own = tuple(loads.get(layer.index, (1.0,) * experts))
            if own not in known:
                known[own] = placement_of(own, layout.slots(experts), layout.ep)
            found[layer_name(layer)] = known[own]
    return found


def read_loads(path: str, graph: Graph) -> dict[int, Sequence[float]]:
    """Loads of experts from a JSON file: a list for all layers, lists by layer index, or what `--save-routing` wrote.

    ConfigError for anything else.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--expert-loads {path!r}: not valid JSON ({error}); give a list of loads, or lists by layer index"
        ) from None
    if is_recording(content):
        return dict(summed(recorded_steps(f"--expert-loads {path!r}", content, graph), graph))
    counts = {layer.index: layer.mlp.experts.count for layer in graph.layers if isinstance(layer.mlp, Moe)}
    by_layer = {str(index): content for index in counts} if isinstance(content, list) else content
    if not isinstance(by_layer, dict):
        raise ConfigError(f"--expert-loads {path!r} holds {cut(repr(content))}; give a list, or lists by layer index")
    found: dict[int, Sequence[float]] = {}
    for name, loads in by_layer.items():
        index = int(name) if name.isdecimal() and len(name) < 9 else -1
        if index not in counts:
            raise ConfigError(f"--expert-loads {path!r}: {cut(repr(name))} is no layer with experts")
        if not isinstance(loads, list) or not all(type(x) in (int, float) and 0 <= x < 1e18 for x in loads):
            raise ConfigError(f"--expert-loads {path!r}: layer {name} must be a list of numbers, 0 or more")
        if len(loads) != counts[index]:
            raise ConfigError(
                f"--expert-loads {path!r}: layer {name} has {len(loads)} loads for {counts[index]} experts"
            )
        found[index] = loads
    if not found:
        raise ConfigError(f"--expert-loads {path!r} names no layer; give a list, or lists by layer index")
    return found


def replica_table(placement: Placement, experts: int, columns: int) -> Array:
    """int32 [experts, columns]: how many slots each expert has, and which."""
    table = np.zeros((experts, columns), np.int32)
    for slot, expert in enumerate(placement):
        table[expert, 0] += 1
        table[expert, table[expert, 0]] = slot
    return table


def cut_table(slots: int, members: int, cuts: int) -> Array:
    """int32 [slots, cuts]: the number of each cut of the expert in each slot, member after member, cut after cut."""
    table = np.zeros((slots, cuts), np.int32)
    for first, size in split_even(slots, members):
        for cut_ in range(cuts):
            table[first : first + size, cut_] = first * cuts + cut_ * size + np.arange(size)
    return table
