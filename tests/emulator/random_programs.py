"""Random programs for one to four cards, as lines of a block's body."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Slow enough for activities to hinder each other.
TIGHT = {"hbm.bandwidth_bytes_per_s": "200GB/s"}

PLAIN = (
    "tensor | matmul dst=%y a=%x w=%w bias=-",
    "vector | add dst=%d a=%c b=%d",
    "vector | add dst=%t a=%t b=%t",
    "dma0 | copy dst=%d src=%c",
    "dma1 | copy dst=%d src=%c",
    "host | host_load dst=%c src=%h",
    "vector | signal semaphore=go count=1",
)
TOGETHER = (
    "link | all_reduce x=%c group=all",
    "link | all_gather dst=%c src=%part group=all axis=rows",
    "link | barrier group=all",
    "link | broadcast x=%e group=all root=0",
)


@st.composite
def bodies(draw: Any, cards: int, may_lock: bool) -> list[str]:
    """A body a card. All cards meet for the same exchanges in the same order, unless they may lock."""
    shared = draw(st.lists(st.sampled_from(exchanges(cards)), max_size=4)) if cards > 1 else []
    texts = []
    for rank in range(cards):
        theirs = draw(st.permutations(shared)) if may_lock else shared
        mine = [text for exchange in theirs if (text := at(exchange, rank, cards))]
        plain = draw(st.lists(st.sampled_from(PLAIN), max_size=6))
        lines, given_above = [], dict.fromkeys(("tensor", "vector", "dma0", "dma1", "link", "host", "go"), 0)
        while mine or plain:
            text = (mine if mine and (not plain or draw(st.booleans())) else plain).pop(0)
            waits = draw(st.lists(st.sampled_from(sorted(given_above)), max_size=2, unique=True))
            counts = [f"{name}+{draw(st.integers(0, given_above[name]))}" for name in waits]
            lines.append(text + (f" | wait {', '.join(counts)}" if counts else ""))
            given_above[text.split(" ")[0]] += 1
            given_above["go"] += "signal" in text
        texts.append("\n".join(lines))
    return texts


def exchanges(cards: int) -> list[tuple[str, int, int]]:
    """(instruction, source, target): collectives of all, and transfers between two."""
    pairs = [(source, target) for source in range(cards) for target in range(cards) if source != target]
    together = [(text, -1, -1) for text in TOGETHER]
    return together + [(buffer, source, target) for buffer in ("%c", "%e") for source, target in pairs]


def at(exchange: tuple[str, int, int], rank: int, cards: int) -> str:
    """What a card does in an exchange."""
    text, source, target = exchange
    if source < 0:
        return "link | barrier group=all" if "%part" in text and cards != 4 else text
    if rank == source:
        return f"link | send x={text} group=all peer={target}"
    return f"link | recv x={text} group=all peer={source}" if rank == target else ""
