"""Packing: codes of four bits in bytes and of four or eight bits in 32-bit words, the first element lowest."""

from __future__ import annotations

import numpy as np

from ..errors import ConfigError, UnsupportedError
from .elements import Array

WORD_BITS = 32


def pack_nibbles(codes: Array) -> Array:
    """uint8 [..., ceil(n / 2)] of 4-bit codes [..., n]: element 0 in the low nibble; an odd row ends in a zero nibble.

    Negative codes (int4) are taken modulo 16, their two's complement.
    """
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu" or (codes.size and (codes.min() < -8 or codes.max() > 15)):
        raise ConfigError(f"a nibble holds integers from -8 to 15, not these {codes.dtype}")
    nibbles = codes.astype(np.uint8) & np.uint8(15)
    if nibbles.shape[-1] % 2:
        nibbles = _padded(nibbles, 1)
    return nibbles[..., ::2] | (nibbles[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Array, count: int) -> Array:
    """The first `count` codes, 0 to 15, of every row of uint8 [..., ceil(count / 2)]."""
    packed = np.asarray(packed)
    width = -(-count // 2)
    if packed.dtype != np.uint8 or packed.shape[-1] != width:
        found = f"{packed.dtype} {list(packed.shape)}"
        raise ConfigError(f"{count} nibbles a row are packed as uint8 [..., {width}], not {found}")
    pairs = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)[..., :count]


def signed_nibbles(nibbles: Array) -> Array:
    """int8 values -8 to 7 of two's complement nibbles."""
    return ((nibbles.astype(np.int8) ^ np.int8(8)) - np.int8(8)).astype(np.int8)


def pack_words(codes: Array, bits: int) -> Array:
    """int32 [..., ceil(n * bits / 32)] of signed codes [..., n] as compressed-tensors packs them.

    A code is stored with 2**(bits - 1) added, the first lowest; the tail of the last word is zero bits.
    UnsupportedError for bits other than 4 and 8, the two in use.
    """
    per_word, offset = _per_word(bits), 1 << (bits - 1)
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu" or (codes.size and (codes.min() < -offset or codes.max() >= offset)):
        raise ConfigError(f"{bits}-bit codes run from {-offset} to {offset - 1}; these {codes.dtype} do not all fit")
    stored = (codes.astype(np.int64) + offset).astype(np.uint32)
    stored = _padded(stored, -stored.shape[-1] % per_word)
    lanes = stored.reshape(*stored.shape[:-1], -1, per_word) << (np.arange(per_word, dtype=np.uint32) * np.uint32(bits))
    words: Array = np.bitwise_or.reduce(lanes, axis=-1)
    return words.view(np.int32)


def unpack_words(packed: Array, bits: int, count: int) -> Array:
    """int8 codes [..., count] of int32 words [..., ceil(count * bits / 32)]; the inverse of `pack_words`."""
    per_word, offset = _per_word(bits), 1 << (bits - 1)
    packed = np.asarray(packed)
    words = -(-count // per_word)
    if packed.dtype != np.int32 or packed.shape[-1] != words:
        raise ConfigError(
            f"{count} codes of {bits} bits a row are packed as int32 [..., {words}], "
            f"not {packed.dtype} {list(packed.shape)}"
        )
    unsigned = np.ascontiguousarray(packed).view(np.uint32)[..., None]
    lanes = (unsigned >> (np.arange(per_word, dtype=np.uint32) * np.uint32(bits))) & np.uint32((1 << bits) - 1)
    codes = lanes.reshape(*packed.shape[:-1], -1)[..., :count].astype(np.int16) - np.int16(offset)
    return codes.astype(np.int8)


def _per_word(bits: int) -> int:
    if bits not in (4, 8):
        raise UnsupportedError(f"codes of {bits} bits in 32-bit words are not supported; known: 4 and 8")
    return WORD_BITS // bits


def _padded(codes: Array, extra: int) -> Array:
    return np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, extra)])
