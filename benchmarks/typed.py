"""Kernels and exchanges of H800 and Ascend cards as READMEs state them, beside the emulated ones.

    python benchmarks/typed.py FOLDER

FOLDER holds `deepgemm_h800_fp8_gemm.csv` and `moe_alltoall_deepep.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from siltwin.runtime.fidelity.expert_exchanges import exchanges_beside, stated_exchanges
from siltwin.runtime.fidelity.typed import h800_kernels, products_beside, stated_products


def main() -> None:
    """Print a line a figure, and the mean error of each table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder, card = parser.parse_args().folder, h800_kernels()
    tables = {
        "DeepGEMM": products_beside(stated_products(folder / "deepgemm_h800_fp8_gemm.csv"), card),
        "DeepEP": exchanges_beside(stated_exchanges(folder / "moe_alltoall_deepep.csv")),
    }
    for name, found in tables.items():
        rows = list(found)
        print(f"\n{name}: mean error {np.mean([abs(row.error) for row in rows]):.1%}")
        for row in rows:
            print(f"  {row.name:<84} {row.stated:>9,.1f} {row.emulated:>9,.1f} {row.unit:<8} {row.error:+.1%}")


if __name__ == "__main__":
    main()
