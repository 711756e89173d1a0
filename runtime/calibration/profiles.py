"""Profilers' exports as tables of the schema: msprof's op_summary and Nsight Systems' kernels by NVTX range."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...isa.errors import ConfigError
from .faults import refuse
from .schema import KINDS, table_kind
from .tables import cells

Row = Mapping[str, str]
MSPROF = ("OP Type", "Task Duration(us)", "Input Shapes", "Input Data Types", "Output Shapes")
NSIGHT = ("NVTX Range", "NVTX Inst", "Total Time (ns)")
PRODUCTS = re.compile(r"(Batch)?MatMul(V\d)?|GroupedMatmul|QuantBatchMatmul.*", re.IGNORECASE)
TYPES = {"DT_BF16": "bf16", "BF16": "bf16", "FLOAT16": "fp16", "DT_FLOAT16": "fp16", "INT8": "int8", "DT_INT8": "int8"}
_RANGE = re.compile(r":?(\w+)((?:\s+\w+=[\w.]+)+)\s*")


def converted(path: Path) -> dict[str, str]:
    """Tables as CSV text by file name, from a profiler's export; ConfigError where nothing known is in it."""
    header, lines, rows = cells(path)
    named = [dict(zip(header, row, strict=True)) for row in rows]
    if set(MSPROF) <= header.keys():
        found = _msprof(path, lines, named)
    elif set(NSIGHT) <= header.keys():
        found = _nsight(path, lines, named)
    else:
        raise ConfigError(
            f"{path}: neither msprof's op_summary (columns {', '.join(MSPROF)}) nor Nsight Systems' nvtx_kern_sum "
            f"(columns {', '.join(NSIGHT)})"
        )
    if not found:
        raise ConfigError(f"{path}: no row tells its sizes in a way that is known; see docs/calibration.md")
    return {f"{stem}.csv": _csv(rows) for stem, rows in found.items()}


def _msprof(path: Path, lines: list[int], rows: Sequence[Row]) -> dict[str, list[dict[str, str]]]:
    """Plain matrix products of an op_summary; k is what the first input has beside the output's rows."""
    found: list[dict[str, str]] = []
    for line, row in zip(lines, rows, strict=True):
        if not PRODUCTS.fullmatch(row["OP Type"].strip()) or row["OP Type"].strip().lower().startswith("grouped"):
            continue
        try:
            inputs, outputs = _shapes(row["Input Shapes"]), _shapes(row["Output Shapes"])
            n, m = outputs[0][-1], math.prod(outputs[0][:-1])
            k = math.prod(inputs[0]) // m
            kind = TYPES[row["Input Data Types"].strip('"').split(";")[0].strip()]
            time_ms = float(row["Task Duration(us)"]) / 1000
        except (ValueError, IndexError, KeyError, ZeroDivisionError) as error:
            refuse(path, [(line, f"no product can be read from its shapes, types and duration ({error})")])
        if len(inputs[1]) == 2:  # with a weight of its own for each matrix it is not one product
            found.append({"gemm_dtype": kind, "m": f"{m}", "n": f"{n}", "k": f"{k}", "latency_ms": f"{time_ms:.6g}"})
    return {"gemm": found} if found else {}


def _shapes(text: str) -> list[list[int]]:
    """`"16,4096;4096,4096"` as lists of sides."""
    return [[int(side) for side in part.split(",")] for part in text.strip().strip('"').split(";") if part]


def _nsight(path: Path, lines: list[int], rows: Sequence[Row]) -> dict[str, list[dict[str, str]]]:
    """Ranges named after a table and its columns, as `gemm m=16 n=4096 k=4096`; their kernels' times are added up."""
    total_ns: dict[tuple[str, str], float] = defaultdict(float)
    for line, row in zip(lines, rows, strict=True):
        match = _RANGE.fullmatch(row["NVTX Range"].strip())
        if match is None or table_kind(match[1]) is None:
            continue
        try:
            total_ns[match[1], match[2]] += float(row["Total Time (ns)"]) / int(row["NVTX Inst"])
        except (ValueError, ZeroDivisionError) as error:
            refuse(path, [(line, f"no time can be read from it ({error})")])
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for (stem, words), time_ns in total_ns.items():
        values = dict(word.split("=", 1) for word in words.split())
        found[stem].append({**values, "latency_ms": f"{time_ns / 1e6:.6g}"})
    return dict(found)


def _csv(rows: Iterable[Row]) -> str:
    """Rows as CSV with the columns that any of them has, in the schema's order."""
    rows = list(rows)
    given = {name for row in rows for name in row}
    names = [name for name in dict.fromkeys(_known_columns()) if name in given]
    names += sorted(given - set(names) - {"latency_ms"}) + ["latency_ms"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _known_columns() -> Iterator[str]:
    for kind in KINDS:
        yield from (column.name for column in kind.columns)
