"""The command line: each command parses, calls runtime and prints; no logic lives here, and slow rooms load late."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from .cli_align import align_options, taken
from .cli_card import card
from .cli_exits import GATE_FAILED, NOT_ALIGNED, OUT_OF_MEMORY, USER_ERROR, Siltwin
from .cli_fabric import fabric
from .cli_job import job_of, job_options
from .cli_measured import calibrate, fidelity
from .cli_show import CONTEXT, JSON_OPTION, STDOUT, show
from .isa.errors import ConfigError

if TYPE_CHECKING:
    from .runtime.report import Report

SCHEMAS = (
    "report",
    "oom",
    "limits",
    "plan",
    "sweep",
    "align",
    "coverage",
    "cards",
    "card",
    "card-check",
    "models",
    "clusters",
    "cluster",
)


@click.group(cls=Siltwin, context_settings=CONTEXT)
@click.version_option(package_name="siltwin", prog_name="siltwin")
def cli() -> None:
    """Emulate a language model on accelerator cards: its real sharded numbers, its cycle-level time, its exact bytes.

    Exit codes: 0 done, 1 a bug of ours, 2 an error in what was asked, 3 out of memory (with a report), 4 alignment
    failed, 5 a gate failed or an alert was crossed.
    """


cli.add_command(card)
cli.add_command(fabric)
cli.add_command(fidelity)
cli.add_command(calibrate)


@cli.command()
@job_options
@click.option("--no-payload", is_flag=True, help="Leave the arithmetic out: time and memory only.")
@click.option(
    "--alert", "alerts", multiple=True, metavar="NAME=X", help="memory=0.9, ttft=2s, tpot=50ms; exit 5 above."
)
@click.option("--compare-kv", is_flag=True, help="A table of what the KV cache takes by each --kv-policy.")
@JSON_OPTION
@click.option("--trace", "trace_to", metavar="FILE", help="Write a Chrome trace, which ui.perfetto.dev opens.")
@click.option("--trace-cards", metavar="0-7,9|all", help="Cards in the trace (default: as many as a file should hold).")
@click.option("--logits", "logits_to", metavar="FILE.npz", help="Write the logits of every position, and the tokens.")
@click.option("--save-routing", "routing_to", metavar="FILE", help="Write what experts got, for --routing recorded:.")
@click.option("--sweep", metavar="AXIS=1,2,4", help="The same at each value of tp, dp, .., batch, input-len, ..")
def run(
    json_to: str | None,
    trace_to: str | None,
    trace_cards: str | None,
    logits_to: str | None,
    routing_to: str | None,
    no_payload: bool,
    sweep: str | None,
    **asked: Any,
) -> None:
    """Run MODEL: a directory, a .gguf or config.json file, or a name from `siltwin models`."""
    from .runtime.files import check_outputs, write_logits

    if sweep is not None:
        if any((trace_to, trace_cards, logits_to, routing_to, asked["alerts"], asked["compare_kv"])):
            raise ConfigError(
                "--sweep makes many runs; --trace, --trace-cards, --logits, --save-routing, --alert and --compare-kv "
                "tell of one: leave them out"
            )
        _sweep(sweep, json_to, payload=not no_payload, **asked)
        return
    saves = routing_to is not None
    job = job_of(payload=not no_payload, logits=logits_to is not None, save_routing=saves, **asked)
    check_outputs(json_to, trace_to, logits_to, routing_to)
    from .runtime.progress import DelayedProgress
    from .runtime.recorded import write_routing
    from .runtime.render import print_report
    from .runtime.run import run_job
    from .runtime.trace_file import check_traced, write_run_trace

    check_traced(trace_cards, trace_to)
    with DelayedProgress(sys.stderr, "reading the model") as progress:
        result = run_job(job, progress=progress)
    if trace_to is not None and (note := write_run_trace(trace_to, result, trace_cards)):
        click.echo(note, err=True)
    if logits_to is not None:
        write_logits(logits_to, result)
    if routing_to is not None:
        write_routing(routing_to, result)
    show(result.report, print_report, json_to)
    _exit_if_out_of_memory(result.report)
    if any(alert.crossed for alert in result.report.alerts):
        raise click.exceptions.Exit(GATE_FAILED)


def _sweep(text: str, json_to: str | None, **asked: Any) -> None:
    """Run a job at every value of an axis; points that do not fit stand in the table, unless there are no others."""
    from .runtime.files import check_outputs
    from .runtime.progress import DelayedProgress
    from .runtime.render_sweep import print_sweep
    from .runtime.sweep import parse_sweep, run_sweep

    swept = parse_sweep(text)
    job = job_of(**swept.first(asked))
    check_outputs(json_to)
    with DelayedProgress(sys.stderr, "reading the model") as progress:
        report = run_sweep(job, swept, progress)
    show(report, print_sweep, json_to)
    if not report.ran:
        ran_out = any(point.status == "oom" for point in report.points)
        raise click.exceptions.Exit(OUT_OF_MEMORY if ran_out else USER_ERROR)


@cli.command()
@job_options
@align_options
@JSON_OPTION
def align(json_to: str | None, **asked: Any) -> None:
    """Compare MODEL, layer by layer, with transformers on the same checkpoint (needs siltwin[reference])."""
    from .runtime.align_ask import AlignAsk
    from .runtime.files import check_outputs

    ask = AlignAsk(**taken(asked))
    job = job_of(**asked)
    check_outputs(json_to)
    from .runtime.align import align as align_job
    from .runtime.progress import DelayedProgress
    from .runtime.render_align import print_align

    with DelayedProgress(sys.stderr, "comparing with the reference"):
        report = align_job(job, ask)
    show(report, print_align, json_to)
    if report.verdict != "aligned":
        raise click.exceptions.Exit(NOT_ALIGNED)


@cli.command()
@job_options
@click.option("--alert", "alerts", multiple=True, metavar="memory=X", help="Limits within a share of a card's memory.")
@JSON_OPTION
def limits(json_to: str | None, **asked: Any) -> None:
    """Find where MODEL stops to fit, and what would help: batch, context, cards; --layout best seeks the layout."""
    from .runtime.files import check_outputs

    job = job_of(payload=False, **asked)
    check_outputs(json_to)
    from .runtime.limits import find_limits
    from .runtime.progress import DelayedProgress
    from .runtime.render_limits import print_limits

    with DelayedProgress(sys.stderr, "replaying the job's memory"):
        report = find_limits(job)
    show(report, print_limits, json_to)
    if report.cannot_fit:
        click.echo(f"{report.model.name} cannot fit: neither fewer sequences nor shorter ones would", err=True)
        raise click.exceptions.Exit(OUT_OF_MEMORY)


@cli.command()
@job_options
@click.option("--helps", is_flag=True, help="Also with one thing changed at a time: what would help, in bytes.")
@JSON_OPTION
def plan(json_to: str | None, helps: bool, **asked: Any) -> None:
    """Budget MODEL's memory before anything runs: every formula with its numbers, by kind of card, an estimate."""
    from .runtime.files import check_outputs

    job = job_of(payload=False, **asked)
    check_outputs(json_to)
    from .runtime.planning import plan_job
    from .runtime.progress import DelayedProgress
    from .runtime.render_plan import print_plan

    with DelayedProgress(sys.stderr, "adding up the job's memory"):
        report = plan_job(job, helps)
    show(report, print_plan, json_to)


@cli.command()
@job_options
@JSON_OPTION
def coverage(json_to: str | None, **asked: Any) -> None:
    """Tell how the card runs each operator of MODEL: native, composed, or missing (exit code 5); what fusions save."""
    from .runtime.files import check_outputs

    job = job_of(payload=False, **asked)
    check_outputs(json_to)
    from .runtime.coverage import cover
    from .runtime.progress import DelayedProgress
    from .runtime.render_coverage import print_coverage

    with DelayedProgress(sys.stderr, "emulating operators"):
        report = cover(job)
    show(report, print_coverage, json_to)
    if not report.complete:
        raise click.exceptions.Exit(GATE_FAILED)


@cli.command()
@click.argument("name", required=False)
@JSON_OPTION
def cards(name: str | None, json_to: str | None) -> None:
    """Show the cards side by side, or every number of one (a name or a .yaml file) and what it rests on."""
    from .runtime.catalogue import card_detail, cards_report
    from .runtime.files import check_outputs
    from .runtime.render_lists import print_card, print_cards

    check_outputs(json_to)
    if name is None:
        show(cards_report(), print_cards, json_to)
    else:
        show(card_detail(name), print_card, json_to)


@cli.command()
@click.argument("name", required=False)
@JSON_OPTION
def models(name: str | None, json_to: str | None) -> None:
    """Show the models that may be named, or one (a name, directory, .gguf or config.json file) in full."""
    from .runtime.catalogue import model_report, models_report
    from .runtime.files import check_outputs
    from .runtime.render_lists import print_models

    check_outputs(json_to)
    show(models_report() if name is None else model_report(name), print_models, json_to)


@cli.command()
@click.argument("name", required=False)
@click.option("--svg", "svg_to", metavar="FILE", help="Draw it as SVG.")
@click.option("--png", "png_to", metavar="FILE", help="Draw it as PNG (needs siltwin[plot]).")
@JSON_OPTION
def cluster(name: str | None, svg_to: str | None, png_to: str | None, json_to: str | None) -> None:
    """Draw a cluster (a name or a .yaml file) with its links, cuts and diameter, or list those that are shipped."""
    from .runtime.fabric.picture import check_pictures, draw_cluster
    from .runtime.fabric.render_cluster import print_cluster, print_clusters
    from .runtime.fabric.show import cluster_detail, clusters_report
    from .runtime.files import check_outputs

    check_outputs(json_to, svg_to, png_to)
    check_pictures(name, svg_to, png_to)
    if name is None:
        show(clusters_report(), print_clusters, json_to)
        return
    detail = cluster_detail(name)
    draw_cluster(name, svg_to, png_to)
    show(detail, print_cluster, json_to)


OUTPUT_OPTION = click.option("-o", "--output", metavar="FILE|-", default=STDOUT, help="Where to (default: stdout).")


@cli.command()
@click.argument("file")
@OUTPUT_OPTION
def asm(file: str, output: str) -> None:
    """Assemble the text of a program into its binary form."""
    from .isa.binary import encode_program
    from .isa.text import assemble
    from .runtime.files import read_text, write_file

    program = encode_program(assemble(read_text(file)))
    if output == STDOUT and sys.stdout.isatty():
        raise ConfigError("a binary program would garble the terminal; give -o FILE or pipe it on")
    write_file(output, lambda stream: stream.write(program))


@cli.command()
@click.argument("file")
@OUTPUT_OPTION
def disasm(file: str, output: str) -> None:
    """Show a binary program as text, which `asm` takes back."""
    from .isa.binary import decode_program
    from .isa.text import disassemble
    from .runtime.files import read_bytes, write_file

    text = disassemble(decode_program(read_bytes(file)))
    write_file(output, lambda stream: stream.write(text.encode()))


@cli.command()
@click.option("--of", "kind", type=click.Choice(SCHEMAS), default="report", help="Which report (default: report).")
def schema(kind: str) -> None:
    """Print the JSON schema of a report."""
    from .runtime.schemas import schema_of

    click.echo(json.dumps(schema_of(kind), indent=1))


def _exit_if_out_of_memory(report: Report) -> None:
    oom = report.oom
    if oom is not None:
        click.echo(
            f"error: out of memory on card {oom.card}: {oom.owner} asked for {oom.requested_bytes} bytes of {oom.tag}, "
            f"{oom.missing_bytes} more would hold it",
            err=True,
        )
        raise click.exceptions.Exit(OUT_OF_MEMORY)


def main() -> None:
    """The console script."""
    if sys.stdout is None:  # started with the stream closed: what it would carry is not wanted
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    cli()
