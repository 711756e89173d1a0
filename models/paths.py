"""Paths that a user or a checkpoint names: whether something is there, and whether it can be read to an end."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from ..isa.errors import ConfigError

_NO_SUCH_NAME = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EBADF, errno.EINVAL}


def is_there(path: Path) -> bool:
    """Whether a file or directory of this name exists; ConfigError where it is forbidden to look."""
    try:
        path.stat()
    except ValueError:  # a null character in the name
        return False
    except OSError as error:
        if error.errno in _NO_SUCH_NAME:
            return False
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    return True


def refuse_endless(path: Path) -> None:
    """ConfigError for a pipe, socket or device, which may never end, where a checkpoint must hold a file.

    What is not there or is a directory is left to whoever opens it. Raises OSError where it is forbidden to look.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: cannot be read (it is a pipe or a device; a checkpoint is made of plain files)")
