"""Point to point: member 0 of a group of two sends its buffer to member 1, which keeps it or adds it: S/b + L alone."""

from __future__ import annotations

from .plan import Moves, Step, Transfer, moves_of
from .registry import Options, algorithm


@algorithm("send_recv", "direct")
def send_recv(size: int, root: int, options: Options) -> Moves:
    """SEND and RECV: member 1's buffer is overwritten."""
    return moves_of((Step((Transfer(0, 1, 0),)),))


@algorithm("send_recv_reduce", "direct")
def send_recv_reduce(size: int, root: int, options: Options) -> Moves:
    """SEND and RECV_REDUCE: member 1 adds to its own buffer."""
    return moves_of((Step((Transfer(0, 1, 0, reduces=True),)),))
