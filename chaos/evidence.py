"""What there is to see from outside: the database by its tables, the sandbox by HTTP, Redis by its keys, the logs."""

import http.client
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

ENDS = "SELECT job_id::text, queue, verdict, extract(epoch FROM ended_at)::float8 FROM core.delivery ORDER BY ended_at"
LETTERS = (
    "SELECT job_id::text, queue, status, outcome, cause FROM core.dead_letters WHERE status <> 'replayed' ORDER BY id"
)
REPLAYS = "SELECT count(*)::int FROM core.dead_letters WHERE status = 'replayed'"
WAITING = "SELECT job_id::text, queue, state FROM core.outbox ORDER BY job_id"
CREDITS = "SELECT job_id::text, count(*)::int FROM public.loyalty GROUP BY job_id"
HISTORY = """
SELECT queue, 'outbox, ' || state, history FROM core.outbox WHERE job_id = %(job)s
UNION ALL SELECT queue, verdict, history FROM core.delivery WHERE job_id = %(job)s
UNION ALL SELECT queue, 'letter, ' || status || ', ' || cause, coalesce(snapshot -> 'history', '[]')
          FROM core.dead_letters WHERE job_id = %(job)s
"""


@dataclass(frozen=True)
class End:
    """A row of `core.delivery`. `at`: unix seconds."""

    job: str
    queue: str
    verdict: str
    at: float


@dataclass(frozen=True)
class Letter:
    """A dead letter that nobody replayed."""

    job: str | None
    queue: str
    status: str
    outcome: str
    cause: str


@dataclass(frozen=True)
class Waiting:
    """A row that is still in the outbox."""

    job: str
    queue: str
    state: str


@dataclass(frozen=True)
class Evidence:
    """Everything the checker looks at. `arrived` and `credited`: how often, by job; `on_redis`: entries, by key."""

    ends: list[End] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    arrived: Mapping[str, int] = field(default_factory=dict)
    credited: Mapping[str, int] = field(default_factory=dict)
    on_redis: Mapping[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    """Where personal data was found that must not hold any."""
    surprises: Mapping[str, int] = field(default_factory=dict)
    """Exceptions in the logs that nobody expected, each as its last line."""
    replays: int = 0


def collect(admin_url: str, sandbox_url: str, redis_url: str, logs: Path, person: str) -> Evidence:
    """`person`: what only personal data contains."""
    with psycopg.connect(admin_url, autocommit=True, connect_timeout=10) as connection:

        def rows(query: str) -> list[Any]:
            return connection.execute(query.encode()).fetchall()

        return Evidence(
            [End(*row) for row in rows(ENDS)],
            [Letter(*row) for row in rows(LETTERS)],
            [Waiting(*row) for row in rows(WAITING)],
            Counter(mail["tags"].get("job", "none") for mail in mails(sandbox_url)),
            dict(rows(CREDITS)),
            left_on_redis(redis_url),
            [file.name for file in sorted(logs.glob("*.log")) if person.encode() in file.read_bytes()],
            surprises(logs),
            rows(REPLAYS)[0][0],
        )


def mails(sandbox_url: str) -> list[dict[str, Any]]:
    """What really arrived, each once."""
    where = urlsplit(sandbox_url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    try:
        connection.request("GET", "/_sandbox/mails")
        return list(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def surprises(logs: Path) -> dict[str, int]:
    """What the processes logged with a traceback, and what they died of."""
    found: Counter[str] = Counter()
    for file in logs.glob("*.log"):
        for line in file.read_text(errors="replace").splitlines():
            if '"exception"' in line and line.startswith("{"):
                entry = json.loads(line)
                if entry["event"] == "handler failed":  # it writes to a database that is taken away from it
                    continue
                last = entry["exception"].strip().splitlines()[-1]
                found[f"{file.stem.partition('#')[0]}: {entry['event']}: {last[:200]}"] += 1
            elif line.startswith("Traceback"):
                found[f"{file.stem.partition('#')[0]}: a traceback outside the log"] += 1
    return dict(found)


def left_on_redis(url: str) -> dict[str, int]:
    """References anywhere: lists, bodies and acks, by key; empty if all were taken off."""
    found: dict[str, int] = {}
    with redis.Redis.from_url(url, socket_timeout=10, decode_responses=True) as client:
        for key in client.scan_iter("notif:*"):
            match client.type(key):
                case "set":
                    found[key] = int(client.scard(key))
                case "hash":
                    found[key] = int(client.hlen(key))
                case "list" if not key.endswith(".bell"):
                    found[key] = int(client.llen(key))
    return {key: count for key, count in found.items() if count}


def histories(admin_url: str, jobs: Iterable[str]) -> dict[str, list[str]]:
    """Every move of these jobs that Postgres remembers, as lines."""
    found: dict[str, list[str]] = defaultdict(list)
    with psycopg.connect(admin_url, autocommit=True, connect_timeout=10) as connection:
        for job in jobs:
            for queue, state, history in connection.execute(HISTORY.encode(), {"job": job}):
                found[job].append(f"{queue}: {state}")
                found[job] += [f"  {move['at'][11:23]} {move['state']} {move['note']}" for move in history]
    return dict(found)
