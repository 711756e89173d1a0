"""Published figures of whole systems beside the emulated ones, with where the time goes.

    python benchmarks/published.py

docs/end-to-end.md tells what they mean.
"""

from __future__ import annotations

from siltwin.runtime.fidelity.published import CLOUDMATRIX, Emulated, emulate


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
    for published in CLOUDMATRIX:
        print(told(emulate(published)), "\n")


if __name__ == "__main__":
    main()
