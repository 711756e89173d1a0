"""Stated figures of kernels and exchanges: read with their traps, and met where a kernel is bound by one thing."""

from pathlib import Path

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime.fidelity.expert_exchanges import exchanges_beside, stated_exchanges
from siltwin.runtime.fidelity.typed import Product, h800_kernels, products_beside, stated_products

# github deepseek-ai/DeepGEMM README at a9967bc, MIT; github deepseek-ai/DeepEP docs/legacy.md at dd758caf, MIT
PRODUCTS = "device,dtype,kind,groups,m_per_group,n,k,time_us_derived\nH800,fp8,dense,1,64,7168,16384,44.74\n"
EXCHANGES = (
    "source,mode,ep,tokens_per_rank,hidden,topk,dispatch_dtype,combine_dtype,"
    "dispatch_GBps,combine_GBps,dispatch_us,combine_us\n"
    "DeepEP V1,low_latency,16,128,7168,8,fp8,bf16,63,74,118,195\n"
    "DeepEP V1,normal,8,4096,7168,8,fp8,bf16,153,158,,\n"
    "DeepEP V1,normal,16,4096,7168,8,fp8,bf16,43,43,,\n"
)


def test_products_bound_by_memory_are_met(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(PRODUCTS)
    (own,) = stated_products(tmp_path / "p.csv")
    assert own == Product("dense", 1, 64, 7168, 16384, 44.74)
    (found,) = products_beside([own], h800_kernels())
    assert abs(found.error) < 0.1
    streamed_us = 7168 * 16384 / 3.35e12 * 1e6  # the weights alone, at the data sheet's bandwidth
    assert found.emulated > streamed_us


def test_exchanges_are_met_within_and_between_nodes(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(EXCHANGES)
    stated = stated_exchanges(tmp_path / "e.csv")
    assert [own.rank_bytes for own in stated[:2]] == [128 * 8 * (7168 + 7168 // 128 * 4), 128 * 8 * 7168 * 2]
    assert len(stated) == 4  # between nodes the last row's rate counts a token once a node
    found = list(exchanges_beside(stated))
    assert [own.unit for own in found] == ["us", "us", "GB/s", "GB/s"]
    assert all(abs(own.error) < 0.2 for own in found)


def test_a_stated_figure_without_a_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(PRODUCTS.replace("44.74", "0"))
    with pytest.raises(ConfigError, match="p.csv:2: .*above 0"):
        stated_products(tmp_path / "p.csv")
