"""AlignAsk: what an alignment is asked beside the job itself, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

from ..isa.errors import ConfigError
from .job import MOST_TOKENS

BASELINES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}


@dataclass(frozen=True)
class AlignAsk:
    """Switches of an alignment.

    `baseline`: our own run of the same tokens in a plain 16-bit dtype, its drift beside. `text`: a file or a text that
    is read with teacher forcing in windows of `window` tokens, a new one every `stride` of them. `forced_routing`: the
    reference's tokens take the experts that ours took, so that a flipped expert does not hide what comes after it.
    `extreme`: sequences and activations at the edge instead of the job's own. `drift`: the error by position up to so
    many tokens.
    """

    baseline: str | None = None
    text: str | None = None
    window: int | None = None
    stride: int | None = None
    forced_routing: bool = False
    extreme: bool = False
    drift: int | None = None

    def __post_init__(self) -> None:
        if self.baseline is not None and self.baseline not in BASELINES:
            raise ConfigError(f"--baseline {self.baseline!r} must be bf16 or fp16")
        if self.text is not None and not self.text.strip():
            raise ConfigError("--text is empty; give a file or some text")
        for name, least in (("window", 2), ("stride", 1), ("drift", 2)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not least <= value <= MOST_TOKENS):
                raise ConfigError(f"--{name}={value} must be from {least} to {MOST_TOKENS} tokens")
            if value is not None and name != "drift" and self.text is None:
                raise ConfigError(f"--{name} cuts the text of --text; give --text too")
        if self.stride is not None and self.window is not None and self.stride > self.window:
            raise ConfigError(f"--stride {self.stride} leaves tokens between windows of {self.window}; at most that")
        if self.text is not None and self.extreme:
            raise ConfigError("--text and --extreme are given; an alignment takes its sequences from one of them")

    @property
    def baseline_dtype(self) -> str | None:
        """The baseline's dtype by its own name."""
        return None if self.baseline is None else BASELINES[self.baseline]


PLAIN = AlignAsk()
