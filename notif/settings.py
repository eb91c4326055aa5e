"""What the environment says: where services are, and the secrets for them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from notif.errors import ConfigurationError, nearest
from notif.messages import wrong

SINGLE_CELL = UUID(int=0)
"""The cell of an installation that has only one."""

# A Service named notif-… makes Kubernetes put these into every pod beside it; they are not settings of ours.
_KUBERNETES = re.compile(
    r"NOTIF_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def _checked_url(text: str, schemes: tuple[str, ...], host: bool) -> None:
    """Refuses without ever showing the URL: it may hold a password."""
    if not text.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        raise wrong(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if not text.isprintable() or " " in text:
        raise wrong("holds a blank or a control character")
    try:
        parts = urlsplit(text)
        valid = parts.port != 0 and "@" not in parts.path + parts.fragment
    except ValueError:
        valid = False
    if not valid:
        raise wrong("has no valid host and port; write '@', ':', '/' and '#' of a password as %40 %3A %2F %23")
    if host and not parts.hostname:
        raise wrong("names no host")


def _postgres(value: SecretStr) -> SecretStr:
    text = re.sub(r"^postgresql\+psycopg://", "postgresql://", value.get_secret_value())
    _checked_url(text, ("postgresql",), host=False)  # without a host: the socket
    return SecretStr(text)


def _redis(value: SecretStr) -> SecretStr:
    _checked_url(value.get_secret_value(), ("redis", "rediss"), host=True)
    return value


def _http(text: str) -> str:
    _checked_url(text, ("https", "http"), host=True)
    if "@" in urlsplit(text).netloc:
        raise wrong("must not hold a user name or password")
    return text.rstrip("/")


def _token(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise wrong("holds a blank, a control character or one that isn't ASCII; it was perhaps copied with its line")
    return value


PostgresUrl = Annotated[SecretStr, AfterValidator(_postgres)]
RedisUrl = Annotated[SecretStr, AfterValidator(_redis)]
HttpUrl = Annotated[str, AfterValidator(_http)]
Token = Annotated[SecretStr, AfterValidator(_token)]
AppPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]


class Settings(BaseModel):
    """One field per variable, whose name is its alias. Nothing here reads the process' environment by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_by_name=True)

    config: Path = Field(Path("config/notif.yaml"), alias="NOTIF_CONFIG")
    data_dir: Path = Field(Path(".notif"), alias="NOTIF_DATA_DIR")
    database_url: PostgresUrl | None = Field(None, alias="NOTIF_DATABASE_URL")
    database_owner_url: PostgresUrl | None = Field(None, alias="NOTIF_DATABASE_OWNER_URL")
    database_maintenance_url: PostgresUrl | None = Field(None, alias="NOTIF_DATABASE_MAINTENANCE_URL")
    redis_url: RedisUrl | None = Field(None, alias="NOTIF_REDIS_URL")
    limits_redis_url: RedisUrl | None = Field(None, alias="NOTIF_LIMITS_REDIS_URL")
    upstash_url: HttpUrl | None = Field(None, alias="UPSTASH_REDIS_REST_URL")
    upstash_token: Token | None = Field(None, alias="UPSTASH_REDIS_REST_TOKEN")
    resend_api_key: Token | None = Field(None, alias="RESEND_API_KEY")
    resend_api_url: HttpUrl | None = Field(None, alias="RESEND_API_URL")
    betterstack_token: Token | None = Field(None, alias="BETTERSTACK_TOKEN")
    betterstack_url: HttpUrl | None = Field(None, alias="BETTERSTACK_URL")
    cell_id: UUID = Field(SINGLE_CELL, alias="NOTIF_CELL_ID")
    public_url: HttpUrl | None = Field(None, alias="NOTIF_PUBLIC_URL")
    app: AppPath | None = Field(None, alias="NOTIF_APP")
    pg_bin: Path | None = Field(None, alias="NOTIF_PG_BIN")
    valkey_bin: Path | None = Field(None, alias="NOTIF_VALKEY_BIN")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read from `environ` alone. A variable that is set but empty counts as not set; blanks around it are cut.

        Raises ConfigurationError, one line per problem, each naming its variable and never showing its value.
        """
        names, secrets = variables(), secret_variables()
        problems = _unknown(environ, {*names, *(f"{name}_FILE" for name in secrets)})
        values: dict[str, str] = {}
        for name in names:
            try:
                value = _value(name, environ, secret=name in secrets)
            except ConfigurationError as error:
                problems.append(str(error))
            else:
                values |= {name: value} if value else {}
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            problems += [_sentence(str(each["loc"][0]), each["type"], each["msg"]) for each in error.errors()]
        if problems:
            raise ConfigurationError("\n".join(problems))
        return settings


def variables() -> list[str]:
    """The name of every variable that is read."""
    return [str(info.alias) for info in Settings.model_fields.values()]


def secret_variables() -> set[str]:
    """Those that hold a secret: `<NAME>_FILE` may name a file that holds it."""
    return {str(info.alias) for info in Settings.model_fields.values() if _holds_secret(info.annotation)}


def _holds_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(_holds_secret(part) for part in get_args(annotation))


def _unknown(environ: Mapping[str, str], known: set[str]) -> list[str]:
    return [
        f"{name}: no such variable; {nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith("NOTIF_") and name not in known
        if not name.startswith("NOTIF_TEST_") and not _KUBERNETES.fullmatch(name)
    ]


def _value(name: str, environ: Mapping[str, str], *, secret: bool) -> str:
    value, file = environ.get(name, "").strip(), environ.get(f"{name}_FILE", "").strip()
    if not secret or not file:
        return value
    if value:
        raise ConfigurationError(f"{name}: {name}_FILE is set too; set one of them")
    try:
        content = Path(file).read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"{name}_FILE: {file} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name}_FILE: {file} can't be read: it is no text") from None
    if not content:
        raise ConfigurationError(f"{name}_FILE: {file} is empty")
    return content


def _sentence(name: str, kind: str, message: str) -> str:
    if kind == "string_pattern_mismatch":
        return f"{name}: must be module:function, like shop.jobs:register"
    if kind.startswith("uuid"):
        return f"{name}: must be a UUID"
    return f"{name}: {message}"
