"""Boosted trees (LightGBM), as what is learned of kernels is grown: the settings, and the library if it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...isa.errors import ConfigError
from .tables import Floats

lightgbm: Any
try:
    import lightgbm
except ImportError:  # an optional dependency, which a card that has learned runs without
    lightgbm = None

COMMON = {
    "objective": "huber", "alpha": 0.1, "learning_rate": 0.06, "feature_fraction": 0.9, "bagging_fraction": 0.8,
    "bagging_freq": 1, "lambda_l2": 1.0, "num_threads": 1, "deterministic": True, "force_row_wise": True,
    "verbosity": -1,
}  # fmt: skip


def boosted(inputs: Floats, target: Floats, weights: Floats, rounds: int, settings: Mapping[str, Any]) -> Any:
    """A LightGBM model of a target [rows] by inputs [rows, columns]; ConfigError without LightGBM."""
    if lightgbm is None:
        raise ConfigError("--fit full needs LightGBM: pip install siltwin[calibrate], or use --fit physics")
    data = lightgbm.Dataset(inputs, target, weight=weights, params={"verbosity": -1})
    return lightgbm.train({**COMMON, **settings}, data, num_boost_round=rounds)
