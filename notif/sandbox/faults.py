"""The script of faults: what goes wrong next, for which requests, how often."""

import threading
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from notif.envelope import explain
from notif.sandbox.wire import Outcome, Reply, Request, Reset, Silence, json_reply

FaultName = Literal[
    "latency",
    "hold",
    "hold_before",
    "429",
    "500",
    "error",
    "html_502",
    "truncated",
    "reset_before",
    "reset_after",
    "hang",
]

_TAKES_EFFECT = frozenset({"latency", "hold", "hold_before", "truncated", "reset_after"})
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


class Match(BaseModel):
    """Which messages: all that is given must fit. `to` is one of the recipients, `job` the tag of that name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: str | None = None
    subject: str | None = None
    job: str | None = None

    def fits(self, request: Request) -> bool:
        try:
            message = request.json()
        except ValueError:
            return False
        return isinstance(message, dict) and (
            (self.to is None or self.to in as_list(message.get("to")))
            and (self.subject is None or self.subject == message.get("subject"))
            and (self.job is None or self.job == tags_of(message).get("job"))
        )


class Fault(BaseModel):
    """One entry of the script. `times` None: for ever. `effect`: the refused request is carried out all the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: FaultName
    path: str | None = None
    match: Match | None = None
    times: Annotated[int, Field(ge=1)] | None = 1
    seconds: Annotated[float, Field(ge=0, le=3600)] = 1.0
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    name: str | None = None
    message: str | None = None
    headers: dict[str, str] = {}
    effect: bool = False

    @property
    def takes_effect(self) -> bool:
        return self.effect or self.fault in _TAKES_EFFECT

    def fits(self, request: Request) -> bool:
        return self.path in (None, request.path) and (self.match is None or self.match.fits(request))

    def outcome(self, regular: Reply | None) -> Outcome:
        """What is answered in place of `regular`, the answer if the request took its effect."""
        match self.fault:
            case "reset_before" | "reset_after":
                return Reset()
            case "hang":
                return Silence()
            case "html_502":
                return Reply(502, _HTML, self._over({"content-type": "text/html"}))
            case "429":
                wait = f"{self.seconds:g}"
                return self._error(429, "rate_limit_exceeded", {"retry-after": wait, "ratelimit-reset": wait})
            case "500" | "error":
                return self._error(500, "application_error", {})
        assert regular is not None, "these faults take their effect"
        return Reply(regular.status, regular.body, self._over(regular.headers), cut=self.fault == "truncated")

    def _error(self, status: int, name: str, headers: dict[str, str]) -> Reply:
        status = self.status or status
        body = {
            "statusCode": status,
            "name": self.name or name,
            "message": self.message or f"sandbox fault {self.fault}",
        }
        reply = json_reply(status, body, headers)
        return Reply(reply.status, reply.body, self._over(reply.headers))

    def _over(self, headers: Mapping[str, str]) -> dict[str, str]:
        own = {name.lower() for name in self.headers}
        return {**{name: value for name, value in headers.items() if name.lower() not in own}, **self.headers}


_SCRIPT: TypeAdapter[list[Fault]] = TypeAdapter(list[Fault])


class Script:
    """Faults in order; the first that fits a request and has times left is used up by it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[tuple[Fault, int | None]] = []

    def replace(self, script: Any) -> int:
        """A new script for the old; how many entries. Raises ValueError naming the entry and the field."""
        try:
            faults = _SCRIPT.validate_python(script)
        except ValidationError as error:
            raise ValueError(f"faults: {explain(error)}") from None
        with self._lock:
            self._faults = [(fault, fault.times) for fault in faults]
        return len(faults)

    def take(self, request: Request) -> Fault | None:
        with self._lock:
            for index, (fault, left) in enumerate(self._faults):
                if fault.fits(request):
                    if left == 1:
                        del self._faults[index]
                    else:
                        self._faults[index] = fault, left and left - 1
                    return fault
        return None


def as_list(value: Any) -> list[Any]:
    """Resend takes one address as a string or several as an array."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def tags_of(message: Mapping[str, Any]) -> dict[str, str]:
    """Tags as name to value; on the wire they are an array."""
    tags = message.get("tags")
    found = tags if isinstance(tags, list) else []
    return {str(tag.get("name")): str(tag.get("value")) for tag in found if isinstance(tag, dict)}
