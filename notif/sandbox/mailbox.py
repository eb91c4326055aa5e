"""What really arrived, and the idempotency keys it arrived under; optionally remembered in a journal file."""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from notif.sandbox.faults import as_list, tags_of

KEY_SECONDS = 24 * 3600.0
"""How long an idempotency key is known (Resend's documentation)."""
MOST = 200_000
"""Mails, and keys, kept at most; the oldest go first."""
MOST_BYTES = 256 * 1024 * 1024
"""Bytes of mails kept at most."""


class InFlight(Exception):
    """The original request of this key is still being handled."""


class OtherPayload(Exception):
    """This key was used with another body."""


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail as it arrived; `n` counts from 1, `at` is unix seconds."""

    n: int
    id: str
    key: str
    digest: str
    at: float
    body: bytes

    def view(self) -> dict[str, Any]:
        message = json.loads(self.body)
        return {
            "n": self.n,
            "id": self.id,
            "key": self.key,
            "at": iso(self.at),
            "from": message["from"],
            **{name: as_list(message.get(name)) for name in ("to", "cc", "bcc", "reply_to")},
            **{name: message.get(name) for name in ("subject", "html", "text")},
            "headers": message.get("headers") or {},
            "tags": tags_of(message),
        }


@dataclass(slots=True)
class _Key:
    digest: str
    at: float
    mail_id: str | None = None


class Mailbox:
    """Thread-safe. With a journal, mails and keys outlive the process; a torn last line is dropped."""

    def __init__(self, clock: Callable[[], float], journal: Path | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._mails: deque[Mail] = deque()
        self._by_id: dict[str, Mail] = {}
        self._keys: OrderedDict[str, _Key] = OrderedDict()
        self._bytes = 0
        self._last = 0
        self._journal: IO[str] | None = None
        if journal:
            self._load(journal)
            self._journal = journal.open("a", encoding="utf-8")

    def claim(self, key: str, digest: str) -> str | None:
        """Take a key for a request: the id of the mail it was used for, or None if the request is to be carried out.

        Raises InFlight or OtherPayload.
        """
        with self._lock:
            now = self._clock()
            while self._keys and (len(self._keys) > MOST or next(iter(self._keys.values())).at < now - KEY_SECONDS):
                self._keys.popitem(last=False)
            known = self._keys.get(key)
            if known is None:
                self._keys[key] = _Key(digest, now)
                return None
            if known.digest != digest:
                raise OtherPayload
            if known.mail_id is None:
                raise InFlight
            return known.mail_id

    def accept(self, key: str, digest: str, body: bytes) -> str:
        """The mail has arrived; its id. `key` is empty for a request without one."""
        with self._lock:
            mail = Mail(self._last + 1, str(uuid4()), key, digest, self._clock(), body)
            self._keep(mail)
            if self._journal:
                self._journal.write(_line(mail))
                self._journal.flush()
        return mail.id

    def get(self, mail_id: str) -> Mail | None:
        with self._lock:
            return self._by_id.get(mail_id)

    def after(self, n: int) -> list[Mail]:
        """Those with a number above `n`, in the order of arrival."""
        with self._lock:
            first = self._mails[0].n if self._mails else 0
            return list(islice(self._mails, max(0, n + 1 - first), None))

    def count(self) -> int:
        """How many arrived, those no longer kept included."""
        with self._lock:
            return self._last

    def clear(self) -> None:
        with self._lock:
            self._mails.clear()
            self._by_id.clear()
            self._keys.clear()
            self._bytes = self._last = 0
            if self._journal:
                self._journal.truncate(0)

    def close(self) -> None:
        with self._lock:
            if self._journal:
                self._journal.close()
                self._journal = None

    def _keep(self, mail: Mail) -> None:
        self._last = mail.n
        self._mails.append(mail)
        self._by_id[mail.id] = mail
        self._bytes += len(mail.body)
        if mail.key:
            self._keys[mail.key] = _Key(mail.digest, mail.at, mail.id)
        while len(self._mails) > MOST or self._bytes > MOST_BYTES:
            old = self._mails.popleft()
            del self._by_id[old.id]
            self._bytes -= len(old.body)

    def _load(self, journal: Path) -> None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # torn by a kill
            body = entry.pop("body").encode()
            self._keep(Mail(n=self._last + 1, body=body, **entry))
        # Written anew: without the torn line, onto which the next one would be appended, and without what is too old.
        fresh = journal.with_name(journal.name + ".new")
        fresh.write_text("".join(map(_line, self._mails)), encoding="utf-8")
        fresh.replace(journal)


def _line(mail: Mail) -> str:
    entry = {"id": mail.id, "key": mail.key, "digest": mail.digest, "at": mail.at, "body": mail.body.decode()}
    return json.dumps(entry, separators=(",", ":")) + "\n"


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
