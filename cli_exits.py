"""How a command ends: the one place where errors become a line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any, NoReturn

import click

from .isa.errors import SiltwinError

OUR_BUG, USER_ERROR, OUT_OF_MEMORY, NOT_ALIGNED, GATE_FAILED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 5, 130, 141


class Siltwin(click.Group):
    """The group of commands."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command: users' errors in one line on stderr, our own as a short message with exit code 1."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SiltwinError as error:
            _fail(f"error: {error}", error.exit_code)
        except KeyboardInterrupt:
            _fail("interrupted", INTERRUPTED)
        except BrokenPipeError:
            _leave_broken_pipe()
        except OSError as error:  # the system's refusal, such as a full disk behind stdout, is no bug of ours
            _leave_stdout()
            _fail(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""), USER_ERROR)
        except MemoryError:
            _fail("error: this machine has not enough memory of its own for that; try --no-payload", USER_ERROR)
        except Exception as error:
            _fail(
                f"internal error: {type(error).__name__}: {error}\n"
                "This is a bug in siltwin. Run again with SILTWIN_DEBUG=1 for the traceback, and report both.",
                OUR_BUG,
            )


def _fail(message: str, exit_code: int) -> NoReturn:
    from .runtime.terminal import plain

    if os.environ.get("SILTWIN_DEBUG") == "1":
        traceback.print_exc()
    click.echo(plain(message), err=True)
    raise click.exceptions.Exit(exit_code)


def _leave_broken_pipe() -> NoReturn:
    """Who read us has gone: say nothing."""
    _leave_stdout()
    raise click.exceptions.Exit(BROKEN_PIPE)


def _leave_stdout() -> None:
    """Nobody takes what we print any more: do not try again when the interpreter flushes stdout at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
