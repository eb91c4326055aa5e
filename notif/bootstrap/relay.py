"""The relay's and the maintenance role's processes: their loops, on threads of their own."""

import threading
import time

from notif.adapters.betterstack import BetterStackAlerts
from notif.adapters.log_alerts import LogAlerts
from notif.adapters.postgres.relay import PostgresOutbox
from notif.adapters.redis_carrier import RedisCarrier
from notif.alerts import Alerts
from notif.bootstrap.app import App
from notif.bootstrap.checks import Home, until_right
from notif.bootstrap.log import tell_rest
from notif.bootstrap.worker import BEAT
from notif.lanes import Lane
from notif.periodic import Periodic
from notif.ports import AlertPort
from notif.relay import Relay, Route
from notif.upkeep import Upkeep

ALERTS = 2.0
WAKE = 10.0
CLEAN = 60.0
HOME = 2.0
"""Seconds between two looks whether Redis is still ours: one that was wiped is adopted anew before anybody else does it."""


def relays(app: App) -> list[Relay]:
    """One per lane, and one for the queues without a lane: a lane's flood delays no other."""
    outbox, carrier = PostgresOutbox(app.maintenance), RedisCarrier(app.redis_url)
    made = []
    for lane in (*Lane, None):
        routes = [Route(app.terms(queue), _rate(app, queue)) for queue in app.queues_of(lane)]
        if routes:
            made.append(
                Relay(outbox, carrier, routes, all_queues=app.config.queue_names, log=app.log, clock=time.monotonic)
            )
    return made


def run_relay(app: App, stop: threading.Event) -> None:
    """Until `stop`: every loop on its thread. Raises ConfigurationError if a server is not right for us, now or later."""
    until_right(app, app.maintenance, stop)
    threads = [threading.Thread(target=_loop, args=(relay, app, stop), daemon=True) for relay in relays(app)]
    home = Home(app, stop)
    tasks = [
        Periodic("beat", BEAT, lambda: app.processes.beat("relay", "all"), app.log),
        Periodic("installation", HOME, home.look, app.log),
    ]
    for thread in threads:
        thread.start()
    for task in tasks:
        task.start()
    app.log.info("relay started")
    stop.wait()
    for thread in threads:
        thread.join(10)
    for task in tasks:
        task.stop()
    app.log.info("relay stopped")
    tell_rest(app.log)
    if home.lost:
        raise home.lost


def run_maintenance(app: App, stop: threading.Event) -> None:
    """Until `stop`: cleaning, halted rows, alerts. Raises ConfigurationError if a server is not right for us."""
    until_right(app, app.maintenance, stop)
    upkeep = Upkeep(app.upkeep, app.config.retention.dead_letters, app.provider_queues, app.log)
    alerts = Alerts(app.incidents, alert_service(app), app.log)
    tasks = [
        Periodic("beat", BEAT, lambda: app.processes.beat("maintenance", "all"), app.log),
        Periodic("cleaning", CLEAN, upkeep.clean, app.log),
        Periodic("waking halted rows", WAKE, upkeep.wake, app.log),
        Periodic("alerts", ALERTS, alerts.turn, app.log),
    ]
    for task in tasks:
        task.start()
    app.log.info("maintenance started")
    stop.wait()
    for task in tasks:
        task.stop()
    app.log.info("maintenance stopped")
    tell_rest(app.log)


def alert_service(app: App) -> AlertPort:
    """Better Stack where a token is set, else the log."""
    token = app.settings.betterstack_token
    if token is None:
        return LogAlerts(app.log)
    return BetterStackAlerts(token.get_secret_value(), app.settings.betterstack_url)


def _loop(relay: Relay, app: App, stop: threading.Event) -> None:
    pause = 0.0
    while not stop.wait(pause):
        try:
            pause = relay.poll()
        except BaseException:  # whatever it is: a relay without one of its loops would look healthy
            app.log.exception("relay failed")
            pause = 1.0


def _rate(app: App, queue: str) -> float | None:
    provider = app.config.provider(queue)
    return app.config.providers[provider].rate if provider else None
