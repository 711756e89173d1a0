"""How latent attention takes its products: absorbed, expanded whole or in pieces, or as each sequence's lengths say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from ...isa.fused_attention import ROPE_LATENT_ATTENTION
from ...isa.instruction import Instruction
from ...isa.latent import LATENT_ATTENTION
from ...isa.partial import PARTIAL_LATENT_ATTENTION
from ...isa.work import Order

ORDERS: tuple[Order, ...] = get_args(Order)
PIECE_TOKENS = 64 * 1024  # vLLM bounds the workspace of its expanded prefill by as many tokens
LATENT: tuple[type[Instruction], ...] = (LATENT_ATTENTION, PARTIAL_LATENT_ATTENTION, ROPE_LATENT_ATTENTION)


@dataclass(frozen=True)
class LatentOrder:
    """The order asked for, and how many cached tokens are expanded at a time (0: all)."""

    order: Order = "auto"
    piece_tokens: int = PIECE_TOKENS

    @property
    def operands(self) -> dict[str, Any]:
        """What the instructions say of it."""
        return {"order": self.order, "piece_tokens": self.piece_tokens}
