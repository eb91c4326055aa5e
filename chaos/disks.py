"""Disks that can be full: a tmpfs each, mounted for this process and its children alone, gone with the last of them."""

import contextlib
import ctypes
import errno
import os
import tempfile
from pathlib import Path

SIZE = 2**32
"""Bytes of an empty disk. What isn't used costs nothing."""
TRIES = 100
"""A server writes while its disk's size is set: the size must not be below what is used."""
NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
REMOUNT, PRIVATE, DETACH = 0x20, 0x44000, 2


def own_mounts() -> str:
    """From now on what we mount is seen by us alone; empty, or why that can't be. Call it before anything starts a thread.

    Tried by a child first: where user namespaces are half allowed, what fails half way would leave us somebody else.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, _tried().encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        reason = answer.read()
    os.waitpid(child, 0)
    if not reason:
        _separate()
    return reason


def _tried() -> str:
    try:
        _separate()
        folder = Path(tempfile.mkdtemp(prefix="notif-chaos-disk-"))
        try:
            Disk(folder).close()
        finally:
            folder.rmdir()
    except OSError as error:
        return f"no mounts of our own: {error.strerror}"
    return ""


def _separate() -> None:
    """Root needs no user namespace, and in one it could not become the user that PostgreSQL wants."""
    user, group = os.geteuid(), os.getegid()
    _done(_libc().unshare(NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USERS))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    _done(_libc().mount(None, b"/", None, PRIVATE, None))


class Disk:
    """Mounted at `folder`, which exists, until `close`. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fsencode(folder)
        _done(_libc().mount(b"tmpfs", self._folder, b"tmpfs", 0, f"size={SIZE},mode=700".encode()))

    def fill(self) -> None:
        """As large as what is on it: the next page that is asked for is ENOSPC."""
        for _ in range(TRIES):
            seen = os.statvfs(self._folder)
            try:
                self._resize((seen.f_blocks - seen.f_bfree) * seen.f_frsize)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return
        raise OSError(errno.EBUSY, "the disk grows faster than it can be filled")

    def free(self) -> None:
        self._resize(SIZE)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            _done(_libc().umount2(self._folder, DETACH))

    def _resize(self, size: int) -> None:
        _done(_libc().mount(None, self._folder, None, REMOUNT, f"size={size}".encode()))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _done(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
