"""A Redis that forgets is refused."""

from collections.abc import Iterator

import pytest

from notif.bootstrap import App
from notif.bootstrap.checks import check
from notif.errors import ConfigurationError
from tests.kit import Installation

POLICIES = ("allkeys-lru", "volatile-lru", "allkeys-lfu", "allkeys-random", "volatile-ttl")


@pytest.fixture
def full(notif: Installation) -> Iterator[None]:
    """Its memory is limited; what it does then is the policy's."""
    notif.redis.config_set("maxmemory", "100mb")
    yield
    notif.redis.config_set("maxmemory", "0")
    notif.redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.usefixtures("full")
def test_b97_any_policy_but_noeviction_is_refused(notif: Installation) -> None:
    app = notif.app_as("notif_worker")
    try:
        for policy in POLICIES:
            notif.redis.config_set("maxmemory-policy", policy)
            with pytest.raises(ConfigurationError, match=f"maxmemory-policy {policy}.; set it to noeviction"):
                starts(app)
        notif.redis.config_set("maxmemory-policy", "noeviction")
        starts(app)
    finally:
        app.close()


def starts(app: App) -> None:
    """What every role does before anything else."""
    check(app, app.maintenance)
