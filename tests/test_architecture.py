"""The floors are law: imports only go down, and every package is listed."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = {"isa": 1, "interconnect": 2, "models": 2, "emulator": 3, "runtime": 4}
COMMANDS = ("cli_card", "cli_fabric", "cli_measured")
CLI = ("cli_align", "cli_exits", "cli_job", "cli_show", *COMMANDS, "cli")
FLOORS |= dict.fromkeys(CLI, 5) | dict.fromkeys(COMMANDS, 6) | {"cli": 7, "__main__": 8}
LAZY = {"torch", "transformers", "matplotlib"}


def sources() -> list[Path]:
    rooms = [path for room in FLOORS for path in (ROOT / room).rglob("*.py")]
    return [*rooms, *sorted(ROOT.glob("cli*.py")), ROOT / "__main__.py"]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> list[tuple[int, str]]:
    """(line, room) of every import of ours in a file, at whatever depth it stands."""
    depth = len(path.relative_to(ROOT).parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found += [(node.lineno, name.split(".")[0]) for name in names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("siltwin"):
            found.append((node.lineno, (node.module.split(".") + ["siltwin"])[1]))
        elif isinstance(node, ast.Import):
            found += [(node.lineno, a.name.split(".")[1]) for a in node.names if a.name.startswith("siltwin.")]
    return found


def test_imports_only_go_down() -> None:
    wrong = []
    for path in sources():
        here = room_of(path)
        for line, room in imported_rooms(path):
            if room == here or room not in FLOORS:
                continue
            if FLOORS[room] >= FLOORS[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} may not import {room}")
            if (here, room) == ("emulator", "models"):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: a card may not know a model")
    assert not wrong, "\n".join(wrong)


def test_no_import_hides_in_a_function_save_the_slow_ones() -> None:
    wrong = []
    for path in sources():
        if room_of(path) in CLI:
            continue  # the command line loads a command's rooms when the command runs, to start fast
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    names = [alias.name.split(".")[0] for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = ["ours" if node.level else (node.module or "").split(".")[0]]
                else:
                    continue
                wrong += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: import of {name} inside a function"
                    for name in names
                    if name not in LAZY
                ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_with_an_init_is_a_listed_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        ".".join(["siltwin", *path.parent.relative_to(ROOT).parts])
        for room in ["", *FLOORS]
        for path in (ROOT / room).glob("__init__.py" if not room else "**/__init__.py")
    }
    assert sorted(listed) == sorted(folders)


def test_every_source_opens_with_its_caption() -> None:
    missing = [str(p.relative_to(ROOT)) for p in sources() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not missing
