"""What the harness harms servers with, by itself: disks that are full, clocks that jump."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.clocks import SHARED, Clock, no_clocks, tidy
from tests.kit import ROOT

FULL = """
import sys
from pathlib import Path
from chaos.disks import Disk, own_mounts
reason = own_mounts()
if reason:
    sys.exit(reason)
folder = Path(sys.argv[1])
disk = Disk(folder)
(folder / "before").write_bytes(b"x" * 100_000)
disk.fill()
try:
    (folder / "more").write_bytes(b"x" * 100_000)
except OSError as error:
    print(error.strerror)
print((folder / "before").stat().st_size)
disk.free()
(folder / "more").write_bytes(b"x" * 100_000)
print((folder / "more").stat().st_size)
disk.close()
print(list(folder.iterdir()))
"""
NOW = "import time; print(time.time() - float(input()), time.monotonic(), flush=True); input(); print(time.time())"


def python(code: str, *arguments: str, command: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_full_disk_takes_nothing_until_it_is_freed_and_is_seen_by_nobody_else(tmp_path: Path) -> None:
    said, reason = python(FULL, str(tmp_path)).communicate(timeout=60)
    if not said:
        pytest.skip(reason.strip())
    assert said.splitlines() == ["No space left on device", "100000", "100000", "[]"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(bool(no_clocks()), reason=no_clocks())
def test_a_clock_jumps_under_a_process_that_runs(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    process = python(NOW, command=clock.command())
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{time.time()}\n")
    process.stdin.flush()
    off, monotonic = map(float, process.stdout.readline().split())
    assert 0 <= off < 30
    assert abs(time.monotonic() - monotonic) < 30
    clock.off_by(-3600.0)
    said, _ = process.communicate("\n", timeout=60)
    assert abs(time.time() - 3600.0 - float(said)) < 30


@pytest.mark.skipif(bool(no_clocks()), reason=no_clocks())
def test_what_the_library_leaves_of_a_killed_process_is_taken_away(tmp_path: Path) -> None:
    with python("import time; print(time.time()); input()", command=Clock(tmp_path / "clock").command()) as process:
        assert process.stdout
        process.stdout.readline()
        process.kill()
        process.wait()
    tidy([process.pid])
    assert not [left.name for left in SHARED.glob(f"*faketime_*{process.pid}")]
