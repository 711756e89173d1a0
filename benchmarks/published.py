"""Published figures of whole systems beside the emulated ones, with where the time goes.

    python benchmarks/published.py [--halves]

`--halves` computes every step in two halves, one beside the exchanges of the other. docs/end-to-end.md tells the
conditions of each figure.
"""

from __future__ import annotations

import argparse

from siltwin.runtime.fidelity.published import CLOUDMATRIX, Emulated, emulate, in_halves


def told(found: Emulated) -> str:
    """A figure and its parts, as lines."""
    published = found.published
    lines = [
        f"{published.name}: {found.tokens_per_s:,.0f} tokens/s a package, published {published.tokens_per_s:,.0f} "
        f"({found.error:+.1%}); a step {found.step_ms:,.1f} ms, {published.step_ms:,.1f} ms"
    ]
    lines += [f"  {name:<24} {time:10.2f} ms  {time / found.step_ms:6.1%}" for name, time in found.items]
    lines += [f"  condition: {line}" for line in published.conditions]
    lines += [f"  missing: {line}" for line in published.missing]
    return "\n".join(lines)


def main() -> None:
    """Emulate and print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--halves", action="store_true", help="steps in two halves, one beside the other's exchanges")
    halves = parser.parse_args().halves
    for published in CLOUDMATRIX:
        print(told(emulate(in_halves(published) if halves else published)), "\n")


if __name__ == "__main__":
    main()
