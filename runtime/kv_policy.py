"""How the memory of a KV cache is reserved: pages on demand, the longest length at once, or mapped granules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..isa.errors import ConfigError, NotYetError

KvPolicyName = Literal["paged", "preallocated", "virtual"]
KV_POLICIES: tuple[KvPolicyName, ...] = ("paged", "preallocated", "virtual")
GRANULE_BYTES = 2 << 20  # what device drivers map physical memory in: CUDA's and CANN's virtual memory calls


@dataclass(frozen=True)
class KvPolicy:
    """A way to reserve what sequences cache; the block tables, and so the numbers, are the same for all.

    - paged: pages of a few tokens, over all layers together, as tokens come (vLLM).
    - preallocated: one contiguous range for a sequence's longest length, when it is admitted (FasterTransformer, Orca).
    - virtual: an address range for every sequence and layer, and under it granules of physical memory as tokens come
      (vAttention, GMLake): what is lost is the rest of the last granule of each.
    """

    name: KvPolicyName = "paged"
    granule_bytes: int = GRANULE_BYTES

    def tokens_for(self, tokens: int, longest: int) -> int:
        """The tokens that a sequence which holds `tokens` now, and `longest` at its end, has memory for."""
        return longest if self.name == "preallocated" else tokens

    def blocks(self, caches: Mapping[int, int], page_bytes: int, before: int, after: int) -> tuple[int, int]:
        """(count, bytes each) of what a sequence is given that goes from `before` pages to `after`.

        `caches` counts a card's cache buffers by the bytes of their pages, which are `page_bytes` together.
        """
        if self.name == "paged":
            return after - before, page_bytes
        if self.name == "preallocated":
            return 1, (after - before) * page_bytes
        granules = sum(
            count * (self._granules(after * size) - self._granules(before * size)) for size, count in caches.items()
        )
        return granules, self.granule_bytes

    def _granules(self, num_bytes: int) -> int:
        return -(-num_bytes // self.granule_bytes)


def kv_policy_of(name: str, granule_bytes: int | None, kv_pages: str) -> KvPolicy:
    """The policy that a job names; ConfigError or NotYetError for what does not go together."""
    policy = next((known for known in KV_POLICIES if known == name), None)
    if policy is None:
        raise ConfigError(f"--kv-policy {name!r} does not exist; choose one of {', '.join(KV_POLICIES)}")
    if granule_bytes is not None and policy != "virtual":
        raise ConfigError(f"--kv-granule sizes the mappings of --kv-policy virtual; the policy is {name}")
    if kv_pages == "ideal" and policy != "paged":
        raise NotYetError(f"--kv-pages ideal with --kv-policy {name} comes with a later version; leave one of them out")
    return KvPolicy(policy, granule_bytes or GRANULE_BYTES)
