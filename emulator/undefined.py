"""Which outputs of which instructions hold rows that nothing was written to."""

from __future__ import annotations

from ..isa.operands import Role

# What an instruction may leave undefined: its source, on members that are not the root, or beyond the rows that came.
LEFT_UNDEFINED = {
    ("reduce_scatter", Role.INOUT),
    ("reduce", Role.INOUT),
    ("link_gather", Role.OUT),
    ("all_to_all", Role.OUT),
    ("permute", Role.OUT),
    ("regroup", Role.OUT),
    ("grouped_matmul", Role.OUT),
    ("grouped_gated", Role.OUT),
    ("fused_grouped_matmul", Role.OUT),
    ("fused_packed_grouped_matmul", Role.OUT),
    ("packed_grouped_matmul", Role.OUT),
    ("quantised_grouped_matmul", Role.OUT),
    ("grouped_quantise", Role.OUT),
    ("grouped_quantise_static", Role.OUT),
    ("grouped_situ_gated", Role.OUT),
}
