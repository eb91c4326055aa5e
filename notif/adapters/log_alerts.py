"""Alerts as log lines, where no incident service is configured (ADR 0007)."""

from notif.ports import Alert, Log


class LogAlerts:
    """One line when an incident is raised (error), one when it is resolved (info)."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def open(self, alert: Alert) -> str:
        self._log.error("alert", key=alert.key, title=alert.title, detail=alert.detail, kind=alert.kind)
        return f"log:{alert.key}"

    def resolve(self, incident: str) -> None:
        self._log.info("alert resolved", key=incident.removeprefix("log:"))
