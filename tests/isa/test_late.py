"""Modules that load late are there when they are first read, and a run without numbers does without some."""

import subprocess
import sys

import pytest

from siltwin.isa.late import late

LOADED = (
    "import sys, siltwin.runtime.run; from importlib.util import _LazyModule as Lazy;"
    "print([name for name in {names!r} if type(sys.modules.get(name, Lazy('x'))) is not Lazy])"
)


def test_a_late_module_loads_when_something_of_it_is_read() -> None:
    code = (
        "import sys; from siltwin.isa.late import late; from importlib.util import _LazyModule as Lazy;"
        "lazy = late('colorsys'); print(type(sys.modules['colorsys']) is Lazy, lazy.rgb_to_hsv(0, 0, 1)[2],"
        "type(sys.modules['colorsys']) is Lazy)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["True", "1", "False"]


def test_a_module_that_is_loaded_is_given_as_it_is() -> None:
    assert late("pytest") is pytest and late(".late", "siltwin.isa") is sys.modules["siltwin.isa.late"]


def test_a_module_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        late("no_such_module")


def test_a_run_loads_no_kernels_before_there_are_numbers() -> None:
    names = ["siltwin.emulator.kernels.registry", "siltwin.runtime.numbers", "gguf", "jinja2"]
    names += ["scipy.sparse", "scipy.linalg", "networkx"]
    answer = subprocess.check_output([sys.executable, "-c", LOADED.format(names=names)], text=True)
    assert answer.strip() == "[]"


def test_matrices_are_multiplied_by_blas_though_numba_started_without() -> None:
    code = (
        "import siltwin.emulator.compiled.calendar, sys; assert 'scipy.linalg' not in sys.modules\n"
        "import numpy as np, numba\n"
        "product = numba.njit(lambda a, b: a @ b)(np.ones((3, 4)), np.full((4, 2), 2.0))\n"
        "print(product.tolist(), 'scipy.linalg.cython_blas' in sys.modules)"
    )
    answer = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert answer.strip() == "[[8.0, 8.0], [8.0, 8.0], [8.0, 8.0]] True"
