"""What is published: one frozen Envelope."""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from notif.errors import InvalidEnvelope, TooLarge

MAX_BYTES = 256 * 1024
"""Default limit of an encoded envelope, in bytes."""

_correlation: ContextVar[str | None] = ContextVar("notif_correlation_id", default=None)


def uuid7(milliseconds: int, random_bits: int) -> UUID:
    """RFC 9562 version 7. Written out because `uuid.uuid7` comes only with Python 3.14."""
    value = (milliseconds & (1 << 48) - 1) << 80 | (random_bits & (1 << 74) - 1)
    rand_a, rand_b = value >> 62 & 0xFFF, value & (1 << 62) - 1
    return UUID(int=(value >> 80) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)


def new_job_id() -> UUID:
    """A fresh UUIDv7 of now."""
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


@contextmanager
def correlated(correlation_id: str) -> Iterator[None]:
    """Everything published inside carries this correlation id, unless it brings its own."""
    token = _correlation.set(correlation_id)
    try:
        yield
    finally:
        _correlation.reset(token)


class Envelope(BaseModel):
    """A job as published: who it is for, what it is, and its data. Never changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_id: UUID
    tenant_id: UUID
    correlation_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
    kind: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    data: dict[str, JsonValue]

    @field_validator("job_id")
    @classmethod
    def _version(cls, value: UUID) -> UUID:
        if value.version != 7:
            found = value.version or "none that is known"
            raise PydanticCustomError("version", "must be a UUID of version 7, not {found}", {"found": found})
        return value

    @classmethod
    def new(
        cls,
        tenant_id: UUID | str,
        kind: str,
        data: dict[str, Any],
        *,
        job_id: UUID | str | None = None,
        correlation_id: str | None = None,
    ) -> "Envelope":
        """Issue job id and correlation id (the current context's, if there is one).

        Raises InvalidEnvelope with the field and what is wrong with it.
        """
        job = job_id or new_job_id()
        correlation = correlation_id or _correlation.get() or str(job)
        return cls.parse(
            {"job_id": job, "tenant_id": tenant_id, "correlation_id": correlation, "kind": kind, "data": data}
        )

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "Envelope":
        """Check foreign fields. Raises InvalidEnvelope."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidEnvelope(f"envelope: {explain(error)}") from None

    def fields(self) -> dict[str, Any]:
        """As JSON has it: ids as text, the data as it came."""
        return {**self.model_dump(), "job_id": str(self.job_id), "tenant_id": str(self.tenant_id)}

    def encoded(self, limit: int = MAX_BYTES) -> bytes:
        """Canonical JSON, at most `limit` bytes. Raises InvalidEnvelope (not JSON) or TooLarge."""
        try:
            text = json.dumps(self.fields(), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
            encoded = text.encode()
        except UnicodeEncodeError:  # PostgreSQL's jsonb can hold neither this nor a NUL
            raise InvalidEnvelope("data: holds half of a surrogate pair, which is no character") from None
        except (TypeError, ValueError) as error:
            raise InvalidEnvelope(f"data: {error}") from None
        if "\\u0000" in text.replace("\\\\", ""):
            raise InvalidEnvelope("data: holds a NUL character, which can't be stored")
        if len(encoded) > limit:
            raise TooLarge(f"data: the envelope has {len(encoded):,} bytes, the limit is {limit:,}")
        return encoded


def explain(error: ValidationError) -> str:
    """A pydantic error in one line: `field: what is wrong; …`, without the offending values (they may be personal)."""
    parts = [f"{'.'.join(str(x) for x in e['loc']) or 'value'}: {e['msg']}" for e in error.errors(include_input=False)]
    return "; ".join(parts)
