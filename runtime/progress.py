"""A progress bar that shows itself only when work takes long and somebody is watching."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .terminal import console_for, plain

QUIET_S = 2.0


class DelayedProgress:
    """A bar on a stream, once the work has taken `quiet_s` seconds; nothing at all where the stream is no terminal.

    Call it with steps done, steps in all (None: unknown) and what is going on. The bar vanishes when the work ends.
    """

    def __init__(self, file: TextIO, text: str, quiet_s: float = QUIET_S) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console_for(file), transient=True)
        self._task = self._progress.add_task(plain(text), total=None)
        self._timer = threading.Timer(quiet_s, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._over = not self._progress.console.is_terminal
        self._shown = False

    def __call__(self, done: int, total: int | None, text: str) -> None:
        """Tell how far the work is."""
        if not self._over:
            self._progress.update(self._task, completed=done, total=total, description=plain(text))

    def __enter__(self) -> Self:
        if not self._over:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
            self._timer.cancel()
            if self._shown:
                self._progress.stop()

    def _show(self) -> None:
        with self._lock:  # the work may end while the timer fires: a bar that starts then would never stop
            if not self._over:
                self._progress.start()
                self._shown = True
