"""Counts what goes over the wire: each statement Postgres logs and each command Redis is sent is one round trip."""

import re
import threading
from collections import Counter
from hashlib import sha1
from types import TracebackType
from typing import Self

import redis

from benchmarks.rig import Rig
from notif.adapters.redis_carrier import ACK, FETCH, GIVE_BACK, PUSH, REAP
from notif.errors import NotifError

MARK = "wire|"
ENTRY = re.compile(r"([^|]*)\|LOG:  (?:statement|execute [^:]*): (.*)", re.DOTALL)
FUNCTION = re.compile(r"\bcore\.(\w+)\(")
WATCHED = ("notif worker", "notif maintenance", "notif publish")
"""Names under which roles and product code connect; `notif up`, which waits for roles to start, is not theirs."""
END = "wire-end"
SCRIPTS = {"push": PUSH, "fetch": FETCH, "ack": ACK, "give back": GIVE_BACK, "reap": REAP}


class Wire:
    """After it: `statements` and `commands` by name, and `writes`, the transactions that wrote, by their ids.

    It slows both servers, so nothing is timed under it. Raises NotifError if it did not see everything.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.statements: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.writes = 0
        self._scripts = {sha1(text.encode()).hexdigest(): name for name, text in SCRIPTS.items()}
        self._listening, self._heard_all = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        for setting in (f"log_line_prefix = '{MARK}%a|'", "log_statement = 'all'", "log_parameter_max_length = 0"):
            self._rig.watch(f"ALTER SYSTEM SET {setting}")
        self._rig.watch("SELECT pg_reload_conf()")
        self._thread.start()
        if not self._listening.wait(10):
            raise NotifError("Redis does not answer MONITOR")
        self._from = self._rig.postgres_log.stat().st_size
        self._first_id = self._next_id()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writes = self._next_id() - self._first_id
        self._rig.redis.echo(END)
        if not self._heard_all.wait(30) and error is None:
            raise NotifError("MONITOR ended before the jobs did: what it counted is not all")
        self._rig.watch("ALTER SYSTEM RESET ALL")
        self._rig.watch("SELECT pg_reload_conf()")
        with self._rig.postgres_log.open("rb") as log:
            log.seek(self._from)
            entries = log.read().decode(errors="replace").split(MARK)[1:]
        for entry in entries:
            found = ENTRY.match(entry)
            if found and found[1].startswith(WATCHED):
                self.statements[_name(found[2])] += 1

    def _next_id(self) -> int:
        return int(self._rig.watch("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")[0][0])

    def _listen(self) -> None:
        client: redis.Redis = redis.Redis.from_url(self._rig.redis_url, socket_timeout=None)
        with client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
            self._listening.set()
            while True:
                seen = monitor.next_command()
                words = seen["command"].split(" ")
                if words[-1] == END:
                    self._heard_all.set()
                    return
                if seen["client_type"] != "lua":
                    self.commands[self._command(words)] += 1

    def _command(self, words: list[str]) -> str:
        name, *arguments = words
        if name.upper() != "EVALSHA":
            return name.lower()
        return self._scripts.get(arguments[0], "another script")


def _name(statement: str) -> str:
    function = FUNCTION.search(statement)
    return f"core.{function[1]}" if function else " ".join(statement.split()[:3])
