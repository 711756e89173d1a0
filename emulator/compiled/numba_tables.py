"""Numba's own tables of functions, loaded as the calendar is imported and without scipy, which kernels alone need.

Numba loads them before its first compiled function, and looks for scipy's BLAS as it does: half of the time. Functions
that multiply matrices look for it again.
"""

from __future__ import annotations

import sys
from typing import Any

from numba.core.registry import cpu_target

_BLAS = "scipy.linalg.cython_blas"


def load_tables() -> None:
    """Load what Numba knows of Python and NumPy; once is enough."""
    modules: dict[str, Any] = sys.modules
    hides = _BLAS not in modules
    if hides:
        modules[_BLAS] = None  # an import of it fails
    try:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
    finally:
        if hides:
            del modules[_BLAS]


load_tables()
