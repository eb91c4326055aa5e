"""What must hold between sections. Each problem is `path: what is wrong; what would be right`."""

from collections.abc import Collection, Iterator
from datetime import timedelta

from notif.config.model import STANDARD_RETRY, Config, GuardRule, KindConfig
from notif.config.units import show_duration
from notif.errors import nearest
from notif.lanes import Lane, parse_queue

LEASE_MARGIN = timedelta(seconds=5)
"""A lease outlives the provider call it covers by at least this."""

_BUILT_IN = ("cron.fanout", "maintenance")


def problems(config: Config, known_providers: Collection[str]) -> Iterator[str]:
    """Everything that is wrong; `known_providers` are those notif has an adapter for."""
    yield from _providers(config, known_providers)
    yield from _channels(config)
    yield from _queues(config)
    for name in config.kinds:
        yield from kind_problems(config, name)
    yield from _guard(config)
    yield from _retries(config)
    redirect = config.delivery.redirect_to
    if redirect and not config.delivery.covers(redirect):
        yield "delivery.redirect_to: delivery.only doesn't let this address through, so nothing would be sent"


def _providers(config: Config, known_providers: Collection[str]) -> Iterator[str]:
    for name, provider in config.providers.items():
        at = f"providers.{name}"
        if name not in known_providers:
            yield f"{at}: notif has no adapter for it; {nearest(name, known_providers)}"
        if provider.reserve >= provider.burst:
            yield (
                f"{at}.reserve: {provider.reserve} of a burst of {provider.burst} leaves marketing nothing; "
                f"at most {provider.burst - 1}"
            )
        least = provider.deadline + LEASE_MARGIN
        if config.worker.lease < least:
            yield (
                f"worker.lease: {show_duration(config.worker.lease)} is too short for {at}.deadline "
                f"{show_duration(provider.deadline)}; at least {show_duration(least)} (the deadline and 5s)"
            )


def _channels(config: Config) -> Iterator[str]:
    for name, channel in config.channels.items():
        if channel.provider not in config.providers:
            yield (
                f"channels.{name}.provider: {channel.provider!r} is not under providers; "
                f"{nearest(channel.provider, config.providers)}"
            )


def _queues(config: Config) -> Iterator[str]:
    readers = {queue: queue for queue in (*config.lane_queues, *_BUILT_IN)}
    for name in config.queues:
        if name.startswith("notif.") or name in _BUILT_IN:
            yield f"queues.{name}: this name is notif's own; choose another"
            continue
        consumer = config.consumer(name)
        if consumer in readers:
            # Two queues, one consumer: a job on both would be done once and count as a duplicate at the other.
            yield f"queues.{name}.consumer: {consumer!r} reads {readers[consumer]!r} already; a queue has its own"
        readers[consumer] = name


def kind_problems(config: Config, name: str) -> Iterator[str]:
    """Of this kind alone."""
    at, kind = f"kinds.{name}", config.kinds[name]
    for channel in kind.channels:
        if channel not in config.channels:
            yield f"{at}.channels: {channel!r} is not under channels; {nearest(channel, config.channels)}"
    for queue in kind.queues:
        if parse_queue(queue):
            yield f"{at}.queues: {queue!r} is a lane's queue; name its channel under {at}.channels instead"
        elif queue not in config.queues:
            yield f"{at}.queues: {queue!r} is not under queues; {nearest(queue, config.queues)}"
    if not kind.channels and not kind.queues:
        yield f"{at}: goes nowhere; give it channels, queues or both"
    least = config.retention.fence
    if kind.fence_ttl is not None and kind.fence_ttl < least:
        yield (
            f"{at}.fence_ttl: {show_duration(kind.fence_ttl)} is shorter than retention.fence "
            f"({show_duration(least)}), which holds anyway; leave it out or write more"
        )
    unnamed = "model" not in kind.model_fields_set
    if unnamed and (kind.template or (kind.queues and not kind.channels)):
        yield f"{at}.model: is missing; name the pydantic model of its data, like shop.mails.OrderShipped"
    yield from _mail(config, at, kind)


def _mail(config: Config, at: str, kind: KindConfig) -> Iterator[str]:
    if kind.template is None:
        for key, value in (("to", kind.to), ("from", kind.sender)):
            if value is not None:
                yield f"{at}.{key}: only a kind with a template has it; without one the data is the message"
        return
    if not kind.channels:
        yield f"{at}.template: a kind without channels sends nothing; leave it out or add channels"
    for name in kind.channels:
        channel = config.channels.get(name)
        if kind.sender is None and channel and channel.sender is None:
            yield f"{at}.from: no sender; write one here or as channels.{name}.from"


def _guard(config: Config) -> Iterator[str]:
    guard = config.guard
    if guard.lease <= guard.interval:
        yield "guard.lease: must be longer than guard.interval, else every pause lapses before it is renewed"
    seen: set[str] = set()
    for number, rule in enumerate(guard.rules):
        at = f"guard.rules.{number}"
        if rule.name in seen:
            yield f"{at}.name: {rule.name!r} is there twice"
        seen.add(rule.name)
        if rule.resume_below > rule.pause_above:
            yield f"{at}.resume_below: {rule.resume_below} is more than pause_above {rule.pause_above}"
        if rule.min_pause > rule.max_pause:
            yield f"{at}.min_pause: is longer than max_pause {show_duration(rule.max_pause)}"
        yield from _rule_queues(config, at, rule)


def _rule_queues(config: Config, at: str, rule: GuardRule) -> Iterator[str]:
    for key, queues, lane in (("watch", rule.watch, Lane.TRANSACTIONAL), ("pause", rule.pause, Lane.MARKETING)):
        right = [queue for queue in config.lane_queues if queue.endswith(f".{lane}")]
        for queue in queues:
            if queue not in right:
                yield f"{at}.{key}: {queue!r} is no {lane} queue of a channel; {nearest(queue, right)}"


def _retries(config: Config) -> Iterator[str]:
    default = config.retries.default
    if default.policy != STANDARD_RETRY and not default.justification.strip():
        yield "retries.default.justification: other numbers than 5 attempts, 30s and 1h need a reason in writing"
    if default.cap < default.base:
        yield f"retries.default.cap: is shorter than base {show_duration(default.base)}"
    for name in config.retries.queues:
        at = f"retries.queues.{name}"
        if name not in config.queue_names:
            yield f"{at}: no such queue; {nearest(name, config.queue_names)}"
        policy = config.retry(name)
        if policy.cap < policy.base:
            yield f"{at}.cap: is shorter than base {show_duration(timedelta(seconds=policy.base))}"
