"""How a role's process ends."""

import subprocess
import sys

import pytest

ENDS = """
import atexit, sys, threading, time
from workers.carrier import leave
atexit.register(lambda: print("torn down", file=sys.stderr, flush=True))
if sys.argv[1] == "hangs":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("said", end="")
leave()
"""


@pytest.mark.parametrize(("thread", "said"), [("hangs", ""), ("none", "torn down\n")])
def test_nothing_is_torn_down_under_a_thread_that_hangs(thread: str, said: str) -> None:
    """A worker told to stop while Redis stalled once ended with a traceback: threads registered what was being torn down."""
    done = subprocess.run([sys.executable, "-c", ENDS, thread], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "said", said)
