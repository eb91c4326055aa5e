"""Resend's HTTP surface for single mails: keys, idempotency, rate limit, error names and headers."""

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from notif.sandbox.faults import as_list
from notif.sandbox.mailbox import InFlight, Mail, Mailbox, OtherPayload
from notif.sandbox.wire import Reply, Request, json_reply

MAX_RECIPIENTS = 50
MAX_TAGS = 75
UNLIMITED = 10_000
"""What `ratelimit-limit` says while no limit is set."""

_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
_ADDRESS = re.compile(r"(?:.*<)?[^<>@\s]+@[^<>@\s]+\.[^<>@\s]+>?", re.DOTALL)
_KEYS = {
    "re_bad": (401, "validation_error", "API key is invalid"),
    "re_invalid": (403, "invalid_api_key", "API key is invalid"),
    "re_restricted": (401, "restricted_api_key", "This API key is restricted to only send emails"),
    "re_suspended": (403, "suspended_api_key", "This API key is suspended"),
}
"""API keys that begin so are refused so."""

Pause = Callable[[], None]
"""Called when all is checked and the effect is next: faults wait here."""


class Refusal(Exception):
    """Answered with an error body."""

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.name = name


class Limits:
    """What the provider allows: requests per second for the whole team, and sender domains it has not verified."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.rate: int | None = None
        self.unverified: frozenset[str] = frozenset()
        self._window = 0
        self._used = 0

    def change(self, wish: Any) -> dict[str, Any]:
        """Set `rate` (per second, null for none) or `unverified` (domains); what is set now. Raises ValueError."""
        if not isinstance(wish, dict) or not wish.keys() <= {"rate", "unverified"}:
            raise ValueError('limits: an object with "rate", "unverified" or both')
        rate, unverified = wish.get("rate", self.rate), wish.get("unverified", sorted(self.unverified))
        if rate is not None and (not isinstance(rate, int) or rate < 1):
            raise ValueError("limits: rate must be a whole number of at least 1, or null")
        if not isinstance(unverified, list) or not all(isinstance(domain, str) for domain in unverified):
            raise ValueError("limits: unverified must be an array of domains")
        self.rate, self.unverified = rate, frozenset(domain.lower() for domain in unverified)
        return {"rate": self.rate, "unverified": sorted(self.unverified)}

    def take(self) -> tuple[bool, dict[str, str]]:
        """Count one request in its fixed second; whether it may pass, and the headers that say so."""
        with self._lock:
            now = self._clock()
            if int(now) != self._window:
                self._window, self._used = int(now), 0
            limit = self.rate or UNLIMITED
            passes = self.rate is None or self._used < limit
            self._used += passes
            reset = str(max(1, math.ceil(self._window + 1 - now)))
            left = str(max(0, limit - self._used))
        headers = {"ratelimit-limit": str(limit), "ratelimit-remaining": left, "ratelimit-reset": reset}
        return passes, headers if passes else {**headers, "retry-after": reset}


class ResendSurface:
    """POST /emails and GET /emails/{id}."""

    def __init__(self, mailbox: Mailbox, limits: Limits) -> None:
        self._mailbox = mailbox
        self._limits = limits

    def handle(self, request: Request, pause: Pause) -> Reply:
        if not request.headers.get("user-agent"):
            return Reply(403, b"error code: 1010", {"content-type": "text/plain; charset=UTF-8"})
        passes, headers = self._limits.take()
        try:
            _check_key(request.headers.get("authorization", ""))
            if not passes:
                limit = headers["ratelimit-limit"]
                raise Refusal(429, "rate_limit_exceeded", f"Too many requests. The limit is {limit} per second.")
            return json_reply(200, self._route(request, pause), headers)
        except Refusal as no:
            return json_reply(no.status, {"statusCode": no.status, "name": no.name, "message": str(no)}, headers)

    def _route(self, request: Request, pause: Pause) -> dict[str, Any]:
        if request.path == "/emails":
            if request.method != "POST":
                raise Refusal(405, "method_not_allowed", f"{request.method} is not allowed here.")
            return {"id": self._send(request, pause)}
        mail = self._mailbox.get(request.path.removeprefix("/emails/"))
        if request.method != "GET" or mail is None:
            raise Refusal(404, "not_found", "Not found")
        return _email(mail)

    def _send(self, request: Request, pause: Pause) -> str:
        if "application/json" not in request.headers.get("content-type", ""):
            raise Refusal(422, "validation_error", "The content type must be application/json.")
        key = request.headers.get("idempotency-key")
        if key is not None and not 1 <= len(key) <= 256:
            raise Refusal(400, "invalid_idempotency_key", "The idempotency key must be between 1-256 chars.")
        self._check_message(_parsed(request.body))
        digest = hashlib.sha256(request.body).hexdigest()
        if key is None:
            pause()
            return self._mailbox.accept("", digest, request.body)
        return self._send_once(request, key, digest, pause)

    def _send_once(self, request: Request, key: str, digest: str, pause: Pause) -> str:
        try:
            original = self._mailbox.claim(key, digest)
        except OtherPayload:
            raise Refusal(
                409, "invalid_idempotent_request", "Same idempotency key used with a different request payload."
            ) from None
        except InFlight:
            raise Refusal(
                409, "concurrent_idempotent_requests", "The original request of this key is still in progress."
            ) from None
        if original:
            return original
        pause()
        return self._mailbox.accept(key, digest, request.body)

    def _check_message(self, message: Mapping[str, Any]) -> None:
        for name in ("from", "to", "subject"):
            if not message.get(name):
                raise Refusal(422, "missing_required_field", f"Missing `{name}` field.")
        if not any(message.get(name) for name in ("html", "text", "template")):
            raise Refusal(422, "validation_error", "Missing `html` or `text` field.")
        if not _is_address(message["from"]):
            raise Refusal(422, "validation_error", "Invalid `from` field. Use `email@example.com` or `Name <email>`.")
        for name in ("to", "cc", "bcc", "reply_to"):
            addresses = as_list(message.get(name))
            if len(addresses) > MAX_RECIPIENTS or not all(map(_is_address, addresses)):
                raise Refusal(422, "validation_error", f"Invalid `{name}` field. At most {MAX_RECIPIENTS} addresses.")
        _check_tags(message.get("tags", []))
        if not isinstance(message.get("headers", {}), dict):
            raise Refusal(422, "validation_error", "The `headers` field must be an object.")
        domain = message["from"].rpartition("@")[2].strip(" >").lower()
        if domain in self._limits.unverified:
            raise Refusal(403, "validation_error", f"The {domain} domain is not verified. Please, add and verify it.")


def _check_key(authorization: str) -> None:
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise Refusal(401, "missing_api_key", "Missing API key in the authorization header.")
    for prefix, refusal in _KEYS.items():
        if key.startswith(prefix):
            raise Refusal(*refusal)
    if not key.startswith("re_"):
        raise Refusal(*_KEYS["re_bad"])


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body.decode())
    except ValueError:
        raise Refusal(422, "validation_error", "The body is not valid JSON.") from None
    if not isinstance(message, dict):
        raise Refusal(422, "validation_error", "The body must be an object.")
    return message


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _check_tags(tags: Any) -> None:
    if not isinstance(tags, list) or len(tags) > MAX_TAGS:
        raise Refusal(422, "validation_error", f"The `tags` field must be an array of at most {MAX_TAGS}.")
    for tag in tags:
        parts = [tag.get("name"), tag.get("value")] if isinstance(tag, dict) else [None]
        if not all(isinstance(part, str) and _TAG.fullmatch(part) for part in parts):
            raise Refusal(
                422, "validation_error", "Tags should only contain ASCII letters, numbers, underscores, or dashes."
            )


def _email(mail: Mail) -> dict[str, Any]:
    view = mail.view()
    at = datetime.fromtimestamp(mail.at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")
    parts = {name: view[name] for name in ("from", "to", "cc", "bcc", "reply_to", "subject", "html", "text")}
    return {"object": "email", "id": mail.id, "created_at": at, "last_event": "delivered", **parts}
