"""Connections: how many, whose, and that all of them are given back."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from notif.adapters.postgres.database import Database
from notif.bootstrap import WorkerProcess
from notif.errors import ConfigurationError
from tests.kit import ROOT, Installation, eventually
from tests.reports.living import Living

FORK = """
import os, sys
from notif import Notifier
from notif.errors import NotifError
notifier = Notifier.from_settings()
def ask(n):
    status = notifier.status(sys.argv[1])
    assert [s.queue for s in status] == ["notif.email.transactional"], status
ask(0)  # a connection is open before the fork, as under a server that loads the product first
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        for n in range(250):
            ask(n)
        os._exit(0)
    children.append(child)
for n in range(250):
    ask(n)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_b93_forked_children_share_no_connection(notif: Installation) -> None:
    job = notif.send()
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(job)],
        env=notif.env("notif_publisher"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_b96_five_reloads_leave_no_connection_behind(notif: Installation, living: Living) -> None:
    """As many as the pools allow while it works, none when it has stopped; of Redis' clients neither."""
    living.relay()
    eventually(lambda: notif.rows("SELECT 1 FROM core.process WHERE role = 'relay'"), what="the relay is up")
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'notif worker%' AND datname = current_database()"
    clients = len(notif.redis.client_list())
    most = 0
    for _ in range(5):
        living.worker(threads=16)
        notif.send_many(60)
        while notif.one("SELECT count(*) FROM core.outbox"):
            most = max(most, notif.one(ours))
        living.stop()
        eventually(lambda: notif.one(ours) == 0, within=10, what="its connections are closed")
    assert 1 < most <= 16 + 3
    eventually(lambda: len(notif.redis.client_list()) <= clients + 1, within=10, what="Redis' clients are closed")
    assert len(notif.mails()) == 300


def test_b94_pools_have_a_connection_for_every_thread_and_must_fit_the_server(notif: Installation) -> None:
    text = notif.config.read_text().replace("../config/templates", str(ROOT / "config" / "templates"))
    notif.config = notif.folder / "many.yaml"
    notif.admin(f"ALTER DATABASE {notif.database} CONNECTION LIMIT 100")
    try:
        for threads, fits in ((64, True), (100, False)):
            notif.config.write_text(text.replace("threads: 8", f"threads: {threads}"))
            app = notif.app_as("notif_worker")
            process = WorkerProcess(app, ("transactional",))
            assert max(database.pool for database in app._databases) == threads
            if fits:
                process.check(threading.Event())
            else:
                with pytest.raises(
                    ConfigurationError, match=r"this process would hold 10\d connections, Postgres lets"
                ):
                    process.check(threading.Event())
            process.close()
    finally:
        notif.admin(f"ALTER DATABASE {notif.database} CONNECTION LIMIT -1")


def test_b94_a_pool_never_opens_more_than_it_says(notif: Installation) -> None:
    database = Database(notif.servers.url("notif_worker", notif.database), pool=3, name="b94")
    most = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'b94'"
    gate = threading.Barrier(12)

    def ask(_: int) -> int:
        gate.wait(10)
        database.call("SELECT pg_sleep(0.05)")
        return int(notif.one(most))

    with ThreadPoolExecutor(12) as threads:
        assert max(threads.map(ask, range(12))) == 3
    database.close()
