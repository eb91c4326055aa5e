"""Tell a person: one incident per queue and cause, resolved when none of that cause is pending. Never through the lanes."""

from notif.errors import Unavailable
from notif.ports import AlertPort, Incident, IncidentsPort, Log

RETRY_FROM, RETRY_TO = 2.0, 60.0
"""Seconds until a service that does not answer is told again: doubled from the first to the last."""


class Alerts:
    """Drive it with `turn`, every few seconds. Each row is written before it is told.

    A process killed between telling and noting it tells once more: an alert twice is better than none.
    """

    def __init__(self, incidents: IncidentsPort, service: AlertPort, log: Log) -> None:
        self._incidents, self._service, self._log = incidents, service, log

    def turn(self) -> None:
        """Raises Unavailable if Postgres doesn't answer; the service's silence is waited out."""
        for incident in self._incidents.take():
            try:
                self._tell(incident)
            except Unavailable as error:
                wait = min(RETRY_FROM * 2.0 ** min(incident.tries, 10), RETRY_TO)
                self._log.warning("alert not told", key=incident.alert.key, error=str(error), again_in=wait)
                self._incidents.failed(incident.alert.key, wait)

    def _tell(self, incident: Incident) -> None:
        key = incident.alert.key
        if not incident.gone:
            self._incidents.told(key, self._service.open(incident.alert))
            self._log.info("alert told", key=key)
        elif incident.provider_id is not None:
            self._service.resolve(incident.provider_id)
            self._incidents.closed(key)
            self._log.info("alert resolved", key=key)
