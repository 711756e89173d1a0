"""A rig for cards under test: a little card of round numbers, programs as a few lines of text, spans out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from ideal_kernels import IDEAL

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.exchange import Detail
from siltwin.emulator.span import Span
from siltwin.emulator.spec import CardSpec, load_card, override
from siltwin.emulator.ticket import Submission, Ticket
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.program import Binding, Program
from siltwin.isa.text import assemble

# Four cores at 1 GHz: a cycle is 1,000 ps. HBM gives 100 bytes a picosecond, a link one byte in 100 picoseconds.
# A tensor instruction spends 500,000 ps before its work, a vector or dma one too; a link instruction 100,000.
LITTLE = {
    "clock_hz": "1GHz",
    "cores.count": "4",
    "cores.load_bytes_per_cycle": "512",
    "tensor.fill_cycles": "20",
    "tensor.slab_cycles": "4",
    "sram.0.capacity_bytes": "4KiB",
    "sram.1.capacity_bytes": "1KiB",
    "l2.bandwidth_bytes_per_s": "4TB/s",
    "hbm.bandwidth_bytes_per_s": "100TB/s",
    "hbm.attainable_fraction": "1",
    "hbm.latency_ps": "300ns",
    "vector.row_cycles": "5",
    "dma.latency_ps": "100ns",
    "dma.bytes_per_cycle": "512",
    "dispatch.tensor_ps": "200ns",
    "dispatch.vector_ps": "200ns",
    "dispatch.dma_ps": "100ns",
    "dispatch.host_ps": "100ns",
    "dispatch.link_ps": "100ns",
    "dispatch.control_ps": "0",
    "link.eager_bytes": "1000",
    "host.bandwidth_bytes_per_s": "10GB/s",
    "host.latency_ps": "100ns",
    **IDEAL,
}
LINK_BYTES_PER_S, LINK_LATENCY_PS = 10**10, 10**6

BUFFERS = {
    "x": "bf16[64, 2048]",
    "w": "bf16[64, 2048]",
    "y": "bf16[64, 64]",
    "z": "bf16[64, 64]",
    "c": "bf16[64, 1024]",  # 131,072 bytes
    "d": "bf16[64, 1024]",
    "e": "bf16[2, 16]",  # 64 bytes
    "part": "bf16[16, 1024]",
    "t": "bf16[tokens, 1024]",
    "h": "bf16[64, 1024]",
}


class Rig:
    """A cluster of little cards. A program is the lines of one block's body, called `calls` times."""

    def __init__(
        self,
        cards: int = 1,
        kind: str = "ring",
        detail: Detail = "group",
        overrides: Mapping[str, str] | None = None,
        spec: CardSpec | None = None,
    ) -> None:
        self.spec = override(spec or load_card("reference-npu"), {**LITTLE, **(overrides or {})})
        topology = make_cluster("single" if cards == 1 else kind, cards, LINK_BYTES_PER_S, LINK_LATENCY_PS).topology()
        self.cluster = Cluster(self.spec, topology, detail=detail)

    def program(self, body: str, calls: int = 1) -> Program:
        """A program of every queue of the card, one semaphore `go`, one group `all` of every card."""
        lines = ["program p", *(f"queue {queue.name}" for queue in self.spec.queues), "semaphore go", "extent tokens"]
        lines += [f"group all {len(self.cluster.cards)}"]
        space = {"w": "weight", "h": "host"}
        lines += [f"buffer {name} : {kind} {space.get(name, 'activation')}" for name, kind in BUFFERS.items()]
        lines += ["block b", *(f"param {name} : {kind}" for name, kind in BUFFERS.items()), body, "end"]
        return assemble("\n".join([*lines, *[f"call b {' '.join(BUFFERS)}"] * calls]))

    def submission(self, rank: int, program: Program, tokens: int = 64) -> Submission:
        ranks = tuple(range(len(self.cluster.cards)))
        return Submission(rank, program, Binding({"tokens": (tokens,)}, {"all": rank}), {"all": ranks})

    def submit(self, *bodies: str, calls: int = 1, tokens: int = 64) -> Ticket:
        """Submit a body a card; one body alone goes to every card."""
        texts: Sequence[str] = bodies if len(bodies) > 1 else bodies * len(self.cluster.cards)
        programs = {body: self.program(body, calls) for body in dict.fromkeys(texts)}
        return self.cluster.submit([self.submission(r, programs[body], tokens) for r, body in enumerate(texts)])

    def run(self, *bodies: str, calls: int = 1, tokens: int = 64) -> list[Span]:
        """Spans of programs that run alone, by card, then in order of their end."""
        ticket = self.submit(*bodies, calls=calls, tokens=tokens)
        self.cluster.run_until(ticket)
        return sorted(ticket.spans, key=lambda span: span.card)


@pytest.fixture(scope="session")
def rig() -> type[Rig]:
    """The class, so that a test says how many cards it wants."""
    return Rig
