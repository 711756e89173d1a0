"""Whether the sizes of a measured row go together: heads that divide, experts that a token can choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...isa.instruction import Array
from .faults import refuse

MOST_EXPERTS = 1 << 16


def check_shapes(path: Path, columns: Mapping[str, Array], lines: Sequence[int]) -> None:
    """ConfigError that names the rows [rows] of a table whose columns contradict each other."""
    if "num_key_value_heads" in columns:
        heads, kv_heads = columns["num_heads"], columns["num_key_value_heads"]
        refuse(path, ((lines[row], f"num_heads={heads[row]} is no multiple of num_key_value_heads={kv_heads[row]}")
                      for row in np.flatnonzero(heads % kv_heads).tolist()))  # fmt: skip
    if "num_experts" in columns:
        experts, chosen = columns["num_experts"], columns["topk"]
        refuse(path, ((lines[row], f"topk={chosen[row]} of num_experts={experts[row]}: a token chooses among at most "
                       f"{MOST_EXPERTS} experts, and none twice")
                      for row in np.flatnonzero((chosen > experts) | (experts > MOST_EXPERTS)).tolist()))  # fmt: skip
