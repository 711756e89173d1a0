"""Planted faults: the cards run a damaged copy of a checkpoint, the reference goes on reading the sound one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime import align as align_room
from siltwin.runtime.reference import open_reference

Weights = dict[str, Any]
Fault = Callable[[Weights, Weights], None]  # changes config and weights in place


def plant(sound: Path, copy: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A damaged copy for the cards; the reference reads `sound` whatever it is asked to open."""
    shutil.copytree(sound, copy)
    config, weights = json.loads((copy / "config.json").read_text()), load_file(copy / "model.safetensors")
    fault(config, weights)
    (copy / "config.json").write_text(json.dumps(config))
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(align_room, "open_reference", lambda checkpoint: open_reference(open_checkpoint(sound)))
    return copy
