"""Redis away, wiped, stalled or cut off: nothing is lost, nothing doubled, everything resumes by itself."""

import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notif.adapters.embedded_valkey import EmbeddedValkey
from notif.adapters.redis_carrier import NAMESPACE, RedisCarrier
from notif.bootstrap.machine import GRACE
from notif.ports import Publication
from notif.relay import AWAY_WAIT
from notif.sandbox import Sandbox
from tests.kit import CONFIG, EMAIL, ROOT, Installation, eventually, patient
from tests.processes import until
from tests.product import TABLE
from tests.reports.living import Living
from tests.reports.ways import passed, relay_of
from tests.servers import Servers, emptied
from tests.spine.hands import Hands
from tests.spine.relays import Leaky, on_redis


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A Valkey of the test's own, to stop and start."""
    with EmbeddedValkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def apart(
    servers: Servers, database: str, sandbox: Sandbox, valkey: EmbeddedValkey, tmp_path: Path
) -> Iterator[Installation]:
    """An installation on that Valkey."""
    mine = replace(servers, redis_url=valkey.url, valkey=valkey)
    emptied(mine, database)
    made = Installation(mine, database, sandbox, tmp_path)
    made.sandbox.reset()
    yield made
    made.close()


@pytest.fixture
def alive(apart: Installation) -> Iterator[Living]:
    made = Living(apart)
    made.relay()
    made.worker("transactional", "loyalty")
    yield made
    made.close()


def arrived(notif: Installation) -> list[str]:
    return sorted(mail["tags"]["job"] for mail in notif.mails())


def test_b01_b23_delayed_jobs_due_while_redis_is_away(
    apart: Installation, alive: Living, valkey: EmbeddedValkey
) -> None:
    """Fifty, due within the outage; Redis is killed and starts again with its data. Nobody restarts the worker."""
    soon = datetime.now(UTC) + timedelta(seconds=1)
    jobs = [Publication((EMAIL,), apart.envelope(), soon) for _ in range(50)]
    apart.app.queue.publish_many(jobs)
    threads = list(alive.threads)
    assert on_redis(apart) == []  # nothing that is delayed is ever there
    valkey.kill()
    at_home = apart.send()  # publishing needs no Redis
    until("they are due", lambda: datetime.now(UTC) > soon + timedelta(seconds=2))
    assert apart.mails() == []
    valkey.start()
    apart.until_empty(30)
    assert arrived(apart) == sorted(str(job) for job in [*(p.envelope.job_id for p in jobs), at_home])
    assert list(alive.threads) == threads
    assert all(thread.is_alive() for thread in threads)
    assert alive.log.getvalue().count("relay waits") <= 3, "once for each loop, not once a poll"


def test_b22_three_resets_within_three_seconds(apart: Installation, alive: Living) -> None:
    apart.admin(TABLE + "; DELETE FROM public.loyalty")
    pause = threading.Event()
    for _ in range(3):
        with suppress(ConnectionError):
            apart.redis.client_kill_filter(_type="normal", skipme=True)
        apart.send("order.placed", **apart.envelope().data, points=1)
        pause.wait(0.7)
    apart.until_empty(15)  # of both queues
    assert (len(apart.mails()), len(apart.admin("SELECT * FROM public.loyalty"))) == (3, 3)


def test_b76_a_restart_without_its_data(apart: Installation, alive: Living, valkey: EmbeddedValkey) -> None:
    apart.sandbox.faults([{"fault": "hold", "times": 8}])
    jobs = apart.send_many(120)
    apart.sandbox.wait_for_held(4)
    eventually(lambda: on_redis(apart), what="some wait on Redis")
    valkey.kill()
    shutil.rmtree(apart.folder / "valkey" / "appendonlydir")
    valkey.start()
    apart.sandbox.release()
    apart.until_empty(30)
    assert arrived(apart) == sorted(map(str, jobs))
    assert apart.rows("SELECT DISTINCT verdict FROM core.delivery") == [("delivered",)]


def test_told_to_stop_while_redis_is_away_a_worker_ends_within_its_grace(
    apart: Installation, alive: Living, valkey: EmbeddedValkey
) -> None:
    """Its calls settle; what it can't tell Redis any more is brought back by reaper and timers."""
    apart.sandbox.faults([{"fault": "hold", "times": 8}])
    apart.send_many(12)
    apart.sandbox.wait_for_held(8)
    eventually(lambda: not on_redis(apart), what="the others are fetched")
    valkey.kill()
    workers: Any = alive.threads[:8]
    stopping = threading.Thread(target=alive.stop, daemon=True)
    stopping.start()
    eventually(lambda: not any(each.running for each in workers), what="no thread takes another one")
    apart.sandbox.release()
    stopping.join(GRACE)
    assert not stopping.is_alive()
    valkey.start()
    left = apart.rows("SELECT DISTINCT attempts FROM core.outbox WHERE state = 'pushed'")
    assert (left, len(apart.mails())) == ([(0,)], 8)
    assert alive.log.getvalue().count("Traceback") == 0, "an outage is no surprise"
    assert "reaper failed" not in alive.log.getvalue()


@pytest.mark.parametrize("command", ["notif", "dramatiq"])
def test_told_to_stop_while_redis_stalls_a_process_ends_within_its_grace(
    apart: Installation, valkey: EmbeddedValkey, command: str
) -> None:
    """Eight threads wait for a Redis that takes their acks and says nothing: none of them waits for longer than one answer."""
    apart.config = patient(apart)
    apart.relay()
    commands = {
        "notif": ("-m", "notif", "worker", "transactional"),
        "dramatiq": ("-m", "dramatiq", "workers.transactional", "--processes", "1", "--threads", "8"),
    }
    worker = apart.process(*commands[command])
    eventually(lambda: apart.rows("SELECT 1 FROM core.process WHERE role = 'worker'"), within=120, what="it is up")
    apart.sandbox.faults([{"fault": "hold", "times": 8}])
    jobs = apart.send_many(12)
    apart.sandbox.wait_for_held(8)
    eventually(lambda: not on_redis(apart), what="the others are fetched")
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        apart.sandbox.release()
        eventually(lambda: apart.one("SELECT count(*) FROM core.delivery") == 8, what="the calls have settled")
        assert worker.stop(GRACE) == 0
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    said = worker.log.read_text()
    assert ("Traceback" in said, said.count("reference not acked") in (1, 2)) == (False, True), "once, and how often"
    apart.worker()
    apart.until_empty()
    assert arrived(apart) == sorted(map(str, jobs))
    assert apart.rows("SELECT DISTINCT attempts FROM core.delivery") == [(1,)]


def test_b12_what_an_idle_worker_asks_of_redis(apart: Installation) -> None:
    """Eight queues, one process: two commands a second for each, and what looks for silent processes. A script counts as one."""
    channels = "".join(
        f"  {name}: {{provider: resend, from: a@mail.acme.test}}\n" for name in ("email", "sms", "push", "web")
    )
    text = re.sub(r"channels:\n.*\n", "channels:\n" + channels, CONFIG.read_text(), count=1)
    apart.config = apart.folder / "eight.yaml"
    apart.config.write_text(text.replace("../config/templates", str(ROOT / "config" / "templates")))
    living = Living(apart)
    living.worker("transactional", "marketing")

    def sent() -> int:
        stats = apart.redis.info("commandstats")
        assert isinstance(stats, dict)
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "blpop", "smembers"))

    seconds = 4.0
    threading.Event().wait(1)
    before = sent()
    threading.Event().wait(seconds)
    used = sent() - before
    living.close()
    assert 8 * seconds < used <= 8 * seconds * 2.6, f"{used} commands in {seconds} s"


def test_b16_heartbeats_of_processes_that_ended_are_removed(notif: Installation, hands: Hands) -> None:
    seconds, _ = notif.redis.time()
    gone = {f"process-{n}.{EMAIL}": float(seconds - 60) for n in range(200)}
    notif.redis.zadd(f"{NAMESPACE}:__heartbeats__", gone)
    broker = hands.worker.broker
    broker.reap()
    broker.reap()
    left = {name.decode() for name in notif.redis.zrange(f"{NAMESPACE}:__heartbeats__", 0, -1)}  # type: ignore[union-attr]
    assert left == {f"{broker.broker_id}.{queue}" for queue in broker.queues}


class Deaf(threading.Thread):
    """A way to Redis that carries the first `script` out and loses the answer, as a stall past the client's time-out does."""

    def __init__(self, port: int, lost: int = 1) -> None:
        super().__init__(daemon=True)
        self._port, self._lost, self.losses = port, lost, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._carry, args=(here,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _carry(self, here: socket.socket) -> None:
        with here, socket.create_connection(("127.0.0.1", self._port)) as there, suppress(OSError):
            while asked := here.recv(65536):
                there.sendall(asked)
                answer = there.recv(65536)
                if b"EVALSHA" in asked and not answer.startswith(b"-NOSCRIPT") and self.losses < self._lost:
                    self.losses += 1
                    return
                here.sendall(answer)


def test_b91_a_push_carried_out_whose_answer_was_lost(notif: Installation, hands: Hands) -> None:
    """The client sends it again: its id is there once, and its job runs once."""
    url = notif.servers.redis_url
    port = int(re.findall(r":(\d+)/", url)[0])
    deaf = Deaf(port)
    deaf.start()
    carrier = RedisCarrier(url.replace(f":{port}/", f":{deaf.port}/"))
    job = notif.send()
    try:
        (ref,) = hands.pick()
        assert carrier.push([ref]) is True
    finally:
        carrier.close()
        deaf.close()
    assert (deaf.losses, on_redis(notif)) == (1, [f"{job}:{ref.generation}"])
    assert notif.redis.hlen(f"{NAMESPACE}:{EMAIL}.msgs") == 1
    assert hands.handle(ref) == "delivered"
    assert len(notif.sandbox.requests()) == 1


def test_b91_a_server_that_stalls_longer_than_the_time_out(apart: Installation, valkey: EmbeddedValkey) -> None:
    hands = Hands(apart)
    job = apart.send()
    relay = relay_of(hands)
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        assert relay.poll() == AWAY_WAIT
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    relay.poll()
    relay.poll()
    ids = on_redis(apart)
    hands.close()
    assert [identifier.split(":")[0] for identifier in ids] == [str(job)]


def test_b92_retries_and_time_outs_are_those_of_the_connections_in_use(notif: Installation, hands: Hands) -> None:
    worker = hands.worker.broker.client
    for client, retries, seconds in ((worker, 30, 5.0), (hands.carrier._client, 1, 2.0)):
        client.ping()
        connection = client.connection_pool.get_connection()
        try:
            assert connection.retry.get_retries() == retries
            assert (connection.socket_timeout, connection.socket_connect_timeout) == (seconds, seconds)
        finally:
            client.connection_pool.release(connection)


def test_b105_the_next_attempt_is_not_in_the_redis_that_failed(notif: Installation, hands: Hands) -> None:
    """Redis and the provider fail together; then Redis comes back empty."""
    job = notif.send()
    carrier = Leaky(hands.carrier)
    relay = relay_of(hands, carrier)
    relay.poll()
    (ref,) = carrier.pushed
    notif.sandbox.faults([{"fault": "500"}])
    assert hands.handle(ref) == "retrying"
    notif.redis.flushall()
    carrier.lost = 3
    passed(notif, hands, 60)
    for _ in range(6):
        relay.poll()
    assert [hands.handle(again) for again in carrier.pushed[1:]] == ["delivered"]
    assert notif.one("SELECT attempts FROM core.delivery WHERE job_id = %s", job) == 2
