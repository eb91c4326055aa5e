"""`./run demo`, as a stranger calls it: it tells a whole story and touches nothing that the environment names."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kit import ROOT


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
