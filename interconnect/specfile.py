"""The door for specs that users edit: YAML read as plain data, every fault named with its file and field."""

from __future__ import annotations

import difflib
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ..isa.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
_MALFORMED_SCALARS = (ValueError, TypeError, KeyError, AttributeError)  # what PyYAML raises on `!!bool maybe`
Spec = TypeVar("Spec", bound=BaseModel)


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """SafeLoader (the fast one where it is built) that also refuses keys written twice, and aliases (YAML bombs)."""

    def get_single_node(self) -> yaml.Node | None:
        """The document, of which no part may stand in two places: then the second is an alias."""
        root: yaml.Node | None = super().get_single_node()
        seen, left = set[yaml.Node](), [root] if root is not None else []
        while left:
            node = left.pop()
            if node in seen:
                raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=node.start_mark)
            seen.add(node)
            if isinstance(node, yaml.MappingNode):
                left += [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                left += node.value
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return made


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file, as plain data; ConfigError names the file and the line of any fault."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes; a spec may have {MAX_FILE_BYTES}")
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainLoader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply for a spec") from None
    except (yaml.YAMLError, *_MALFORMED_SCALARS) as error:
        if "nesting depth" in str(error):
            raise ConfigError(f"{path}: is nested too deeply for a spec") from None
        raise ConfigError(f"{path}: is not plain YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping of fields, not {type(content).__name__}")
    return content


def validated(model: type[Spec], content: Any, where: object) -> Spec:
    """`content` as a spec; ConfigError says `where: field: what is wrong (got the value)` for every fault."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = [_fault(model, dict(fault)) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{where}: {fault}" for fault in faults)) from None


def _fault(model: type[BaseModel], fault: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in fault["loc"]) or "the whole spec"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "missing":
        return f"{field}: is missing"
    if fault["type"] == "extra_forbidden":
        return f"{field}: is not a field here{_near(model, fault['loc'])}"
    given = fault["input"]
    named, colon, rest = message.partition(": ")
    if not fault["loc"] and colon and named in model.model_fields:  # a check of several fields blames one of them
        field, message, given = named, rest, given.get(named) if isinstance(given, dict) else given
    value = repr(given)
    return f"{field}: {message} (got {value if len(value) <= 80 else value[:77] + '...'})"


def _near(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The fields that may stand where an unknown one stood, the likeliest alone if there is one."""
    here: Any = model
    for part in loc[:-1]:
        if part in here.model_fields:  # else it is a place in a list, or a name that the user gave
            here = _inner_model(here.model_fields[part].annotation)
    likely = difflib.get_close_matches(str(loc[-1]), here.model_fields, n=1)
    return f"; did you mean {likely[0]}?" if likely else f" (fields: {', '.join(here.model_fields)})"


def _inner_model(annotation: Any) -> Any:
    """The spec inside `Spec`, `Spec | None` or `tuple[Spec, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [_inner_model(argument) for argument in getattr(annotation, "__args__", ())]
    return next((model for model in inner if model is not None), None)
