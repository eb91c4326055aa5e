"""The sandbox's control addresses for tests in Python."""

import http.client
import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

Entry = dict[str, Any]
_UNSET: Any = object()


class SandboxClient:
    """What arrived at a sandbox, and what shall go wrong there.

    Every method raises OSError if the sandbox isn't there, and ValueError if it refuses.
    """

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self._address = urlsplit(url)
        self._timeout = timeout

    def mails(self, after: int = 0) -> list[Entry]:
        """Mails that really arrived, each once, in order; those numbered (`n`) above `after`."""
        return list(self._call("GET", f"/mails?after={after}"))

    def requests(self, after: int = 0) -> list[Entry]:
        """Every request, in order: path, key, status, fault, body_hash, held."""
        return list(self._call("GET", f"/requests?after={after}"))

    def incidents(self) -> list[Entry]:
        """Incidents raised, open and resolved."""
        return list(self._call("GET", "/incidents"))

    def counts(self) -> dict[str, int]:
        """How many mails, requests, held requests and incidents there are."""
        return dict(self._call("GET", ""))

    def faults(self, script: Sequence[Entry]) -> None:
        """Replace the script of faults. Raises ValueError naming the entry and the field."""
        self._call("PUT", "/faults", list(script))

    def limits(self, *, rate: int | None = _UNSET, unverified: Sequence[str] = _UNSET) -> None:
        """Requests per second (None: no limit) and unverified sender domains; what is left out stays."""
        wish = {"rate": rate, "unverified": unverified}
        self._call("PUT", "/limits", {name: value for name, value in wish.items() if value is not _UNSET})

    def release(self) -> int:
        """Let held requests go on; how many there were."""
        return int(self._call("PUT", "/release")["released"])

    def reset(self) -> None:
        """Forget everything; held requests end without effect."""
        self._call("DELETE", "")

    def wait_for_mails(self, count: int, seconds: float = 30.0) -> list[Entry]:
        """Poll until at least `count` have arrived. Raises TimeoutError."""
        self._wait("mails", count, seconds)
        return self.mails()

    def wait_for_held(self, count: int = 1, seconds: float = 30.0) -> None:
        """Poll until at least `count` requests are held. Raises TimeoutError."""
        self._wait("held", count, seconds)

    def wait_for_requests(self, count: int, seconds: float = 30.0) -> list[Entry]:
        """Poll until at least `count` have come. Raises TimeoutError."""
        self._wait("requests", count, seconds)
        return self.requests()

    def _wait(self, what: str, count: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        end = clock() + seconds
        while (now := self.counts())[what] < count:
            if clock() > end:
                raise TimeoutError(f"{count} {what} were expected within {seconds:g} s, there are {now}")
            time.sleep(0.01)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port or 80, timeout=self._timeout
        )
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"/_sandbox{path}", content, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(answer["message"])
        return answer
