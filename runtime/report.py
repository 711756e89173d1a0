"""The report of a run as a versioned schema: tokens, times, bytes, what they are worth, and what an OOM ran into."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..emulator.span import Bound
from ..interconnect.evidence import EvidenceKind
from .report_base import Bounds, Count, NumBytes, Part, PerSecond, Picoseconds, Seconds
from .report_breakdown import Breakdown
from .report_document import HostReport, JobDocument
from .report_energy import EnergyReport
from .report_experts import ExpertLoads
from .scheduler import StepKind

# Figures that rest on the same numbers of the card share one entry of `evidence`, named by the group.
FIGURE_GROUPS: dict[str, str] = {
    "elapsed_ps": "time",
    "ttft_s": "time",
    "tpot_s": "time",
    "output_tokens_per_s": "time",
    "prompt_tokens_per_s": "time",
    "cycles": "time",
    "utilisation": "time",
    "peak_bytes": "memory",
}


class RequestReport(Part):
    """One sequence: what went in and came out, and when.

    `tokens` are the generated ids (empty without payload, where `output_tokens` still counts them). `ttft_s` runs from
    the start of the job to the first token (null when there was none), `tpot_s` is the mean time between tokens after
    it (null for fewer than two).
    """

    prompt_tokens: Count
    cached_tokens: Count = 0
    tokens: tuple[int, ...]
    output_tokens: Count
    text: str | None
    ttft_s: Seconds | None
    tpot_s: Seconds | None
    finish_reason: Literal["stop", "length"] | None


class StepReport(Part):
    """One step of the scheduler: `tokens` new tokens of `sequences` sequences; `bound` held most of its time."""

    index: Count
    kind: StepKind
    start_ps: Picoseconds
    end_ps: Picoseconds
    tokens: Count
    sequences: Count
    bound: Bound | None
    bounds: Bounds


class StageReport(Part):
    """One pipeline stage: `busy_ps` in which its cards executed something, their mean, and the share they idled."""

    stage: Count
    layers: Count
    busy_ps: Picoseconds
    idle_share: float


class OutOfRange(Part):
    """Where a number first left its type's range: in which step, on which card, by which instruction of which layer.

    `head` and `expert` are null where the operand has none; `request` and `position` name the token whose row it is;
    `elements` of the operand did. `saturated` is what was cut to the largest number of its type.
    """

    value: Literal["nan", "inf", "-inf", "saturated"]
    step: Count
    card: Count
    layer: str
    instruction: str
    head: str | None
    expert: Count | None
    request: Count | None
    position: Count | None
    elements: Count


class UnitUse(Part):
    """Use of one unit: union of its spans; demanded unit time over elapsed; demanded cycles where it has a clock."""

    busy_ps: Picoseconds
    utilisation: Annotated[float, Field(ge=0)]
    cycles: Count | None = None


class CardReport(Part):
    """One card: its memory at the peak (`by_tag` sums to `peak_bytes`, the reserve not counted) and its units.

    `weights` are the bytes of weights and scales by how the layout shares them out (sharded over tensor parallelism,
    replicated, expert) and by what they are: "sharded bf16", "expert mxfp4", "expert scale".
    """

    rank: Count
    stage: Count
    peak_bytes: NumBytes
    peak_ps: Picoseconds
    capacity_bytes: NumBytes
    reserved_bytes: NumBytes
    by_tag: dict[str, NumBytes]
    weights: dict[str, NumBytes] = {}
    live_at_end_bytes: NumBytes
    units: dict[str, UnitUse]


class LinkReport(Part):
    """One directed link between cards or switches: bytes that crossed it, and the union of the times it was in use.

    `utilisation` is the time that its bytes need at its bandwidth over the job's. Nodes are numbered as in the cluster.
    Where very many links were used, those of equal use are told together: `count` of them, the first by name, and
    `links` are the numbers of all in the cluster, as `0-63,128`.
    """

    name: str
    count: Count = 1
    links: str | None = None
    source: int
    target: int
    bytes: NumBytes
    busy_ps: Picoseconds | None = None
    bandwidth_bytes_per_s: Count | None = None
    utilisation: Annotated[float, Field(ge=0)] | None = None


class CollectiveReport(Part):
    """Communication of one kind along one axis of the layout.

    `count` operations of the whole job; `bytes` that crossed links, once a link; `time_ps` of the card that spent most
    in them.
    """

    axis: str
    kind: str
    count: Count
    bytes: NumBytes
    time_ps: Picoseconds


class AxisReport(Part):
    """All communication along one axis of the layout, in groups of `ranks`; `time_ps` of the card that spent most."""

    axis: str
    ranks: Count
    count: Count
    bytes: NumBytes
    time_ps: Picoseconds


class Totals(Part):
    """The job as a whole. TTFT is the largest, and the mean, over requests; TPOT the mean over requests that have one.

    Output tokens a second are over the whole job; prompt tokens a second over the steps that hold prompt tokens.
    `cycles` are of the card's clock.
    """

    elapsed_ps: Picoseconds
    ttft_max_s: Seconds | None
    ttft_mean_s: Seconds | None
    tpot_mean_s: Seconds | None
    output_tokens_per_s: PerSecond | None
    prompt_tokens_per_s: PerSecond | None
    cycles: Count


class PhaseReport(Part):
    """All steps of one kind; the time that several of them are in flight counts once. `breakdown`: where it went."""

    steps: Count
    elapsed_ps: Picoseconds
    bound: Bound | None
    bounds: Bounds
    breakdown: Breakdown = Breakdown()


class LatentReport(Part):
    """Latent attention in all steps of one kind: how many sequences were expanded, and how many absorbed.

    A sequence counts once a step and holder, and once a turn where its context goes round. `pieces` is the most that
    one instruction expands in turn, each of `piece_tokens` cached tokens (0: whole), and `workspace_bytes` the most
    that one needs on a card for what stands between its products.
    """

    kind: StepKind
    expanded: Count = 0
    absorbed: Count = 0
    pieces: Count = 0
    piece_tokens: Count
    workspace_bytes: NumBytes = 0


class Phases(Part):
    """What held each phase; null for a kind of step that did not happen."""

    prefill: PhaseReport | None = None
    decode: PhaseReport | None = None
    mixed: PhaseReport | None = None

    @property
    def by_kind(self) -> dict[StepKind, PhaseReport]:
        """Those that took place, in the order in which a job has them."""
        found: dict[StepKind, PhaseReport | None] = {
            "prefill": self.prefill,
            "mixed": self.mixed,
            "decode": self.decode,
        }
        return {kind: phase for kind, phase in found.items() if phase is not None}


class EvidenceReport(Part):
    """What a figure is worth: the weakest evidence among the numbers it used, and which of them are assumed.

    Numbers that the user set are weighed as assumed and listed apart. `figure` is a name of the totals or a group of
    them ("time", "memory"). `extrapolated` marks a figure outside what was calibrated.
    """

    figure: str
    weakest: EvidenceKind
    assumed: tuple[str, ...] = ()
    set_by_user: tuple[str, ...] = ()
    extrapolated: bool = False


class LiveAllocation(Part):
    """Bytes that were held when memory ran out."""

    owner: str
    tag: str
    num_bytes: NumBytes
    address: NumBytes
    allocated_ps: Picoseconds


class Fits(Part):
    """What would fit, found by the allocator itself: each changes one thing of the job. Null or 0: none does.

    `largest_batch` sequences as long as asked; `largest_context` tokens a sequence, for as many sequences as asked;
    `smallest_hbm_bytes` of a card, reserve included; `smallest_tp` on cards as they are.
    """

    largest_batch: Count | None
    largest_context: Count | None
    smallest_hbm_bytes: NumBytes | None
    smallest_tp: Count | None


class OomReport(Part):
    """What an out-of-memory ran into. `step` is null while weights are loaded, `request` when none is to blame.

    `missing_bytes` more HBM would have held this one request; `largest_hole_bytes` is the longest free run.
    """

    card: Count
    time_ps: Picoseconds
    step: Count | None
    step_kind: StepKind | Literal["load"] | None
    instruction: str | None
    request: Count | None
    tag: str
    owner: str
    requested_bytes: NumBytes
    missing_bytes: NumBytes
    capacity_bytes: NumBytes
    reserved_bytes: NumBytes
    free_bytes: NumBytes
    largest_hole_bytes: NumBytes
    largest_live: Annotated[tuple[LiveAllocation, ...], Field(max_length=10)]
    by_tag: dict[str, NumBytes]
    fits: Fits


class KvUse(Part):
    """What the KV cache of a job takes by one policy, on the card of which it takes most, while the job's steps run.

    `peak_bytes` are the most that are reserved, `used_bytes` what tokens hold of them at that time; `mean_waste_bytes`
    is what is reserved and holds no token, over all the job's time (over steps alone where it ran out of memory).
    `allocations` count what was asked of the allocator over the job: pages, ranges, or granules that were mapped.
    `fits` says whether the whole job fits by this policy.
    """

    policy: Literal["paged", "preallocated", "virtual"]
    card: Count
    peak_bytes: NumBytes
    used_bytes: NumBytes
    mean_waste_bytes: NumBytes
    allocations: Count
    fits: bool

    @property
    def waste_bytes(self) -> int:
        """What is reserved at the peak and holds no token."""
        return self.peak_bytes - self.used_bytes


class AlertReport(Part):
    """A threshold that the user set, and where it was crossed first; `crossed` cards, or requests, did.

    `limit` and `most` are shares of a card's HBM, the reserve counted as taken, or seconds. `step` is null where
    memory was taken at 0 ps: as the job was loaded, or its first step began.
    """

    name: Literal["memory", "ttft", "tpot"]
    limit: Annotated[float, Field(gt=0)]
    most: Annotated[float, Field(ge=0)]
    crossed: Count
    card: Count | None = None
    request: Count | None = None
    step: Count | None = None
    time_ps: Picoseconds | None = None


class PassReport(Part):
    """What a pass made of the programs of one step, over all cards: `places` where instructions gave way to `into`.

    `launches` more instructions are issued for it, or fewer where it is below 0.
    """

    name: str
    places: Count
    launches: int
    into: tuple[str, ...]


class Report(JobDocument):
    """One run: tokens, times and bytes, from one emulated program.

    Simulated times are integers of picoseconds; `host` alone tells of the machine that emulated.
    """

    engine: Literal["simpy", "compiled"]
    payload: bool
    passes: tuple[PassReport, ...] = ()
    requests: tuple[RequestReport, ...]
    steps: tuple[StepReport, ...]
    stages: tuple[StageReport, ...] = ()
    cards: tuple[CardReport, ...]
    kv: tuple[KvUse, ...] = ()
    alerts: tuple[AlertReport, ...] = ()
    links: tuple[LinkReport, ...] = ()
    collectives: tuple[CollectiveReport, ...] = ()
    axes: tuple[AxisReport, ...] = ()
    expert_loads: ExpertLoads | None = None
    totals: Totals
    phases: Phases
    energy: EnergyReport | None = None
    latent_attention: tuple[LatentReport, ...] = ()
    evidence: tuple[EvidenceReport, ...]
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    oom: OomReport | None = None
    not_finite: OutOfRange | None = None
    saturated: OutOfRange | None = None
    host: HostReport

    def evidence_for(self, figure: str) -> EvidenceReport | None:
        """What is said of a figure, by its own name or by that of its group; None when nothing is."""
        said = {item.figure: item for item in self.evidence}
        return said.get(figure) or said.get(FIGURE_GROUPS.get(figure, ""))
