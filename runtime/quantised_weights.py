"""Which weights lie packed in device memory, and how: what --weights and --group ask for, and what a report says."""

from __future__ import annotations

from collections.abc import Mapping

from ..emulator.spec import CardSpec
from ..isa.dtype import DTYPES, DType
from ..isa.errors import ConfigError
from ..isa.formats.scheme import SCHEMES, WHOLE, QuantScheme
from ..models.checkpoint import Checkpoint
from .lowering.held import Held, Holding
from .lowering.passes.packed import Activations
from .plan import JobPlan

AS_STORED, DEQUANTISED = "as-stored", "dequantised"

# Format to its schemes by group, the first the default; None is a whole row, fp8's 128 are 128 x 128.
_SCHEMES: Mapping[str, Mapping[int | None, str]] = {
    "int8": {None: "int8_channel", 128: "int8_g128"},
    "int4": {128: "int4_g128", 32: "int4_g32"},
    "fp8": {None: "fp8_e4m3_channel", 128: "fp8_e4m3_block128x128"},
    "mxfp8": {32: "mxfp8_e4m3"},
    "mxfp4": {32: "mxfp4"},
    "nvfp4": {16: "nvfp4"},
}


def weight_scheme(name: str, group: int | None) -> QuantScheme:
    """The scheme of a format and a group; ConfigError with those there are."""
    if name not in _SCHEMES:
        known = ", ".join((*_SCHEMES, AS_STORED, DEQUANTISED))
        raise ConfigError(f"--weights {name!r} is no format of weights; choose {known}")
    groups = _SCHEMES[name]
    if group is None:
        return SCHEMES[next(iter(groups.values()))]
    if group not in groups:
        sized = ", ".join(str(size) for size in groups if size is not None) or "none: a scale covers a row"
        raise ConfigError(f"--group {group} is no group of --weights {name}; there is {sized}")
    return SCHEMES[groups[group]]


def holding_of(name: str | None, group: int | None, checkpoint: Checkpoint) -> Holding:
    """What --weights and --group ask for: by default a checkpoint's packed weights lie packed in device memory."""
    if name in (None, AS_STORED, DEQUANTISED):
        if group is not None:
            raise ConfigError(f"--group sizes the blocks of --weights {', '.join(_SCHEMES)}, not of {name}")
        if name == DEQUANTISED:
            return Holding()
        return Holding(
            stored=checkpoint.packed.select(lambda name, kind: Held(kind.scheme, kind.product)),
            inputs=checkpoint.packed.select(lambda name, kind: kind.input_scale),
        )
    assert name is not None
    return Holding(weight_scheme(name, group))


def _gives_inputs(holding: Holding, element: DType) -> bool:
    """Whether the checkpoint gives a scale for the inputs of every weight of codes of this type."""
    coded = [name for name, held in holding.stored.items() if held.scheme.element is element]
    return bool(coded) and all(name in holding.inputs for name in coded)


_ACTIVATIONS = {"int8": "int8", "fp8": "fp8_e4m3"}


def activations_of(name: str | None, is_static: bool, holding: Holding, card: CardSpec) -> Activations | None:
    """What --activations asks for: inputs quantised where the weights are codes of the same type.

    ConfigError for another format, for weights of none such, and for a card without a rate for it.
    """
    if name is None:
        return None
    if name not in _ACTIVATIONS:
        raise ConfigError(f"--activations {name!r} is no format of activations; choose {', '.join(_ACTIVATIONS)}")
    element = DTYPES[_ACTIVATIONS[name]]
    schemes = list(dict.fromkeys(holding.schemes()))
    alike = [scheme for scheme in schemes if scheme.element is element and scheme.packing == "plain"]
    if not alike or any(not scheme.symmetric for scheme in alike):
        held = ", ".join(scheme.name for scheme in schemes) or "not packed"
        raise ConfigError(f"--activations {name} multiplies weights of {name}; these are {held}; give --weights {name}")
    if is_static and any(scheme.block[1] != WHOLE for scheme in alike):
        raise ConfigError(f"--calibrate gives one scale a product, and {alike[0].name} has blocks of a row")
    if element.name not in card.tensor.rate:
        known = ", ".join(card.tensor.rate)
        raise ConfigError(f"{card.name} has no tensor rate for --activations {name}; it has {known}")
    is_static = is_static or _gives_inputs(holding, element)
    return Activations(element, "static" if is_static else "dynamic", alike[0].scale_rule)


def weights_warnings(plan: JobPlan, checkpoint: Checkpoint) -> list[str]:
    """What a report must say of packed weights."""
    holding = plan.holding
    if holding.scheme is not None:
        apart = ", what latent attention absorbs" if plan.latent.order == "absorbed" else ""
        return [
            f"projections and experts are quantised to {holding.scheme.name} on loading, without calibration, and held "
            f"so in HBM; embedding, head, norms, routers{apart} and linear attention's beta and decay are not"
        ]
    if not checkpoint.packed:
        return []
    if not holding.stored:
        return ["packed weights are dequantised when loaded: HBM holds them and reads them in the run's dtype"]
    warnings = ["packed weights lie in HBM as stored, codes and scales"]
    if unpacked := _unpacked(plan):
        some = ", ".join(unpacked[:3]) + (", ..." if len(unpacked) > 3 else "")
        warnings.append(f"{some} put together tensors that are stored unlike one another: HBM holds them dequantised")
    return warnings


def _unpacked(plan: JobPlan) -> list[str]:
    """Buffers that hold packed tensors dequantised, because not all of their tensors are packed alike."""
    stored = plan.holding.stored
    return [
        weight.name
        for rank in (plan.layout.rank(stage, 0) for stage in range(plan.layout.pp))
        for weight in plan.weights(rank)
        if weight.packed is None and any(piece.tensor in stored for piece in weight.pieces)
    ]
