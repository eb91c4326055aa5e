"""Better Stack's HTTP surface for incidents: raise and resolve."""

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from notif.sandbox.mailbox import iso
from notif.sandbox.resend import Pause
from notif.sandbox.wire import Reply, Request, json_reply

PATH = "/api/v3/incidents"
MOST = 10_000
"""Incidents kept at most; the oldest go first."""


class BetterStackSurface:
    """POST /api/v3/incidents and POST /api/v3/incidents/{id}/resolve; any bearer token passes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._incidents: dict[str, dict[str, Any]] = {}
        self._ids = count(1)

    def handle(self, request: Request, pause: Pause) -> Reply:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return json_reply(401, {"errors": "Invalid Team API token. How to find your Team API token: see the docs."})
        if request.method != "POST":
            return json_reply(405, {"errors": f"{request.method} is not known here"})
        try:
            fields = request.json() if request.body else {}
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return json_reply(422, {"errors": "The body must be a JSON object"})
        if request.path == PATH:
            pause()
            return json_reply(201, {"data": self._raise(fields)})
        incident, _, action = request.path.removeprefix(f"{PATH}/").partition("/")
        if action != "resolve" or incident not in self._incidents:
            return json_reply(404, {"errors": "Resource with provided ID was not found"})
        pause()
        return self._resolve(incident, fields)

    def all(self) -> list[dict[str, Any]]:
        """Every incident with its id, in the order they were raised."""
        with self._lock:
            return [{"id": incident, **attributes} for incident, attributes in self._incidents.items()]

    def clear(self) -> None:
        with self._lock:
            self._incidents.clear()

    def _raise(self, fields: dict[str, Any]) -> dict[str, Any]:
        names = ("name", "summary", "description", "requester_email", "metadata")
        with self._lock:
            incident = str(next(self._ids))
            self._incidents[incident] = {
                **{name: fields.get(name) for name in names},
                "cause": fields.get("summary"),
                "started_at": iso(self._clock()),
                "acknowledged_at": None,
                "resolved_at": None,
                "resolved_by": None,
            }
            if len(self._incidents) > MOST:
                del self._incidents[next(iter(self._incidents))]
            return _resource(incident, self._incidents[incident])

    def _resolve(self, incident: str, fields: dict[str, Any]) -> Reply:
        with self._lock:
            attributes = self._incidents[incident]
            if attributes["resolved_at"]:
                return json_reply(409, {"errors": "Incident was already resolved"})
            attributes.update(resolved_at=iso(self._clock()), resolved_by=fields.get("resolved_by"))
            return json_reply(200, {"data": _resource(incident, attributes)})


def _resource(incident: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"id": incident, "type": "incident", "attributes": dict(attributes)}
