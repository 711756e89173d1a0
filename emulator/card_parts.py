"""The sections of a card: what each part of the hardware is described by, in the units of the names."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..isa.arithmetic import Arithmetic, Saturation
from ..isa.dtype import DTYPES
from ..isa.work import Unit
from .evidence import Amount, Bytes, BytesPerSecond, Count, Fraction, Picoseconds, Positive, Rate


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return name


def _element_bytes(key: object) -> int:
    if str(key) not in ("1", "2", "4", "8"):
        raise ValueError(f"{key!r} is not the bytes of an element; choose 1, 2, 4 or 8")
    return int(str(key))


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]
DTypeName = Annotated[str, AfterValidator(_known_dtype)]
Energy = Annotated[Amount, Field(le=1e-9)]  # joules of an operation or a byte: a thousand times what they take
Sane = Annotated[Amount, Field(le=1e6)]  # watts, degrees, joules a kelvin
MOST_ENGINES = 256  # each is a resource of the calendar
ElementBytes = Annotated[int, BeforeValidator(_element_bytes)]


class CardPart(BaseModel):
    """A section of a card: frozen, and no key but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Package(CardPart):
    """What is sold: `dies` cards of this kind share one package."""

    name: str
    dies: Positive


class Node(CardPart):
    """How these cards usually stand: used when no cluster is named. `topology` is a kind of cluster.

    `ports_to_peer` of a card's link ports carry what goes to one neighbour: a port each where neighbours are wired
    directly, all of them where a `switch` stands between, which may add what passes through it (`switch_reduces`).
    """

    topology: Name
    cards: Positive
    ports_to_peer: Positive
    switch_reduces: bool = False


class Queue(CardPart):
    """One in-order queue. A `unit` queue owns hardware; a `stream` is a software queue whose units others share."""

    name: Name
    kind: Literal["unit", "stream"]
    units: Annotated[tuple[Unit, ...], Field(min_length=1)]


class Cores(CardPart):
    """The cores over which tiles and rows are dealt; each loads from L2 at most `load_bytes_per_cycle`.

    One read of L2 feeds `multicast` neighbouring cores that want the same operand.
    """

    count: Positive
    load_bytes_per_cycle: Positive
    multicast: Positive


class TensorUnit(CardPart):
    """One core's matrix unit: a [rows, depth] x [depth, columns] product every cycle, times `rate[dtype]`.

    `fill_cycles` is the latency from a tile's first operands to its first results; `slab_cycles` is lost at each change
    of operand buffers along K. `stated_peak_ops_per_s` is the vendor's figure, held against the geometry when a card
    file is read. With a `dataflow` the unit is a systolic array of rows x columns cells, whose `folds` follow one
    another (serial) or overlap (pipelined, the usual), and which needs neither fill nor slab cycles.
    """

    rows: Positive
    columns: Positive
    depth: Positive
    rate: Annotated[dict[DTypeName, Rate], Field(min_length=1)]
    fill_cycles: Count
    slab_cycles: Count
    stated_peak_ops_per_s: dict[DTypeName, Positive] = {}
    dataflow: Literal["output_stationary", "weight_stationary", "input_stationary"] | None = None
    folds: Literal["serial", "pipelined"] | None = None

    def steps(self, dtype: str) -> tuple[int, int]:
        """(K elements consumed by one step, cycles of one step) of [rows, columns] outputs in `dtype`."""
        depth = self.depth * self.rate[dtype]
        return (int(depth), 1) if depth >= 1 else (1, round(1 / depth))

    def ops_per_cycle(self, dtype: str) -> float:
        """Operations a core performs in a cycle (a multiply and an add are two)."""
        return 2 * self.rows * self.columns * self.depth * self.rate[dtype]

    @model_validator(mode="after")
    def _only_an_array_has_folds(self) -> Self:
        if self.folds and not self.dataflow:
            raise ValueError(f"folds={self.folds} are those of a systolic array; give tensor.dataflow too")
        return self

    @model_validator(mode="after")
    def _rates_are_whole(self) -> Self:
        for name, rate in self.rate.items():
            depth = self.depth * rate
            whole = depth if depth >= 1 else 1 / depth
            if abs(whole - round(whole)) > 1e-9:
                raise ValueError(
                    f"rate.{name}={rate} with depth={self.depth} consumes {depth} elements of K a cycle; "
                    "it must be a whole number, or one over a whole number"
                )
        return self


class VectorUnit(CardPart):
    """One core's vector lanes by bytes of an element; a lane does one operation a cycle.

    `row_cycles` is spent at the start of each row and pass; `sync_cycles` when the parts that several cores have of a
    row are joined. Exponentials are slower than other operations: `exponentials_per_cycle` a core.
    """

    lanes: Annotated[dict[ElementBytes, Positive], Field(min_length=1)]
    dtypes: tuple[DTypeName, ...]
    exponentials_per_cycle: Positive
    row_cycles: Count
    sync_cycles: Count

    def lanes_of(self, itemsize_bytes: int) -> int:
        """Lanes for elements of this many bytes: those of the next size listed, 4 for what has no size."""
        size = next((size for size in sorted(self.lanes) if size >= itemsize_bytes), max(self.lanes))
        return self.lanes[size]


class Sram(CardPart):
    """One level of a core's own memory: what it holds, and how many bytes a core has of it."""

    name: str
    role: Literal["operand", "accumulator", "vector", "other"]
    capacity_bytes: Bytes


class L2(CardPart):
    """The cache that all cores share."""

    capacity_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond


class HbmSpec(CardPart):
    """Device memory: `capacity_bytes` as the device reports it; `attainable_fraction` of the bandwidth is reached."""

    capacity_bytes: Bytes
    reserved_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds
    attainable_fraction: Fraction

    @property
    def attainable_bytes_per_s(self) -> int:
        """The bandwidth that a long stream reaches, rounded down."""
        return max(1, int(self.bandwidth_bytes_per_s * self.attainable_fraction))

    @model_validator(mode="after")
    def _reserve_fits(self) -> Self:
        if self.reserved_bytes > self.capacity_bytes:
            raise ValueError(f"reserved_bytes={self.reserved_bytes} exceeds capacity_bytes={self.capacity_bytes}")
        return self


class Dma(CardPart):
    """Copy engines; each moves `bytes_per_cycle`, in bursts of `granularity_bytes`, after `latency_ps`."""

    engines: Annotated[Positive, Field(le=MOST_ENGINES)]
    bytes_per_cycle: Positive
    latency_ps: Picoseconds
    granularity_bytes: Positive


class Dispatch(CardPart):
    """Picoseconds from the head of a queue to the first work of an instruction, by unit."""

    tensor_ps: Picoseconds
    vector_ps: Picoseconds
    dma_ps: Picoseconds
    host_ps: Picoseconds
    link_ps: Picoseconds
    control_ps: Picoseconds

    def of(self, unit: Unit) -> int:
        """The dispatch time of an instruction of this unit."""
        return int(getattr(self, f"{unit.value}_ps"))


class LinkPorts(CardPart):
    """Ports to other cards: `bandwidth_bytes_per_s` a port and direction; messages up to `eager_bytes` do not wait
    for their receiver; `reduces_on` says which unit adds what arrives to what is there. `stated_bytes_per_s` is the
    vendor's figure for all ports, one direction, which `siltwin card check` holds against them."""

    ports: Count
    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds
    eager_bytes: Bytes
    stated_bytes_per_s: BytesPerSecond | None = None
    reduces_on: Literal["dma", "vector"]


class HostLink(CardPart):
    """The link to the host's memory, one direction."""

    bandwidth_bytes_per_s: BytesPerSecond
    latency_ps: Picoseconds


class Power(CardPart):
    """Energy and heat, for cards where something is known of them.

    Energies are those at the card's full clock; what an operation takes falls with the clock to the power
    `voltage_exponent`. `energy_j_per_op` is of the tensor unit, by element type. `thermal_resistance_k_per_w` is from
    the die to the coolant at `ambient_c`; above `limit_c` the card steps its clock down.
    """

    tdp_w: Sane | None = None
    idle_w: Sane | None = None
    energy_j_per_op: dict[DTypeName, Energy] = {}
    energy_j_per_vector_op: Energy | None = None
    voltage_exponent: Annotated[Amount, Field(le=8)] | None = None
    energy_j_per_hbm_byte: Energy | None = None
    energy_j_per_link_byte: Energy | None = None
    thermal_resistance_k_per_w: Sane | None = None
    thermal_capacity_j_per_k: Sane | None = None
    ambient_c: Sane | None = None
    limit_c: Sane | None = None


class NumberRules(CardPart):
    """How the card rounds: what a matrix product accumulates in, and what happens at the ends of a format."""

    accumulator: DTypeName
    rounding: Literal["nearest_even", "toward_zero"]
    saturation: Saturation
    subnormals: Literal["kept", "flushed"]

    @property
    def arithmetic(self) -> Arithmetic:
        """The rules as kernels take them; NotYetError for an accumulator that they cannot sum in."""
        return Arithmetic(DTYPES[self.accumulator], self.rounding, self.saturation, self.subnormals)
