"""Resend, through its official SDK with our transport plugged in (ADR 0004)."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal, cast
from uuid import UUID

import resend
from pydantic import BaseModel

from notif.adapters.http import NotConnected, PooledHttp, Response, TransportError
from notif.errors import ConfigurationError
from notif.verdict import Accepted, Answer, Invalid, NeedsPerson, NotReached, QuotaSpent, Throttled, Unclear

DEFAULT_URL = "https://api.resend.com"
KEY = re.compile(r"[\x21-\x7e]{1,256}")
"""What Resend takes for an idempotency key (its documentation, "Idempotency Keys")."""
ERROR_LENGTH = 300
"""Characters kept of a provider's message: it may quote addresses."""
LONGEST_CLOSING = 60.0
"""Seconds: no 429 closes the provider for longer."""

Meaning = Literal[
    "throttled", "daily_quota", "monthly_quota", "bad_key", "bad_sender", "invalid", "other_payload", "busy", "unclear"
]

MEANINGS: Mapping[tuple[int, str], Meaning] = MappingProxyType(
    {
        (400, "invalid_idempotency_key"): "invalid",
        (400, "validation_error"): "invalid",
        (401, "missing_api_key"): "bad_key",
        (401, "restricted_api_key"): "bad_key",
        (401, "validation_error"): "bad_key",
        (403, "invalid_api_key"): "bad_key",
        (403, "suspended_api_key"): "bad_key",
        (403, "invalid_permission"): "bad_key",
        (403, "validation_error"): "bad_sender",
        (403, "application_error"): "invalid",  # code 1010, a request without User-Agent; often HTML
        (404, "not_found"): "invalid",
        (405, "method_not_allowed"): "invalid",
        (409, "invalid_idempotent_request"): "other_payload",
        (409, "concurrent_idempotent_requests"): "busy",
        (409, "resource_locked"): "busy",
        (422, "invalid_attachment"): "invalid",
        (422, "invalid_from_address"): "invalid",
        (422, "invalid_access"): "invalid",
        (422, "invalid_parameter"): "invalid",
        (422, "invalid_region"): "invalid",
        (422, "missing_required_field"): "invalid",
        (422, "missing_required_fields"): "invalid",
        (422, "validation_error"): "invalid",
        (429, "rate_limit_exceeded"): "throttled",
        (429, "daily_quota_exceeded"): "daily_quota",
        (429, "monthly_quota_exceeded"): "monthly_quota",
        (451, "security_error"): "invalid",
        (500, "application_error"): "unclear",
        (500, "internal_server_error"): "unclear",
        (503, "service_unavailable"): "unclear",
    }
)
"""Status and error name to what they mean; from Resend's "Errors" page and SDK."""


def meaning(status: int, name: str) -> Meaning:
    """What an error means, new names included: an unknown 4xx is permanent, an unknown 5xx unclear."""
    known = MEANINGS.get((status, name))
    if known:
        return known
    if status == 401:
        return "bad_key"  # whatever it is called: taken for permanent, it would kill every job there is
    if status == 429:
        return "throttled"
    return "invalid" if 400 <= status < 500 and status != 408 else "unclear"


class ResendProvider:
    """E-mail through Resend. One per process: the SDK keeps key, URL and client in module globals.

    `clock` gives the time by which quotas end, zone-aware. Raises ConfigurationError for an impossible key.
    """

    name = "resend"
    key_lifetime: timedelta | None = timedelta(hours=24)

    def __init__(
        self,
        api_key: str,
        api_url: str | None = None,
        *,
        http: PooledHttp | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if not re.fullmatch(r"[\x21-\x7e]+", api_key):
            raise ConfigurationError("RESEND_API_KEY: must be printable ASCII without spaces, like re_…")
        self._clock = clock
        self._client = _Client(http or PooledHttp())
        resend.api_key = api_key
        resend.api_url = (api_url or DEFAULT_URL).rstrip("/")
        resend.default_http_client = self._client

    def build(self, message: BaseModel, job_id: UUID) -> bytes:
        """Resend's request as canonical JSON: the message's fields under their aliases, empty ones left out."""
        fields = {name: value for name, value in message.model_dump(mode="json", by_alias=True).items() if value}
        own = {"job": str(job_id), "n": "0"}
        fields["tags"] = [
            {"name": name, "value": value} for name, value in (own | fields.get("tags", {}) | own).items()
        ]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def recipients(self, request: bytes) -> tuple[str, ...]:
        """To, cc and bcc of a request made by `build`."""
        fields = json.loads(request)
        return tuple(address for name in ("to", "cc", "bcc") for address in fields.get(name, ()))

    def send(self, request: bytes, key: str, deadline: float) -> Answer:
        """One call with exactly these bytes, at most `deadline` seconds. Raises ValueError for an impossible key."""
        if not KEY.fullmatch(key):
            raise ValueError("idempotency key: must be 1 to 256 printable ASCII characters")
        if resend.default_http_client is not self._client:
            raise RuntimeError("another ResendProvider was made in this process: its key would be used")
        with self._client.call(request, deadline) as call:
            params = cast(resend.Emails.SendParams, json.loads(request))
            try:
                taken = cast(object, resend.Emails.send(params, {"idempotency_key": key}))
            except Exception as error:  # noqa: BLE001 - the SDK trips over odd answers in many ways
                return self._failed(call, error)
        provider_id = taken.get("id") if isinstance(taken, dict) else None
        assert call.response
        if not 200 <= call.response.status < 300 or not isinstance(provider_id, str) or not provider_id:
            return Unclear(f"{call.response.status} without an id")
        return Accepted(provider_id)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _failed(self, call: "_Call", error: Exception) -> Answer:
        if isinstance(call.failure, NotConnected):
            return NotReached(str(call.failure)[:ERROR_LENGTH])
        if isinstance(call.failure, TransportError):
            return Unclear(str(call.failure)[:ERROR_LENGTH])
        if call.response is None:  # our own mistake, not the service's
            raise call.failure or error
        name = getattr(error, "error_type", "")
        name = name if isinstance(name, str) and name else "unreadable"
        text = f"{call.response.status} {name}: {getattr(error, 'message', error)}"[:ERROR_LENGTH]
        return self._answer(call, name, text)

    def _answer(self, call: "_Call", name: str, text: str) -> Answer:
        assert call.response
        answer: Answer
        match meaning(call.response.status, name):
            case "throttled":
                answer = _throttled(call.response.headers, name, text)
            case "daily_quota":
                answer = QuotaSpent(_next_day(self._clock()), text)
            case "monthly_quota":
                answer = QuotaSpent(_next_month(self._clock()), text)
            case "bad_key":
                answer = NeedsPerson("", text)
            case "bad_sender" if domain := _sender_domain(call.request):
                answer = NeedsPerson(domain, text)
            case "other_payload":
                answer = Invalid(name, text, unclear=True)
            case "busy":
                answer = Unclear("an earlier request is in progress")
            case "unclear":
                answer = Unclear(text)
            case _:
                answer = Invalid(name, text)
        return answer


class _Call:
    """What one call carries past the SDK: down the bytes and the deadline, up the response or the failure."""

    def __init__(self, request: bytes, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.response: Response | None = None
        self.failure: Exception | None = None


class _Client(resend.HTTPClient):
    """Plugged into the SDK; posts the frozen bytes of the thread's call instead of what the SDK would encode anew."""

    def __init__(self, http: PooledHttp) -> None:
        self._http = http
        self._local = threading.local()

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def call(self, request: bytes, deadline: float) -> Iterator[_Call]:
        call = self._local.call = _Call(request, deadline)
        try:
            yield call
        finally:
            del self._local.call

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        json: dict[str, object] | list[object] | None = None,
        files: dict[str, Any] | None = None,
        data: dict[str, str] | None = None,
    ) -> tuple[bytes, int, Mapping[str, str]]:
        del json, files, data
        call: _Call = self._local.call
        sent = {**headers, "Content-Type": "application/json"}
        try:
            response = self._http.request(method, url, sent, call.request, call.deadline)
        except Exception as error:
            call.failure = error
            raise
        call.response = response
        return response.body, response.status, response.headers


def _throttled(headers: Mapping[str, str], name: str, text: str) -> Throttled:
    retry_after, reset = _seconds(headers, "retry-after"), _seconds(headers, "ratelimit-reset")
    default = 1.0 if name == "rate_limit_exceeded" else LONGEST_CLOSING
    return Throttled(retry_after or reset or default, reset or retry_after or default, text)


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    value = headers.get(name, "").strip()
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value) or not float(value):
        return None
    return min(float(value), LONGEST_CLOSING)


def _midnight(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _next_day(now: datetime) -> datetime:
    """The next midnight UTC, when Resend's daily quota begins anew."""
    return _midnight(now) + timedelta(days=1)


def _next_month(now: datetime) -> datetime:
    """Midnight UTC of the next first of a month."""
    return (_midnight(now).replace(day=1) + timedelta(days=32)).replace(day=1)


def _sender_domain(request: bytes) -> str:
    """Of `a@b.test` and `Acme <a@b.test>`: b.test; empty if there is none."""
    _, at, domain = str(json.loads(request).get("from", "")).rpartition("@")
    return domain.strip(" >").lower() if at else ""
