"""Recorded routing: what a run's experts got, in a file that another run reads; and the routing model of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..isa.errors import ConfigError
from ..models.blocks import Graph, Moe
from ..models.fields import cut
from .files import read_text, write_file
from .job import Job
from .layer_loads import Loads
from .lowering.experts import expert_extent
from .lowering.passes.overlap import of_half
from .lowering.weights import layer_name
from .routing import Drawn, Even, Recorded, Routing, has_experts, parse_routing, skew_of

if TYPE_CHECKING:
    from .run import RunResult

MOST_LOAD = 1 << 53


def routing_of(job: Job, graph: Graph) -> Routing:
    """The routing model that a job without payload asks for; ConfigError where there is nothing to route."""
    kind, rest = parse_routing(job.routing)
    if job.routing is not None and not has_experts(graph):
        raise ConfigError(f"--routing {job.routing}: {graph.name} has no experts; leave it out")
    if kind == "recorded":
        return read_routing(rest, graph)
    if kind == "even":
        return Even()
    return Drawn(skew_of(rest) if kind == "zipf" else 0.0, job.seed)


def write_routing(path: str, result: RunResult) -> None:
    """What the experts of every step got, as JSON; no file where memory ran out before the first step."""
    if not result.records:
        return
    steps = {
        str(record.step.index): {name: loads.tolist() for name, loads in record.routed.items()}
        for record in result.records
    }
    content = {"model": result.report.model.name, "steps": steps}
    text = json.dumps(content, separators=(",", ":"))
    write_file(path, lambda stream: stream.write(text.encode()))


def is_recording(content: object) -> bool:
    """Whether a JSON value is what `write_routing` writes."""
    return isinstance(content, dict) and content.keys() == {"model", "steps"}


def read_routing(path: str, graph: Graph) -> Recorded:
    """The routing of an earlier run of this model; ConfigError naming what is wrong with the file."""
    where = f"--routing recorded:{path}"
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON ({error}); give a file that --save-routing wrote") from None
    return Recorded(recorded_steps(where, content, graph))


def recorded_steps(where: str, content: Any, graph: Graph) -> dict[int, dict[str, Loads]]:
    """The loads of every step by extent, of a file's content."""
    if not is_recording(content) or not isinstance(content["steps"], dict) or not content["steps"]:
        raise ConfigError(f"{where} holds {cut(repr(content))}; give a file that --save-routing wrote")
    if content["model"] != graph.name:
        raise ConfigError(f"{where}: recorded of {cut(repr(content['model']))}, and the job is {graph.name}'s")
    found: dict[int, dict[str, Loads]] = {}
    for index, loads in content["steps"].items():
        if not index.isdecimal() or len(index) > 9 or not isinstance(loads, dict):
            raise ConfigError(f"{where}: step {cut(repr(index))} is none; give a file that --save-routing wrote")
        found[int(index)] = {name: _loads(f"{where}, step {index}, {cut(name)}", own) for name, own in loads.items()}
    return found


def _loads(where: str, content: object) -> Loads:
    """Loads [holders, parts, experts] from nested lists."""
    try:
        loads = np.array(content)
    except ValueError:  # lists of several lengths
        loads = np.zeros(0)
    if loads.ndim != 3 or not loads.size or loads.dtype.kind not in "iu" or loads.min() < 0 or loads.max() > MOST_LOAD:
        raise ConfigError(
            f"{where} must be loads by holder, part and expert, whole numbers of 0 or more; it is {cut(repr(content))}"
        )
    return loads.astype(np.int64)


def summed(steps: Mapping[int, Mapping[str, Loads]], graph: Graph) -> Iterator[tuple[int, list[int]]]:
    """(layer, loads of its experts over all steps and holders) of every expert layer that is recorded."""
    for layer in graph.layers:
        if isinstance(layer.mlp, Moe):
            names = [of_half(expert_extent(layer_name(layer)), half) for half in (0, 1)]
            own = [loads[name].sum(axis=(0, 1)) for loads in steps.values() for name in names if name in loads]
            if own and all(len(part) == layer.mlp.experts.count for part in own):
                yield layer.index, np.sum(own, axis=0).tolist()
