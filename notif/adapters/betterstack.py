"""Better Stack: one incident per alert, by its HTTP API (ADR 0006)."""

import json
import re
from typing import Any
from urllib.parse import quote

from notif.adapters.http import PooledHttp, Response, TransportError
from notif.errors import ConfigurationError, Unavailable
from notif.ports import Alert

DEFAULT_URL = "https://uptime.betterstack.com"
DEADLINE = 10.0
"""Seconds for one call."""
REQUESTER = "notif@localhost.invalid"
"""Who raises incidents where no address is configured. Older versions of the API require one."""


class BetterStackAlerts:
    """Raises and resolves incidents. Repeats nothing: every POST pages people again.

    `requester_email` is shown as the incident's author. Raises ConfigurationError for an impossible token.
    """

    def __init__(
        self, token: str, url: str | None = None, http: PooledHttp | None = None, requester_email: str = REQUESTER
    ) -> None:
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ConfigurationError("BETTERSTACK_TOKEN: must be printable ASCII without spaces")
        self._token = token
        self._url = (url or DEFAULT_URL).rstrip("/")
        self._http = http or PooledHttp(connections=2)
        self._requester = requester_email

    def open(self, alert: Alert) -> str:
        """Raise an incident and give its id. Raises Unavailable; after a time-out somebody may have been paged."""
        response = self._post(
            "/api/v3/incidents",
            {
                "requester_email": self._requester,
                "name": alert.title,
                "summary": alert.title,
                "description": alert.detail,
                "metadata": {"key": alert.key, "kind": alert.kind},
            },
        )
        incident = _incident_id(response) if 200 <= response.status < 300 else None
        if incident is None:
            raise Unavailable(f"Better Stack: answered {response.status} instead of an incident")
        return incident

    def resolve(self, incident: str) -> None:
        """End it; fine if somebody has resolved or deleted it already. Raises Unavailable."""
        response = self._post(f"/api/v3/incidents/{quote(incident, safe='')}/resolve", {"resolved_by": self._requester})
        if response.status not in (200, 201, 202, 204, 404, 409):
            raise Unavailable(f"Better Stack: answered {response.status} to resolving incident {incident}")

    def _post(self, path: str, body: dict[str, Any]) -> Response:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "notif",
        }
        try:
            return self._http.request("POST", self._url + path, headers, json.dumps(body).encode(), DEADLINE)
        except TransportError as error:
            raise Unavailable(f"Better Stack: {error}") from error


def _incident_id(response: Response) -> str | None:
    try:
        incident = json.loads(response.body)["data"]["id"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(incident) if isinstance(incident, str | int) and str(incident) else None
