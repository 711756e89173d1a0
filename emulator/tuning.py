"""Constants of kernels that no data sheet states, by kind of operation: what a calibration fits, and nothing else."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from .card_parts import CardPart
from .evidence import Evidence

LOG: dict[str, JsonValue] = {"log": True}  # a constant that is searched in its logarithm
UNTOLD = Evidence(evidence="assumed", source="siltwin's own default for kernels that nobody has measured")


class ProductTuning(CardPart):
    """How a library's matrix products fall short of the card's tiles, loads and HBM.

    `launch`: of the card's dispatch time. `wait`: of a load's latency from HBM, what every wave of tiles waits.
    `slabs`: of the card's cycles at each slab of K, what a library loses there. `store`: of the time in which a tile's
    results leave a core, what every wave waits. `load`: of a core's load port, what a tile's operands use.
    `smoothing`: of the idle part of a last wave, what the library fills. `hbm`: of the attainable bandwidth. `spill`:
    how far computing, re-reading and HBM do not overlap (0: the longest hides the others; 1: one after the other).
    `split_cycles`: to join parts of K. `rereads`: of what tiles read again, what comes from L2. `power`: of the energy
    that operations are stated to take.
    """

    launch: Annotated[float, Field(ge=0.3, le=3.0, json_schema_extra=LOG)] = 0.9
    wait: Annotated[float, Field(ge=0.0, le=4.0)] = 1.0
    slabs: Annotated[float, Field(ge=1.0, le=16.0, json_schema_extra=LOG)] = 5.0
    store: Annotated[float, Field(ge=0.0, le=8.0)] = 2.0
    load: Annotated[float, Field(ge=0.2, le=3.0, json_schema_extra=LOG)] = 0.8
    smoothing: Annotated[float, Field(ge=0.0, le=1.0)] = 0.7
    hbm: Annotated[float, Field(ge=0.5, le=1.0)] = 0.95
    spill: Annotated[float, Field(ge=0.0, le=1.0)] = 0.03
    split_cycles: Annotated[float, Field(ge=0.0, le=15000.0)] = 4000.0
    rereads: Annotated[float, Field(ge=0.1, le=1.0, json_schema_extra=LOG)] = 0.4
    power: Annotated[float, Field(ge=0.5, le=2.0, json_schema_extra=LOG)] = 1.0


class MatmulTuning(ProductTuning):
    """Matrix products."""


class GroupedTuning(ProductTuning):
    """Matrix products of several groups of rows, as experts have them."""


class PrefillTuning(CardPart):
    """Attention of many new tokens.

    A launch takes `launch_ns` beside its dispatch, a tile of queries `tile_cycles` beside the tokens it sees. For each
    of these the array reaches `matrix_fraction` of its rate, and the lanes take `softmax_operations` and an exponential
    a score; the shorter of the two is hidden behind the longer to the part `overlap`. Cores end apart by `imbalance` of
    the longest tile; where tiles leave cores idle they are cut in up to `parts`. A new token costs `append_cycles` of a
    core beside, less in proportion where its row of the cache is below 2 KiB.
    """

    launch_ns: Annotated[float, Field(ge=100, le=20_000, json_schema_extra=LOG)] = 3000
    tile_cycles: Annotated[float, Field(ge=10, le=20_000, json_schema_extra=LOG)] = 5000
    matrix_fraction: Annotated[float, Field(ge=0.3, le=1)] = 0.8
    softmax_operations: Annotated[float, Field(ge=1, le=20, json_schema_extra=LOG)] = 5
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.5
    imbalance: Annotated[float, Field(ge=0, le=1)] = 0.2
    parts: Annotated[float, Field(ge=1, le=64, json_schema_extra=LOG)] = 2.5
    append_cycles: Annotated[float, Field(ge=1, le=5000, json_schema_extra=LOG)] = 800


class DecodeTuning(CardPart):
    """Attention of one or a few new tokens over a cache; what is not said here is as for `PrefillTuning`.

    A core loads the cache at `port_fraction` of its port, all together at `bandwidth_fraction` of what HBM attains, and
    they stall for the part `stall` of that time beside. A cache is cut in up to `parts`, or `lone_parts` where a single
    query row reads it, whose sum takes a launch of `combine_ns` more.
    """

    launch_ns: Annotated[float, Field(ge=100, le=20_000, json_schema_extra=LOG)] = 3000
    tile_cycles: Annotated[float, Field(ge=10, le=20_000, json_schema_extra=LOG)] = 5000
    matrix_fraction: Annotated[float, Field(ge=0.3, le=1)] = 0.75
    imbalance: Annotated[float, Field(ge=0, le=1)] = 0.2
    parts: Annotated[float, Field(ge=1, le=256, json_schema_extra=LOG)] = 32
    lone_parts: Annotated[float, Field(ge=1, le=256, json_schema_extra=LOG)] = 32
    port_fraction: Annotated[float, Field(ge=0.05, le=1, json_schema_extra=LOG)] = 0.4
    bandwidth_fraction: Annotated[float, Field(ge=0.5, le=1)] = 0.95
    stall: Annotated[float, Field(ge=0, le=1)] = 0.2
    combine_ns: Annotated[float, Field(ge=10, le=20_000, json_schema_extra=LOG)] = 4000


class VectorTuning(CardPart):
    """Row-wise instructions.

    Of the attainable bandwidth of HBM, plain maps (an addition, a scale) reach `map_share`, those that compute several
    operations an element (gates, activations, rope) `gate_share`, and those that reduce a row before they map it
    (norms, softmax) `reduce_share`; a reduction adds `reduce_cycles` before the first result. The defaults lie between
    PyTorch's kernels and those of vLLM as Vidur timed them on A100 and H100.
    """

    map_share: Annotated[float, Field(ge=0.05, le=1)] = 1
    gate_share: Annotated[float, Field(ge=0.05, le=1)] = 0.65
    reduce_share: Annotated[float, Field(ge=0.05, le=1)] = 0.55
    reduce_cycles: Annotated[float, Field(ge=0, le=20_000)] = 2_000


class CollectiveTuning(CardPart):
    """How a communication library sends in a card's own node; a named cluster states protocols of its own.

    `start_cycles` of the card's clock pass before a collective's first byte, and `step_cycles` at every step beside the
    links' latency. Bytes get `share` of the links' bandwidth, `switch_share` where the switch adds them. A chunk of the
    pipeline costs `ramp_cycles` and the way of sending much `bulk_cycles`, as `ramp_ps` and `bulk_ps` of a protocol.
    The defaults lie between what NCCL takes on A100 and on H100 nodes.
    """

    start_cycles: Annotated[float, Field(ge=0, le=40_000)] = 9_600
    step_cycles: Annotated[float, Field(ge=0, le=5_000)] = 630
    share: Annotated[float, Field(ge=0.05, le=1)] = 0.77
    switch_share: Annotated[float, Field(ge=0.05, le=1)] = 0.62
    ramp_cycles: Annotated[float, Field(ge=0, le=200_000)] = 17_000
    bulk_cycles: Annotated[float, Field(ge=0, le=100_000)] = 11_000


class Tuning(CardPart):
    """The constants of every kind; each has a default, and a card file states those that it knows better."""

    matmul: MatmulTuning = MatmulTuning()
    grouped: GroupedTuning = GroupedTuning()
    prefill: PrefillTuning = PrefillTuning()
    decode: DecodeTuning = DecodeTuning()
    vector: VectorTuning = VectorTuning()
    collective: CollectiveTuning = CollectiveTuning()
