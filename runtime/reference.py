"""The reference: the same checkpoint run by transformers on torch, entered by one lazy door."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..isa.dtype import FP32, DType
from ..isa.errors import ConfigError
from ..isa.instruction import Array
from ..models.blocks import Graph, Moe, Router
from ..models.checkpoint import Checkpoint
from ..models.config import read_json
from .held_cache import CacheCodes
from .held_inputs import InputCodes
from .reference_cache import coded_cache
from .reference_inputs import codes_by_parameter, quantised_inputs
from .reference_keys import chosen_keys
from .reference_kimi_k3 import KimiK3Reference
from .reference_routing import routers_of, watched
from .reference_run import NOTHING, ROUNDED, ReferenceRun

REFERENCE = "transformers {version} on torch, float32"


def routers_in(graph: Graph) -> dict[int, Router]:
    """The routers of a model by layer."""
    return {layer.index: layer.mlp.router for layer in graph.layers if isinstance(layer.mlp, Moe)}


class Reference(Protocol):
    """Somebody else's statement of a model, with the weights of a checkpoint, in float32 on the CPU."""

    name: str
    routed_layers: frozenset[int]  # layers whose routers can be told what to choose

    def run(
        self,
        ids: Sequence[int],
        longest: int = 0,
        forced: Mapping[int, Array] = NOTHING,
        keys: Mapping[int, Array] = NOTHING,
    ) -> ReferenceRun:
        """A full forward pass over a sequence, without a cache; `longest` is the job's longest sequence in tokens.

        `forced` are the experts, [tokens, chosen] by layer, that its first tokens take in place of their own choice,
        and `keys` the positions that they attend to, where an indexer chooses; a row that holds -1 is left alone.
        """

    def show_rounding(self, dtype: DType) -> None:
        """Compute from now on in `dtype` (for fp32 in float64): the difference shows what rounding to it does."""

    def quantise_inputs(self, codes: Mapping[str, Sequence[InputCodes]]) -> None:
        """Round from now on the inputs of products with these tensors to codes, as the cards do."""

    def code_cache(self, codes: CacheCodes | None) -> None:
        """Let attention read from now on what caches in codes hold."""


def open_reference(checkpoint: Checkpoint) -> Reference:
    """The reference of a checkpoint's family: transformers, or the entry of FAMILIES where that has no such class."""
    return FAMILIES.get(checkpoint.config.family, TransformersReference)(checkpoint)


class TransformersReference:
    """A transformers model with the weights of a checkpoint, in float32 on the CPU."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise ConfigError(
                f"align needs transformers and torch ({error.name} is missing); install siltwin[reference]"
            ) from None
        self.name = REFERENCE.format(version=transformers.__version__)
        self._torch, self._transformers = torch, transformers
        ropes = (layer.attention.rope for layer in checkpoint.graph.layers)
        self._looks_at_length = any(rope is not None and rope.scaling.rule == "longrope" for rope in ropes)
        self._model = _load(checkpoint, torch, transformers)
        self._routers = routers_in(checkpoint.graph)
        self._modules = routers_of(self._model.model.layers, self._routers)
        self.routed_layers = frozenset(self._modules)
        self._graph = checkpoint.graph
        self._inputs: dict[str, Sequence[InputCodes]] = {}
        self._cache: CacheCodes | None = None

    def run(
        self,
        ids: Sequence[int],
        longest: int = 0,
        forced: Mapping[int, Array] = NOTHING,
        keys: Mapping[int, Array] = NOTHING,
    ) -> ReferenceRun:
        """A full forward pass over a sequence, without a cache.

        `longest` is the length in tokens of the job's longest sequence. longrope chooses its factors by length and a
        job keeps one set (`models.rope`), so with that rule a shorter sequence is filled up to it; what follows a token
        changes nothing that is computed for it.
        """
        torch = self._torch
        tokens = list(ids)
        if self._looks_at_length:
            tokens += [0] * (longest - len(tokens))
        seen: list[Array] = []

        def watch(_module: Any, _inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            seen.append(hidden[0, : len(ids)].detach().float().numpy().copy())

        body = self._model.model
        hooks = [module.register_forward_hook(watch) for module in (body.embed_tokens, *body.layers)]
        try:
            inputs = quantised_inputs(torch, self._model, self._inputs) if self._inputs else contextlib.nullcontext()
            routing = watched(torch, self._modules, self._routers, forced)
            choosing = chosen_keys(torch, body.layers, keys)
            with torch.no_grad(), inputs, self._cached(), routing as routes, choosing as chosen:
                made = self._model(torch.tensor([tokens]), use_cache=self._cache is not None)
                logits = made.logits[0, : len(ids)].float().numpy()
        finally:
            for hook in hooks:
                hook.remove()
        own = {layer: route.at(slice(len(ids))) for layer, route in routes.items()}
        chosen = {layer: found[: len(ids)] for layer, found in chosen.items()}
        return ReferenceRun(seen, np.asarray(logits, np.float32), own, chosen)

    def _cached(self) -> contextlib.AbstractContextManager[None]:
        if self._cache is None:
            return contextlib.nullcontext()
        return coded_cache(self._torch, self._transformers, self._model, self._graph, self._cache)

    def show_rounding(self, dtype: DType) -> None:
        """Compute from now on in `dtype` (for fp32 in float64), so that the difference shows what rounding to it does.

        The weights are converted in place, since a second model may not fit; there is no way back. The rope tables stay
        in float32, as transformers keeps them whatever the model's dtype.
        """
        kind = getattr(self._torch, ROUNDED[dtype.name])
        for parameter in self._model.parameters():
            parameter.data = parameter.data.to(kind)

    def quantise_inputs(self, codes: Mapping[str, Sequence[InputCodes]]) -> None:
        """Round from now on the inputs of products with these tensors to codes, as the cards do."""
        self._inputs = codes_by_parameter(self._model, self._graph, codes)

    def code_cache(self, codes: CacheCodes | None) -> None:
        """Let attention read from now on what caches in codes hold."""
        self._cache = codes


@contextlib.contextmanager
def _without_bars(logging: Any) -> Iterator[None]:
    """No progress bars of the library's own on stderr, which is for errors."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _load(checkpoint: Checkpoint, torch: Any, transformers: Any) -> Any:
    """The transformers model: by its own loader from a directory, else from siltwin's reading of the weights.

    Packed checkpoints take the second way, since to load them transformers wants a package for each format, and so do
    those that transformers knows under another model_type: wrappers, whose text model alone is run, and kimi_k2.
    """
    directory = Path(checkpoint.source)
    # Neither code nor pickles of a checkpoint are ever run.
    safe = {"trust_remote_code": False, "local_files_only": True, "use_safetensors": True, "dtype": torch.float32}
    safe["experts_implementation"] = "eager"  # grouped products refuse widths of odd sizes
    with _without_bars(transformers.utils.logging):
        if directory.is_dir() and checkpoint.config.quantization is None and _is_as_stated(checkpoint, directory):
            return transformers.AutoModelForCausalLM.from_pretrained(directory, **safe).eval()
        state = {
            name: torch.from_numpy(np.require(checkpoint.load(name, FP32), requirements="W"))
            for name in checkpoint.names()
        }
        # a family's default padding may lie outside of this model's vocabulary
        config = transformers.AutoConfig.for_model(**{"pad_token_id": None, **checkpoint.config.to_hf()})
        kind = getattr(transformers, checkpoint.config.architecture)
        model, info = kind.from_pretrained(None, config=config, state_dict=state, output_loading_info=True, **safe)
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing or unexpected or info["mismatched_keys"]:
        raise ConfigError(f"{checkpoint.source}: the reference lacks {missing[:3]} and does not know {unexpected[:3]}")
    return model.eval()


def _is_as_stated(checkpoint: Checkpoint, directory: Path) -> bool:
    """Whether transformers takes the directory for the model that siltwin read from it."""
    return bool(read_json(directory / "config.json").get("model_type") == checkpoint.config.to_hf()["model_type"])


# References of families that transformers does not have, by the family's name.
FAMILIES: Mapping[str, Callable[[Checkpoint], Reference]] = {"kimi_k3": KimiK3Reference}
