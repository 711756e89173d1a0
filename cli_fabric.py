"""The commands about collectives alone: `siltwin fabric`."""

from __future__ import annotations

import sys
from typing import Any

import click

from .cli_job import given_of
from .cli_show import CONTEXT, show


@click.group(context_settings=CONTEXT)
def fabric() -> None:
    """Measure collectives on an emulated cluster, and tune which algorithm runs when."""


CLUSTER_OPTION = click.option("--cluster", required=True, metavar="NAME|FILE", help="See `siltwin cluster`.")
ENDS_OPTION = click.option("--card", metavar="NAME|FILE", help="The card at the ends (default: ideal ends).")


@fabric.command()
@CLUSTER_OPTION
@click.option("--collective", metavar="NAME", help="all_reduce (the default), all_gather, reduce_scatter, ...")
@click.option("--ranks", type=int, metavar="N", help="Cards 0 to N - 1 (default: the whole cluster).")
@click.option("--group", metavar="0,1,2..", help="These cards instead, in group order; ranges as 0-7.")
@click.option("--sizes", metavar="LOW:HIGH", help="1KiB:1GiB (the default), 64MiB, or 1KiB,1MiB; as nccl-tests.")
@click.option("--factor", type=float, metavar="X", help="From size to size in a range (default: 2).")
@click.option("--algorithm", metavar="NAME,..|all", help="Instead of what the cluster chooses.")
@click.option("--protocol", metavar="NAME", help="Instead of what the cluster chooses.")
@ENDS_OPTION
@click.option("--dtype", metavar="DTYPE", help="Of the elements (default: float32).")
@click.option("--json", "json_to", metavar="FILE|-", help="Write the rows as a JSON list; - is stdout.")
@click.option("--plot", "plot_to", metavar="FILE.png", help="Plot time and bandwidth (needs siltwin[plot]).")
def bench(json_to: str | None, plot_to: str | None, **asked: Any) -> None:
    """Time a collective alone at many sizes, as nccl-tests does: time, algbw, busbw, crossovers, busiest link."""
    from .runtime.fabric.bench import Ask, run_bench
    from .runtime.fabric.plot import check_picture, plot_bench
    from .runtime.fabric.render import print_bench
    from .runtime.files import check_outputs
    from .runtime.progress import DelayedProgress

    check_outputs(json_to, plot_to)
    check_picture(plot_to)
    with DelayedProgress(sys.stderr, "emulating") as progress:
        report = run_bench(Ask(**given_of(asked)), progress)
    if plot_to is not None:
        plot_bench(report, plot_to)
    show(report, print_bench, json_to)


@fabric.command()
@CLUSTER_OPTION
@ENDS_OPTION
@click.option("--collectives", metavar="NAME,..", help="Only these (default: all).")
@click.option("--sizes", metavar="LOW:HIGH", help="1KiB:1GiB by fours is the default.")
@click.option("--ranks", metavar="2,4,8", help="Group sizes (default: powers of two and whole units, up to 64).")
@click.option("-o", "--output", metavar="FILE.yaml", help="Write the cluster's file with the table in it.")
def tune(output: str | None, **asked: Any) -> None:
    """Emulate every algorithm by collective, group and size, and write the fastest into a cluster file."""
    from .runtime.fabric.render import print_tune
    from .runtime.fabric.tune import tune as tune_cluster
    from .runtime.files import check_outputs
    from .runtime.progress import DelayedProgress
    from .runtime.terminal import console_for

    check_outputs(None, output)
    with DelayedProgress(sys.stderr, "emulating") as progress:
        report = tune_cluster(output=output, progress=progress, **given_of(asked))
    print_tune(report, console_for(sys.stdout))
