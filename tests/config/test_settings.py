"""The environment: what is read, what is refused, and that nothing shows a secret."""

import os
import re
import traceback
from pathlib import Path
from uuid import UUID

import pytest

from notif.errors import ConfigurationError
from notif.settings import Settings, secret_variables, variables

PASSWORD = "s3cr3t-hunter2"


def read(**environ: str) -> Settings:
    return Settings.from_environment(environ)


def refused(**environ: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(**environ)
    shown = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in shown
    return str(caught.value)


def test_nothing_set() -> None:
    settings = read()
    assert settings == Settings()
    assert settings.config == Path("config/notif.yaml")
    assert settings.data_dir == Path(".notif")
    assert settings.cell_id == UUID(int=0)
    assert settings.redis_url is None


def test_only_the_mapping_is_read() -> None:
    """Whatever this process' environment holds: settings are what they are given."""
    assert "PATH" in os.environ
    assert read(PATH="/nowhere", HOME="/", RESEND_API_KEY="re_1").resend_api_key is not None
    assert read(**dict.fromkeys(variables(), "")) == read()
    assert read(**{f"{name}_FILE": "" for name in secret_variables()}) == read()


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("NOTIF_DATABASE_URL", f"postgresql://u:{PASSWORD}@db/notif", f"postgresql://u:{PASSWORD}@db/notif"),
        ("NOTIF_DATABASE_OWNER_URL", "postgresql+psycopg://u@db:5433/n", "postgresql://u@db:5433/n"),
        ("NOTIF_DATABASE_MAINTENANCE_URL", "postgresql:///n?host=/run/pg", "postgresql:///n?host=/run/pg"),
        ("NOTIF_REDIS_URL", " rediss://:pass@redis:6380/1\n", "rediss://:pass@redis:6380/1"),
        ("NOTIF_LIMITS_REDIS_URL", "redis://localhost", "redis://localhost"),
        ("UPSTASH_REDIS_REST_TOKEN", "AX==", "AX=="),
        ("RESEND_API_KEY", " re_123 ", "re_123"),
        ("BETTERSTACK_TOKEN", "bs-1", "bs-1"),
    ],
)
def test_secrets(tmp_path: Path, name: str, value: str, kept: str) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{value}\n")
    for settings in (read(**{name: value}), read(**{f"{name}_FILE": str(file)})):
        (secret,) = (each for each in vars(settings).values() if hasattr(each, "get_secret_value"))
        assert secret.get_secret_value() == kept
        for shown in (repr(settings), str(settings), settings.model_dump_json(), f"{settings.model_dump()}"):
            assert kept not in shown
            assert PASSWORD not in shown


def test_every_url_that_may_hold_a_password_is_a_secret() -> None:
    urls = {name for name in variables() if re.search("DATABASE|REDIS_URL|KEY$|TOKEN", name)}
    assert secret_variables() == urls


def test_places() -> None:
    settings = read(
        NOTIF_CONFIG="a.yaml",
        RESEND_API_URL="http://127.0.0.1:8080/",
        NOTIF_CELL_ID="0192d3c4-0000-7000-8000-000000000001",
        NOTIF_APP="shop.jobs:register",
        NOTIF_PG_BIN="/opt/pg/bin",
    )
    assert settings.resend_api_url == "http://127.0.0.1:8080"
    assert settings.cell_id == UUID("0192d3c4-0000-7000-8000-000000000001")
    assert settings.app == "shop.jobs:register"
    assert settings.pg_bin == Path("/opt/pg/bin")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("NOTIF_DATABASE_URL", f"mysql://u:{PASSWORD}@db/n", "must begin with postgresql://"),
        ("NOTIF_DATABASE_URL", f"postgresql://u:{PASSWORD}#1@db/n", "has no valid host and port; write '@', ':', '/'"),
        ("NOTIF_DATABASE_URL", f"postgresql://u:1/{PASSWORD}@db/n", "has no valid host and port; write '@', ':', '/'"),
        ("NOTIF_DATABASE_URL", f"postgresql://u:{PASSWORD}@db:0/n", "has no valid host and port; write '@', ':', '/'"),
        ("NOTIF_DATABASE_URL", f"postgresql://u:{PASSWORD}@[db/n", "has no valid host and port; write '@', ':', '/'"),
        ("NOTIF_DATABASE_URL", f"postgresql://u:{PASSWORD} @db/n", "holds a blank or a control character"),
        ("NOTIF_REDIS_URL", f"http://:{PASSWORD}@redis", "must begin with redis:// or rediss://"),
        ("NOTIF_REDIS_URL", f"redis://:{PASSWORD}@", "names no host"),
        ("RESEND_API_URL", "api.resend.test", "must begin with https:// or http://"),
        ("RESEND_API_URL", f"https://u:{PASSWORD}@api.test", "must not hold a user name or password"),
        ("RESEND_API_KEY", f"Bearer {PASSWORD}", "holds a blank, a control character or one that isn't ASCII"),
        ("RESEND_API_KEY", f"{PASSWORD}\r\nX-Evil: 1", "holds a blank, a control character or one that isn't ASCII"),
        ("RESEND_API_KEY", f"{PASSWORD}ö", "holds a blank, a control character or one that isn't ASCII"),
        ("NOTIF_CELL_ID", "cell-1", "must be a UUID"),
        ("NOTIF_APP", "shop.jobs", "must be module:function, like shop.jobs:register"),
    ],
)
def test_refused_values(name: str, value: str, sentence: str) -> None:
    assert refused(**{name: value}).startswith(f"{name}: {sentence}")


def test_secret_files(tmp_path: Path) -> None:
    secret, empty, binary = tmp_path / "secret", tmp_path / "empty", tmp_path / "binary"
    secret.write_text(PASSWORD)
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe" + PASSWORD.encode())
    both = refused(RESEND_API_KEY=PASSWORD, RESEND_API_KEY_FILE=str(secret))
    assert both == "RESEND_API_KEY: RESEND_API_KEY_FILE is set too; set one of them"
    absent = f"RESEND_API_KEY_FILE: {tmp_path / 'absent'} can't be read: No such file or directory"
    assert refused(RESEND_API_KEY_FILE=str(tmp_path / "absent")) == absent
    assert refused(RESEND_API_KEY_FILE=str(empty)) == f"RESEND_API_KEY_FILE: {empty} is empty"
    assert refused(RESEND_API_KEY_FILE=str(binary)) == f"RESEND_API_KEY_FILE: {binary} can't be read: it is no text"
    secret.write_text(f"two {PASSWORD}")
    assert refused(RESEND_API_KEY_FILE=str(secret)).startswith("RESEND_API_KEY: holds a blank")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NOTIF_REDIS_URI", "did you mean 'NOTIF_REDIS_URL'?"),
        ("NOTIF_DATABASE_OWNER_URL_FIL", "did you mean 'NOTIF_DATABASE_OWNER_URL_FILE'?"),
        ("NOTIF_CONFIG_FILE", "did you mean 'NOTIF_CONFIG'?"),
        ("NOTIF_TESTS", "did you mean "),
        ("NOTIF_RESUME_PORTS", "did you mean "),
    ],
)
def test_unknown_variables(name: str, nearest: str) -> None:
    assert refused(**{name: PASSWORD}).startswith(f"{name}: no such variable; {nearest}")


def test_variables_that_are_not_ours() -> None:
    kubernetes = {
        "NOTIF_REDIS_SERVICE_HOST": "10.0.0.1",
        "NOTIF_REDIS_SERVICE_PORT": "6379",
        "NOTIF_REDIS_SERVICE_PORT_REDIS": "6379",
        "NOTIF_REDIS_PORT": "tcp://10.0.0.1:6379",
        "NOTIF_REDIS_PORT_6379_TCP": "tcp://10.0.0.1:6379",
        "NOTIF_REDIS_PORT_6379_TCP_ADDR": "10.0.0.1",
        "NOTIF_PORT": "tcp://10.0.0.1:80",
    }
    assert read(**kubernetes, NOTIF_TEST_DATABASE_URL="x", NOTIF_TEST_ANYTHING="x", OTHER="x") == read()


def test_all_problems_at_once() -> None:
    text = refused(NOTIF_REDIS_URI="x", NOTIF_DATABASE_URL="x", RESEND_API_KEY="a", RESEND_API_KEY_FILE="b")
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "NOTIF_REDIS_URI",
        "RESEND_API_KEY",
        "NOTIF_DATABASE_URL",
    ]
