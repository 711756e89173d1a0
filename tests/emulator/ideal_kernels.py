"""Constants of a library whose kernels lose next to nothing, so that times can be worked out by hand."""

PRODUCTS = {
    "launch": "1", "wait": "0", "slabs": "1", "store": "0", "load": "1", "smoothing": "0", "hbm": "1", "spill": "0",
    "split_cycles": "0", "rereads": "1",
}  # fmt: skip
IDEAL = {f"tuning.{kind}.{name}": text for kind in ("matmul", "grouped") for name, text in PRODUCTS.items()}
ATTENTION = {"launch_ns": "100", "tile_cycles": "10", "matrix_fraction": "1", "imbalance": "0"}
DECODE = {"port_fraction": "1", "bandwidth_fraction": "1", "stall": "0", "combine_ns": "10"}
LANES = {"map_share": "1", "gate_share": "1", "reduce_share": "1", "reduce_cycles": "0"}
IDEAL_KERNELS = (
    IDEAL
    | {f"tuning.{kind}.{name}": text for kind in ("prefill", "decode") for name, text in ATTENTION.items()}
    | {f"tuning.decode.{name}": text for name, text in DECODE.items()}
    | {f"tuning.vector.{name}": text for name, text in LANES.items()}
)
