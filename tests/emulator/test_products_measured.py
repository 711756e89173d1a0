"""Matrix products as a data sheet and the default constants have them, beside times measured on the hardware."""

import numpy as np
import pytest

from siltwin.emulator.spec import load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import BF16
from siltwin.isa.work import MatmulShape, Unit, Work

# m, n, k, and microseconds on an A100 SXM and on an H100 SXM: bf16, clocks not locked. 24 rows drawn at random of those
# that ai-dynamo/aiconfigurator has of both cards (Apache-2.0).
MEASURED = (
    (1, 32, 3072, 4.7, 5.6),
    (1, 2560, 2048, 14.0, 7.2),
    (1, 12288, 12288, 186.8, 111.3),
    (1, 65536, 512, 57.3, 27.8),
    (2, 64, 1536, 5.6, 4.3),
    (4, 4096, 16384, 97.4, 51.2),
    (4, 65536, 512, 52.1, 28.6),
    (8, 8192, 16384, 167.3, 93.2),
    (16, 6144, 2048, 21.0, 12.5),
    (32, 3072, 65536, 253.4, 149.3),
    (32, 6144, 3584, 34.7, 20.4),
    (64, 5120, 2560, 20.9, 13.0),
    (80, 128, 6144, 7.6, 6.0),
    (96, 1024, 8192, 19.4, 12.4),
    (128, 768, 2560, 11.3, 6.2),
    (160, 2048, 256, 5.8, 3.4),
    (192, 3584, 1024, 12.7, 6.7),
    (256, 32, 16384, 10.0, 6.3),
    (256, 1536, 1024, 10.1, 4.9),
    (768, 32, 32, 4.2, 2.6),
    (1024, 32, 3584, 9.4, 6.5),
    (1024, 64, 5120, 11.4, 7.6),
    (8192, 3072, 5120, 1025.2, 323.2),
    (8192, 65536, 256, 1489.7, 534.0),
)


@pytest.mark.parametrize(("name", "column"), [("a100-sxm", 3), ("h100-sxm", 4)])
def test_a_data_sheet_alone_predicts_products_within_a_quarter(name: str, column: int) -> None:
    errors = []
    for row in MEASURED:
        m, n, k = row[:3]
        work = Work(Unit.TENSOR, 2 * m * n * k, 2 * (m + n) * k, 2 * m * n, BF16, MatmulShape(m, n, k))
        asked = demand(work, load_card(name))
        errors.append(abs((asked.fixed_ps + asked.alone_ps) / 1e6 / row[column] - 1))
    assert np.mean(errors) < 0.25 and max(errors) < 0.6
