"""`config/notif.yaml`: what it may say, and what it says here (ADR 0009)."""

from notif.config.load import checked_config, load_config, refused
from notif.config.model import (
    ChannelConfig,
    Config,
    Delivery,
    GuardConfig,
    GuardRule,
    KindConfig,
    ProviderConfig,
    QueueConfig,
    RetentionConfig,
    RetriesConfig,
    TenantsConfig,
    WorkerConfig,
)

__all__ = [
    "ChannelConfig",
    "Config",
    "Delivery",
    "GuardConfig",
    "GuardRule",
    "KindConfig",
    "ProviderConfig",
    "QueueConfig",
    "RetentionConfig",
    "RetriesConfig",
    "TenantsConfig",
    "WorkerConfig",
    "checked_config",
    "load_config",
    "refused",
]
