"""One collective alone on an emulated cluster: how long it takes, by which algorithm, and what its links bear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...emulator.choosing import Choose
from ...emulator.cluster import Cluster
from ...emulator.spec import CardSpec
from ...interconnect.choices import Choice, Group
from ...interconnect.cluster import ClusterSpec
from ...isa.errors import ConfigError
from .messages import Message

PS_PER_S = 10**12
KEPT_CLUSTERS = 4


@dataclass(frozen=True)
class LinkLoad:
    """Bytes on one directed link, and the share of the elapsed time for which they need its whole bandwidth."""

    name: str
    ends: str
    bytes: int
    bandwidth_bytes_per_s: int
    utilisation: float


@dataclass(frozen=True)
class Measured:
    """One emulated message: from the first rank's issue to the last rank's end, in picoseconds."""

    message: Message
    choice: Choice
    time_ps: int
    loads: tuple[LinkLoad, ...]

    @property
    def algbw_bytes_per_s(self) -> float:
        """Size over time."""
        return self.message.size_bytes * PS_PER_S / self.time_ps if self.time_ps else 0.0

    @property
    def busbw_bytes_per_s(self) -> float:
        """Algorithm bandwidth times the factor that makes it comparable with a link's, as nccl-tests does."""
        above, below = self.message.collective.factor(len(self.message.group))
        return self.algbw_bytes_per_s * above / below

    @property
    def busiest(self) -> LinkLoad | None:
        """The link that needs the longest for its bytes; None where no byte crossed any."""
        return self.loads[0] if self.loads else None


class Fabric:
    """A cluster with equal cards at its ends, ready to run one message after the other, each alone."""

    def __init__(self, cluster: ClusterSpec, card: CardSpec) -> None:
        self.spec, self.card = cluster, card
        self.topology = cluster.topology()
        self._clusters: dict[Choice, Cluster] = {}

    def group(self, ranks: Sequence[int]) -> Group:
        """Where these ranks stand; ConfigError for a rank twice, or that is no card of the cluster."""
        for rank in ranks:
            if not 0 <= rank < self.topology.cards:
                raise ConfigError(
                    f"rank {rank} is no card of {self.spec.name}, which has {self.topology.cards}: "
                    f"0 to {self.topology.cards - 1}"
                )
        if len(set(ranks)) < len(ranks):
            twice = next(rank for rank in ranks if list(ranks).count(rank) > 1)
            raise ConfigError(f"rank {twice} stands twice in the group; each card is one member")
        return self.spec.group(ranks)

    def run(self, message: Message, choice: Choice) -> Measured:
        """Emulate the message by this choice."""
        cluster = self._cluster(choice)
        ticket = cluster.submit(message.submissions(self.card))
        cluster.run_until(ticket)
        time_ps = ticket.end_ps - ticket.start_ps
        return Measured(message, choice, time_ps, self._loads(cluster, ticket.exchanged[-1].demand.amounts, time_ps))

    def _cluster(self, choice: Choice) -> Cluster:
        found = self._clusters.pop(choice, None)
        if found is None:
            found = Cluster(self.card, self.topology, choose=_always(choice))
        self._clusters[choice] = found
        if len(self._clusters) > KEPT_CLUSTERS:
            del self._clusters[next(iter(self._clusters))]
        return found

    def _loads(self, cluster: Cluster, amounts: Sequence[tuple[int, int]], time_ps: int) -> tuple[LinkLoad, ...]:
        number_of = {resource: number for number, resource in enumerate(cluster.link_resources)}
        topology, loads = self.topology, []
        for resource, amount in amounts:
            if resource in number_of:
                link = topology.links[number_of[resource]]
                ends = f"{topology.node_name(link.source)} > {topology.node_name(link.target)}"
                needs_ps = amount * PS_PER_S / link.bandwidth_bytes_per_s
                share = needs_ps / time_ps if time_ps else 0.0
                loads.append(LinkLoad(link.name, ends, amount, link.bandwidth_bytes_per_s, share))
        return tuple(sorted(loads, key=lambda load: -load.utilisation))


def _always(choice: Choice) -> Choose:
    """A cluster's choice that is always this one."""
    return lambda *asked: choice
