"""Runs the ```console examples of a Markdown file and checks that they print what it shows.

A line `$ siltwin ...` is a command (a trailing backslash continues it); the lines under it are output, of which each
must appear in what the command prints, in order, but for spacing. A line `...` stands for anything. A command whose
exit code should not be 0 ends in a comment: `$ siltwin run ...  # exit code 3`. All examples of a file share one
scratch directory, so that one may read what another wrote.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"#\s*exit code (\d+)\s*$")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Example:
    """A command, the exit code it should have, and the lines it should print."""

    command: str
    exit_code: int
    output: tuple[str, ...]


def examples_of(markdown: str) -> list[Example]:
    """The siltwin commands of all console blocks, in order; other commands are for the reader alone."""
    found: list[Example] = []
    for block in BLOCK.findall(markdown):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if command.split()[:1] != ["siltwin"]:
                continue
            code = EXIT_CODE.search(command)
            found.append(
                Example(
                    EXIT_CODE.sub("", command).strip(),
                    int(code[1]) if code else 0,
                    tuple(line for line in output.splitlines() if line.strip() not in ("", "...")),
                )
            )
    return found


def missing_line(example: Example, printed: str) -> str | None:
    """The first line of the example's output that was not printed in its place, None if all were."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    for wanted in example.output:
        if " ".join(wanted.split()) not in lines:
            return wanted
    return None


def fault_of(example: Example, directory: str) -> str | None:
    """Run an example; what is wrong with it, None if nothing."""
    command = [sys.executable, "-m", *shlex.split(example.command)]
    done = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != example.exit_code:
        return f"exit code {done.returncode}, not {example.exit_code}\n{done.stdout}"
    missing = missing_line(example, done.stdout)
    return None if missing is None else f"does not print (or not in this order):\n  {missing}\nbut:\n{done.stdout}"


def main(paths: list[str]) -> int:
    """Run the examples of all files; 1 if any is wrong."""
    faults = 0
    for path in paths:
        examples = examples_of(Path(path).read_text(encoding="utf-8"))
        print(f"{path}: {len(examples)} examples", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            for example in examples:
                print(f"$ {example.command}", flush=True)
                fault = fault_of(example, directory)
                if fault is not None:
                    faults += 1
                    print(f"FAILED: {fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["README.md"]))
