"""Constants of a library whose products lose nothing, so that times of a little card can be worked out by hand."""

LOSSLESS = {
    "launch": "1", "wait": "0", "slabs": "1", "store": "0", "load": "1", "smoothing": "0", "hbm": "1", "spill": "0",
    "split_cycles": "0", "rereads": "1",
}  # fmt: skip
IDEAL = {f"tuning.{kind}.{name}": text for kind in ("matmul", "grouped") for name, text in LOSSLESS.items()}
