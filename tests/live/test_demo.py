"""`./run demo`, as a stranger calls it: it tells a whole story and touches nothing that the environment names."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit import ROOT, eventually
from tests.processes import alive


@contextmanager
def trap() -> Iterator[tuple[str, list[str]]]:
    """An address that must never be called, and who called it."""
    caught: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    connection, peer = server.accept()
                except OSError:
                    return
                caught.append(str(peer))
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", caught
        server.shutdown(socket.SHUT_RDWR)


def test_the_demo_plays_every_scene_and_walks_into_no_trap() -> None:
    with trap() as (address, caught):
        traps = {
            "RESEND_API_KEY": "re_production",
            "RESEND_API_URL": f"http://{address}",
            "BETTERSTACK_TOKEN": "production",
            "BETTERSTACK_URL": f"http://{address}",
            "NOTIF_DATABASE_URL": f"postgresql://u:p@{address}/x",
            "NOTIF_DATABASE_MAINTENANCE_URL": f"postgresql://u:p@{address}/x",
            "NOTIF_REDIS_URL": f"redis://{address}/0",
            "NOTIF_CONFIG": "/nowhere.yaml",
            "NOTIF_APP": "nowhere:nothing",
            "PGHOST": address.partition(":")[0],
            "PGPORT": address.partition(":")[2],
            "HTTP_PROXY": f"http://{address}",
            "HTTPS_PROXY": f"http://{address}",
        }
        done = subprocess.run(
            ["./run", "demo"],
            cwd=ROOT,
            env={**os.environ, **traps},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert caught == []
    for claim in (
        "It arrived once.",
        "no mail.",
        "Two calls, one mail.",
        "the incident is resolved.",
        "All of it is so.",
    ):
        assert claim in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


class Kept:
    """A `./run demo --keep`, in a session of its own: a signal to its group is what Ctrl-C in a terminal does."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "out"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                ["./run", "demo", "--keep"], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._out.read_text()

    def until_it_said(self, text: str) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.said
            return text in self.said

        eventually(look, within=300, what=text)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(90)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Kept]]:
    made: list[Kept] = []

    def one_more() -> Kept:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Kept(folder))
        return made[-1]

    yield one_more
    for each in made:
        each.end()


def descendants(pid: int) -> set[int]:
    """Everything a process has started, and what that has started."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stays(kept: Kept) -> tuple[Path, set[int], set[int]]:
    """It is kept, and what it printed is so: its data folder, its ports, its processes."""
    kept.until_it_said("Ctrl-C ends it.")
    (mails,) = re.findall(r"^mails +(http\S+)$", kept.said, re.MULTILINE)
    with urllib.request.urlopen(mails, timeout=30) as answer:
        assert {mail["to"][0] for mail in json.load(answer)} == {"ann@example.test"}
    (folder,) = shlex.split(re.findall(r"export NOTIF_DATA_DIR=(.*); ./run notif ps$", kept.said, re.MULTILINE)[0])
    env = {**os.environ, "NOTIF_DATA_DIR": folder}
    ps = subprocess.run(["./run", "notif", "ps", "--json"], cwd=ROOT, env=env, capture_output=True, check=True)
    assert {each["role"] for each in json.loads(ps.stdout)} == {"worker", "relay", "maintenance"}
    ports = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", kept.said)}
    started = descendants(kept.process.pid)
    assert (len(ports), len(started) > 6, all(map(listens, ports))) == (3, True, True)
    return Path(folder), ports, started


def left(started: set[int], ports: set[int]) -> tuple[list[int], list[int]]:
    return [pid for pid in started if alive(pid)], [port for port in ports if listens(port)]


def test_kept_it_goes_on_at_the_addresses_it_prints_until_it_is_ended(start: Callable[[], Kept]) -> None:
    """By Ctrl-C; SIGTERM ends the one below, by the same way."""
    kept = start()
    folder, ports, started = stays(kept)
    for _ in range(2):  # impatience cuts nothing short
        os.killpg(kept.process.pid, signal.SIGINT)
    assert kept.process.wait(90) == 0, kept.said
    assert left(started, ports) == ([], [])
    assert not folder.exists()
    assert "Traceback" not in kept.said


def test_ended_in_the_middle_it_leaves_nothing(start: Callable[[], Kept]) -> None:
    kept = start()
    kept.until_it_said("1. A job, from publish to the provider")
    started = descendants(kept.process.pid)
    for _ in range(2):
        kept.process.terminate()
    assert kept.process.wait(90) == 130, kept.said
    assert left(started, set()) == ([], [])
    assert kept.said.endswith("stopping ...\n")
