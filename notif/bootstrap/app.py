"""The App: configuration, kinds and the doors to publish and to operate. Every role builds one."""

import importlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property

from pydantic import SecretStr

from notif.adapters.http import PooledHttp
from notif.adapters.jinja import JinjaRenderer
from notif.adapters.postgres.database import Database
from notif.adapters.postgres.incidents import PostgresIncidents
from notif.adapters.postgres.operations import PostgresLetters, PostgresProcesses, PostgresTenants, PostgresUpkeep
from notif.adapters.postgres.publisher import OutboxPublisher
from notif.adapters.postgres.relay import PostgresClosings
from notif.adapters.resend import ResendProvider
from notif.bootstrap.log import make_log
from notif.catalogue import build_kinds
from notif.compose import Composer
from notif.config import Config, checked_config, refused
from notif.errors import ConfigurationError, nearest
from notif.kinds import Kinds
from notif.lanes import Lane, parse_queue
from notif.ports import Handler, Log, ProviderPort, Terms
from notif.publishing import Checker
from notif.settings import Settings
from notif.tenants import Tenants

KEY_LIFETIMES = {"resend": ResendProvider.key_lifetime}
"""The providers there is an adapter for, and how long each keeps an idempotency key; None: it has none."""


class App:
    """Built once per process, handed to whoever needs it. Opens nothing before it is used."""

    def __init__(self, settings: Settings, config: Config, kinds: Kinds, composer: Composer, log: Log) -> None:
        self.settings, self.config, self.kinds, self.composer, self.log = settings, config, kinds, composer, log
        self.handlers: dict[str, Handler] = {}
        self._databases: list[Database] = []
        if settings.app:
            _import_app(settings.app)(self)

    @classmethod
    def from_settings(cls, environ: Mapping[str, str] | None = None, log: Log | None = None) -> "App":
        """Read environment and configuration. Raises ConfigurationError: bad configuration does not boot."""
        settings = Settings.from_environment(os.environ if environ is None else environ)
        config, wrong = checked_config(settings.config, known_providers=KEY_LIFETIMES)
        renderer = JinjaRenderer(config.templates)
        try:
            kinds = build_kinds(config, renderer)
        except ConfigurationError as error:
            raise refused(settings.config, [*wrong, *str(error).splitlines()]) from error
        if wrong:
            raise refused(settings.config, wrong)
        return cls(settings, config, kinds, Composer(renderer, config.delivery), log or make_log())

    def consumer(self, name: str, queue: str, handler: Handler) -> None:
        """Register a product's own database-only consumer of a queue that the configuration names.

        `handler(session, envelope) -> Verdict` runs inside the fence's transaction, with the job's tenant set.
        Raises ConfigurationError.
        """
        if queue not in self.config.queues:
            raise ConfigurationError(
                f"consumer {name!r}: queue {queue!r} is not under `queues:`; {nearest(queue, self.config.queues)}"
            )
        if self.config.consumer(queue) != name:
            known = self.config.consumer(queue)
            raise ConfigurationError(f"consumer {name!r}: the configuration says that {queue!r} is read by {known!r}")
        if queue in self.handlers:
            raise ConfigurationError(f"consumer {name!r}: queue {queue!r} has its consumer already; a queue has one")
        self.handlers[queue] = handler

    def terms(self, queue: str) -> Terms:
        """A queue's policies, from the configuration."""
        provider = self.config.provider(queue)
        return Terms(
            queue=queue,
            consumer=self.config.consumer(queue),
            provider=provider,
            key_lifetime=KEY_LIFETIMES[provider] if provider else None,
            lease=self.config.worker.lease,
            attempts=self.config.retry(queue).attempts,
        )

    def queues_of(self, lane: Lane | None) -> list[str]:
        """The queues of a lane; None: those that carry no lane."""
        return [
            name for name in self.config.queue_names if (parsed := parse_queue(name), parsed and parsed[1])[1] == lane
        ]

    @property
    def provider_queues(self) -> dict[str, list[str]]:
        """Provider → the queues it serves."""
        found: dict[str, list[str]] = {}
        for queue in self.config.lane_queues:
            found.setdefault(self.config.provider(queue) or "", []).append(queue)
        return found

    def close(self) -> None:
        """Close every connection the App opened."""
        for database in self._databases:
            database.close()

    def database(self, url: str, *, pool: int, name: str) -> Database:
        """A pool of `pool` connections that `close` closes."""
        self._databases.append(Database(url, pool=pool, name=name))
        return self._databases[-1]

    def connections(self, database: Database) -> int:
        """How many this process holds at most under this pool's URL, with all the pools made so far."""
        return sum(each.pool for each in self._databases if each.url == database.url)

    def now(self) -> datetime:
        """The wall clock, zone-aware."""
        return datetime.now(UTC)

    def provider(self, name: str) -> ProviderPort:
        """The adapter of this name. Raises ConfigurationError if its key is missing."""
        if name == "resend":
            key = required("RESEND_API_KEY", self.settings.resend_api_key, "worker")
            # A connection for every thread there may be: a call that waits for one spends its deadline on nothing.
            http = PooledHttp(connections=max(64, self.config.worker.threads), clock=boottime)
            return ResendProvider(key, self.settings.resend_api_url, http=http)
        raise ConfigurationError(f"provider: {name!r} has no adapter; {nearest(name, KEY_LIFETIMES)}")

    @cached_property
    def checker(self) -> Checker:
        """What is checked before anything is published."""
        consumers = {name: self.config.consumer(name) for name in self.config.queue_names}
        return Checker(self.kinds, self.composer, consumers, self.config.publishing.max_envelope, self.now)

    @cached_property
    def queue(self) -> OutboxPublisher:
        """The QueuePort: the one way to publish. Under NOTIF_DATABASE_URL, or else the maintenance role's URL."""
        url = self.settings.database_url or self.settings.database_maintenance_url
        database = self.database(required("NOTIF_DATABASE_URL", url, "publishing"), pool=8, name="notif publish")
        providers = {queue: name for name, queues in self.provider_queues.items() for queue in queues}
        return OutboxPublisher(database, self.checker, providers)

    @cached_property
    def maintenance(self) -> Database:
        """A pool of the maintenance role's."""
        url = required("NOTIF_DATABASE_MAINTENANCE_URL", self.settings.database_maintenance_url, "operating")
        return self.database(url, pool=6, name="notif maintenance")

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(PostgresTenants(self.maintenance))

    @cached_property
    def letters(self) -> PostgresLetters:
        return PostgresLetters(self.maintenance)

    @cached_property
    def _window(self) -> Database:
        """Under the maintenance role, or in a worker's container under the worker's: both may look who is there, what is closed."""
        if self.settings.database_maintenance_url is None and self.settings.database_url is not None:
            url = required("NOTIF_DATABASE_URL", self.settings.database_url, "ps")
            return self.database(url, pool=1, name="notif ps")
        return self.maintenance

    @cached_property
    def processes(self) -> PostgresProcesses:
        return PostgresProcesses(self._window)

    @cached_property
    def upkeep(self) -> PostgresUpkeep:
        return PostgresUpkeep(self.maintenance)

    @cached_property
    def incidents(self) -> PostgresIncidents:
        """What a person should know."""
        queues = {queue: self.config.provider(queue) for queue in self.config.queue_names}
        return PostgresIncidents(self.maintenance, queues)

    @cached_property
    def closings(self) -> PostgresClosings:
        return PostgresClosings(self._window)

    @property
    def redis_url(self) -> str:
        return required("NOTIF_REDIS_URL", self.settings.redis_url, "workers and relay")


def required(name: str, value: SecretStr | None, who: str) -> str:
    """The setting's value. Raises ConfigurationError with the variable's name."""
    if value is None:
        raise ConfigurationError(f"{name}: not set, and {who} needs it; for one machine, `notif up` starts everything")
    return value.get_secret_value()


def boottime() -> float:
    """Monotonic seconds that go on while the host is suspended, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _import_app(path: str) -> Callable[[App], None]:
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigurationError(f"NOTIF_APP: module {module_name!r} can't be imported: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigurationError(f"NOTIF_APP: {module_name!r} has no function {name!r}; {nearest(name, vars(module))}")
    return function  # type: ignore[no-any-return]
