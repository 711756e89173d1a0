"""Failures on their way through SimPy, which hands every process a copy of an exception, made from its args."""

from __future__ import annotations

from ..isa.errors import SiltwinError


class Cancelled(SiltwinError):
    """A submission was taken back before it ended."""


class Failed(SiltwinError):
    """Carries any exception as a failure that SimPy can copy, whatever that exception is made from."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


def original(error: Exception) -> Exception:
    """The exception behind what SimPy threw into a process."""
    cause = error.__cause__
    if isinstance(cause, Exception) and type(cause) is type(error) and cause.args == error.args:
        error = cause
    return error.cause if isinstance(error, Failed) else error


def carried(cause: Exception) -> Exception:
    """`cause` itself where SimPy can copy it, else in a Failed."""
    try:
        type(cause)(*cause.args)
    except Exception:
        return Failed(cause)
    return cause
