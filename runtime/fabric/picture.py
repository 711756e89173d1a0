"""The pictures that `siltwin cluster` writes: SVG by our own hand, PNG by matplotlib."""

from __future__ import annotations

from ...interconnect.cluster import load_cluster
from ...isa.errors import ConfigError
from ..files import write_file
from .draw import draw, svg
from .plot import check_picture, plot_cluster


def check_pictures(name: str | None, svg_to: str | None, png_to: str | None) -> None:
    """Before any work: there is a cluster to draw, the endings are right, and matplotlib is there if it is needed."""
    if name is None and (svg_to or png_to):
        raise ConfigError(f"{'--svg' if svg_to else '--png'} draws one cluster; name it, as `siltwin cluster ring-8`")
    check_picture(png_to, (".png",))


def draw_cluster(name: str, svg_to: str | None, png_to: str | None) -> None:
    """Draw a cluster into the files that are named; UnsupportedError for one that is too large to draw."""
    if svg_to is None and png_to is None:
        return
    drawing = draw(load_cluster(name))
    if svg_to is not None:
        text = svg(drawing)
        write_file(svg_to, lambda stream: stream.write(text.encode()))
    if png_to is not None:
        plot_cluster(drawing, png_to)
