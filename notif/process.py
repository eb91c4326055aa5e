"""Child processes that do not outlive their parent."""

import os
import sys
from collections.abc import Sequence

# Runs in between as a process of its own instead of as `preexec_fn`, which is unsafe (and a warning) where threads
# run. Order matters: a change of user clears the parent-death signal, and one set after the parent's death never comes.
_TIE = """
import ctypes, os, signal, sys
parent, sig, uid, gid = map(int, sys.argv[1:5])
libc = ctypes.CDLL(None)
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    libc.prctl(1, sig)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("parent is gone")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[5], sys.argv[5:])
"""


def tied(argv: Sequence[str], sig: int, identity: tuple[int, int] | None = None) -> list[str]:
    """The command line that runs `argv`, under the same pid, so that it gets `sig` when its parent ends, killed or not.

    The kernel looks at the *thread* that starts it: start it from one that lives as long as the process should.
    Linux only; elsewhere the command just runs. `identity` is the (uid, gid) to become, which only root may ask for.
    """
    uid, gid = identity or (-1, -1)
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), str(int(sig)), str(uid), str(gid), *argv]
