"""Host threads: BLAS pinned to one thread, a pool that takes whole tiles or row ranges, and scratch for each thread.

How work is cut into tiles never depends on the number of threads, so that their number changes no bit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  numba's BLAS: loaded, then pinned
from threadpoolctl import threadpool_limits

from ...isa.errors import ConfigError
from ...isa.instruction import Array

# For the life of the process: BLAS's own threads would change the order of its sums.
_BLAS_PIN = threadpool_limits(limits=1, user_api="blas")
SMALL_ELEMENTS = 1 << 17  # below this many simple element operations, waking a thread costs more than it saves


class _Pool:
    """The process's worker threads; the calling thread works too, so it holds one worker fewer than threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.workers = ThreadPoolExecutor(threads - 1, "siltwin-host") if threads > 1 else None

    def run(self, jobs: list[Callable[[], int]]) -> list[int]:
        """Every job's result, in order; the first runs on the calling thread."""
        assert self.workers is not None
        pending = [self.workers.submit(job) for job in jobs[1:]]
        try:
            return [jobs[0](), *(future.result() for future in pending)]
        finally:
            for future in pending:
                future.exception()  # never leave while a worker still writes into a caller's buffer


_pool = _Pool(min(2, os.cpu_count() or 1))
_local = threading.local()


def set_host_threads(threads: int) -> None:
    """How many host threads the kernels use, from now on; results do not depend on it. ConfigError below 1."""
    global _pool
    if threads < 1:
        raise ConfigError(f"host threads must be 1 or more, not {threads}")
    old, _pool = _pool, _Pool(threads)
    if old.workers is not None:
        old.workers.shutdown(wait=True)


def host_threads() -> int:
    """How many host threads the kernels use."""
    return _pool.threads


def over_rows(run: Callable[[int, int], int], rows: int, elements: int) -> int:
    """run(first, last) over all rows, in as many ranges as there are threads when `elements` operations are worth it.

    `run` returns -1, or the row where it stopped; so does this: the first such row.
    """
    threads = min(_pool.threads, rows)
    if threads < 2 or elements < SMALL_ELEMENTS:
        return run(0, rows)
    edges = [rows * index // threads for index in range(threads + 1)]
    codes = _pool.run([_range_job(run, first, last) for first, last in zip(edges, edges[1:], strict=False)])
    return next((code for code in codes if code >= 0), -1)


def _range_job(run: Callable[[int, int], int], first: int, last: int) -> Callable[[], int]:
    return lambda: run(first, last)


def over_tiles(run: Callable[[int], None], tiles: int) -> None:
    """run(tile) for every tile, dealt out to the threads in turn."""
    threads = min(_pool.threads, tiles)
    if threads < 2:
        for tile in range(tiles):
            run(tile)
        return

    def deal(first: int) -> Callable[[], int]:
        def job() -> int:
            for tile in range(first, tiles, threads):
                run(tile)
            return -1

        return job

    _pool.run([deal(first) for first in range(threads)])


def scratch(name: str, rows: int, cols: int) -> Array:
    """A float32 [rows, cols] of this thread, its contents arbitrary, good until the same name is asked for again."""
    held: dict[str, Array] = _local.__dict__
    array = held.get(name)
    if array is None or array.size < rows * cols:
        array = held[name] = np.empty(rows * cols, np.float32)
    return array[: rows * cols].reshape(rows, cols)
