"""The sections of `config/notif.yaml`, frozen. What concerns more than one of them is in `checks`."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from notif.config.units import Duration, Size, duration, lasting, sized
from notif.envelope import MAX_BYTES
from notif.kinds import FENCE_LIFETIME, MAX_RUNTIME
from notif.lanes import QUEUE_NAME, Lane, parse_queue, queue_of
from notif.messages import Address, address, bare, domain_of, wrong
from notif.retry import RetryPolicy

STANDARD_RETRY = RetryPolicy()


def _name(text: str) -> str:
    if not QUEUE_NAME.fullmatch(text):
        raise wrong("a name is 1 to 80 characters: a-z, 0-9, '.', '_', '-', the first a letter or digit")
    return text


def _channel_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", text):
        raise wrong("a channel's name is 1 to 40 characters: a-z, 0-9, '_', '-', the first a letter or digit")
    return text


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise wrong(f"{twice[0]!r} is there twice")
    return values


def _recipient(text: str) -> str:
    """`a@b.c`, or `@b.c` for a domain; `b.c` is written for the same."""
    local, _, domain = text.rpartition("@")
    checked = bare(address(f"{local or 'x'}@{domain}")).lower()
    return checked if local else f"@{domain_of(checked)}"


def _dotted(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text):
        raise wrong(f"{text!r} is no dotted path; write it like shop.mails.OrderShipped")
    return text


Name = Annotated[str, AfterValidator(_name)]
ChannelName = Annotated[str, AfterValidator(_channel_name)]
Names = Annotated[tuple[Name, ...], AfterValidator(_unique)]
TemplateName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$")]
# Strict: YAML's yes and no are no numbers.
Number = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True, ge=0)]


class Section(BaseModel):
    """A key without a value counts as left out, and a section without content as empty."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return {} if value is None else value
        known = {info.alias or name for name, info in cls.model_fields.items()}
        return {key: content for key, content in value.items() if content is not None or key not in known}


class Outage(Section):
    """What a lane does while the limiter doesn't answer."""

    transactional: Literal["local", "wait"] = "local"
    marketing: Literal["local", "wait"] = "wait"


class ProviderConfig(Section):
    """One outside service. Rates are requests per second; the deadline is for one whole exchange."""

    rate: Number = 10.0
    headroom: Fraction = 0.95
    burst: Count = 3
    reserve: Whole = 1
    on_limiter_outage: Outage = Outage()
    deadline: Annotated[Duration, lasting("1s", "1m")] = timedelta(seconds=10)


class TenantLimits(Section):
    """Requests per second of one tenant, and how many jobs it may have waiting."""

    rate: Number = 50.0
    burst: Count = 50
    max_backlog: Count = 1_000_000


class TenantOverride(Section):
    """What differs from `tenants.default` for one tenant."""

    rate: Number | None = None
    burst: Count | None = None
    max_backlog: Count | None = None


class TenantsConfig(Section):
    default: TenantLimits = TenantLimits()
    overrides: dict[UUID, TenantOverride] = {}


class ChannelConfig(Section):
    """A channel with its two queues; `from` is the sender of its kinds that name none."""

    provider: Name
    sender: Address | None = Field(default=None, alias="from")


class QueueConfig(Section):
    """A product's own queue, and the consumer that reads it: the queue's name unless another is given."""

    consumer: Name | None = None


class KindConfig(Section):
    """What a job may be. `model` is a dotted path; without `template` the data is the message itself."""

    lane: Lane
    channels: Names = ()
    queues: Names = ()
    model: Annotated[str, AfterValidator(_dotted)] = "notif.messages.EmailMessage"
    template: TemplateName | None = None
    to: str | None = None
    sender: Address | None = Field(default=None, alias="from")
    max_age: Duration | None = None
    fence_ttl: Duration | None = None
    max_runtime: Annotated[Duration, lasting("1s", "1h")] = MAX_RUNTIME
    on_unknown: Literal["retry", "resend"] = "retry"


class GuardRule(Section):
    """Marketing queues that are paused while transactional ones are behind."""

    name: Name
    watch: Annotated[Names, Field(min_length=1)]
    pause: Annotated[Names, Field(min_length=1)]
    pause_above: Count = 200
    resume_below: Count = 20
    max_age: Duration = timedelta(seconds=10)
    min_pause: Duration = timedelta(seconds=5)
    max_pause: Duration = timedelta(minutes=15)
    min_open: Duration = timedelta(seconds=30)
    mode: Literal["pause", "drain"] = "pause"


class GuardConfig(Section):
    interval: Duration = timedelta(milliseconds=250)
    lease: Duration = timedelta(seconds=5)
    rules: tuple[GuardRule, ...] = ()


Attempts = Annotated[int, Field(strict=True, ge=1, le=100)]


class DefaultRetry(Section):
    """How often and when a failed attempt is repeated. Other numbers than these need a justification."""

    attempts: Attempts = STANDARD_RETRY.attempts
    base: Duration = timedelta(seconds=STANDARD_RETRY.base)
    cap: Duration = timedelta(seconds=STANDARD_RETRY.cap)
    justification: str = ""

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(self.attempts, self.base.total_seconds(), self.cap.total_seconds())


class QueueRetry(Section):
    """What differs from `retries.default` for one queue, and why."""

    attempts: Attempts | None = None
    base: Duration | None = None
    cap: Duration | None = None
    justification: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class RetriesConfig(Section):
    default: DefaultRetry = DefaultRetry()
    queues: dict[Name, QueueRetry] = {}


class RetentionConfig(Section):
    """How long things are kept. A fence lives 7 days at least; a pending dead letter is never removed."""

    fence: Annotated[Duration, lasting("7d", "3650d")] = FENCE_LIFETIME
    dead_letters: Annotated[Duration, lasting("1d", "3650d")] = timedelta(days=90)
    blast: Annotated[Duration, lasting("1d", "3650d")] = timedelta(days=30)


class Delivery(Section):
    """Keeps a system that isn't production from writing to real people."""

    only: tuple[Annotated[str, AfterValidator(_recipient)], ...] = ()
    redirect_to: Address | None = None

    def covers(self, recipient: str) -> bool:
        """Whether `only` lets this address through: it, or exactly its domain, is listed. An empty list lets all."""
        plain = bare(recipient).lower()
        return not self.only or plain in self.only or f"@{domain_of(plain)}" in self.only


class PublishingConfig(Section):
    max_envelope: Annotated[Size, sized("1KiB", "16MiB")] = MAX_BYTES


class WorkerConfig(Section):
    """Threads of one worker process, and for how long a claim holds without being renewed."""

    threads: Annotated[int, Field(strict=True, ge=1, le=256)] = 8
    lease: Annotated[Duration, lasting("6s", "1h")] = duration("20s")


class Config(Section):
    """The whole file."""

    providers: dict[Name, ProviderConfig] = {}
    channels: dict[ChannelName, ChannelConfig] = {}
    queues: dict[Name, QueueConfig] = {}
    kinds: dict[Name, KindConfig] = {}
    templates: Path = Path("templates")
    tenants: TenantsConfig = TenantsConfig()
    publishing: PublishingConfig = PublishingConfig()
    worker: WorkerConfig = WorkerConfig()
    guard: GuardConfig = GuardConfig()
    retries: RetriesConfig = RetriesConfig()
    retention: RetentionConfig = RetentionConfig()
    delivery: Delivery = Delivery()

    @property
    def lane_queues(self) -> tuple[str, ...]:
        """Both queues of every channel."""
        return tuple(queue_of(channel, lane) for channel in self.channels for lane in Lane)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Every queue a worker is needed for: the lanes', then the product's own."""
        return (*self.lane_queues, *self.queues)

    def consumer(self, queue: str) -> str:
        """Who reads this queue. A lane's consumer bears its queue's name."""
        own = self.queues.get(queue)
        return own.consumer or queue if own else queue

    def provider(self, queue: str) -> str | None:
        """The provider a lane's queue feeds; None for a queue without a lane."""
        parsed = parse_queue(queue)
        channel = self.channels.get(parsed[0]) if parsed else None
        return channel.provider if channel else None

    def retry(self, queue: str) -> RetryPolicy:
        """A queue's own numbers, else the default ones."""
        default, own = self.retries.default, self.retries.queues.get(queue)
        differing = own.model_dump(exclude_none=True) if own else {}
        return default.model_copy(update=differing).policy
