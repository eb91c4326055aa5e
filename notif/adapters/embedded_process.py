"""What the embedded servers share: one owner per folder, a server that answers or a clear error, none left behind."""

import contextlib
import fcntl
import importlib.util
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from notif.errors import ConfigurationError, Refused, Unavailable
from notif.process import tied

_PORTS = range(15000, 32000)


def free_port() -> int:
    """A loopback port that nobody listens on now, below the range that outgoing connections take theirs from.

    In that range a client that reconnects to a stopped server can be given the very port it calls: no restart then.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wheel_folder(package: str) -> Path | None:
    """The folder of an installed package, found without importing it; None if it isn't installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def server_environment() -> dict[str, str]:
    """What a server may see of ours: enough to be found and linked, no settings (PGPORT, …) and no secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}


class EmbeddedServer(ABC):
    """One server of ours on loopback. A context manager; `start` may be called again after `kill`, `stop` or a crash.

    Without a directory the data is thrown away by `stop`. With one it stays, and belongs to one owner at a time: a
    second start raises Refused. Start it from a thread that lives as long as it should (see `notif.process.tied`).
    """

    product: str
    stop_signal: signal.Signals
    ready_timeout = 60.0
    """Seconds until a server must answer; a large append-only file or a recovery takes its time."""
    orphan_timeout = 30.0
    """Seconds that the server of a killed owner gets to end, before its folder is refused."""
    stop_timeout = 30.0
    """Seconds between the stop signal and SIGKILL."""

    def __init__(self, directory: Path | None, port: int | None) -> None:
        self.keep = directory is not None
        self._directory = directory.expanduser().absolute() if directory else None
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        # Two locks. `lock` is the owner's and goes with it. `server.lock` is inherited by the server and its children,
        # so that after `kill -9` of the owner nobody opens the data while they still write: two Valkeys destroy an AOF.
        self._owner_lock: IO[str] | None = None
        self._server_lock: IO[str] | None = None

    @property
    def directory(self) -> Path:
        """Where data, password and log are; a throw-away folder exists from `start` to `stop`."""
        if self._directory is None:
            raise Unavailable(f"{self.product} is not started")
        return self._directory

    @property
    def port(self) -> int:
        """Chosen at the first start unless given, then the same for this object's life."""
        if self._port is None:
            raise Unavailable(f"{self.product} is not started")
        return self._port

    @property
    def pid(self) -> int:
        if self._process is None:
            raise Unavailable(f"{self.product} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start and wait until it answers. Raises Refused (folder in use), ConfigurationError, Unavailable."""
        if self.running:
            return self
        self._close_server_lock()
        try:
            self._take_folder()
            self._launch_on_free_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it in good order (SIGKILL after `stop_timeout`); may be called at any time, any number of times."""
        if self._process is not None:
            if self.running:
                self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(self.stop_timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._close_server_lock()
        if self._owner_lock is None:
            return
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._directory = None
        self._owner_lock.close()
        self._owner_lock = None

    def kill(self) -> None:
        """SIGKILL, as a crash would. Folder, port and password stay for the next `start`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def password(self) -> str:
        """The server's own password, made once per folder, readable by its owner only."""
        secret = self.directory / "password"
        if not secret.exists() or not secret.stat().st_size:
            with open(secret, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(secrets.token_urlsafe(24))
        return secret.read_text()

    @abstractmethod
    def _launch(self, port: int) -> None:
        """Start the process by `_spawn`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server on our port lets us in with our password."""

    def _spawn(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path,
        identity: tuple[int, int] | None = None,
        stdin: bytes = b"",
    ) -> None:
        assert self._server_lock is not None
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                tied([str(arg) for arg in argv], self.stop_signal, identity),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env=server_environment(),
                pass_fds=[self._server_lock.fileno()],
                start_new_session=True,  # Ctrl-C must not reach it before those who use it
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once; waiting for it says why
            self._process.stdin.write(stdin)
            self._process.stdin.close()
        self._server_lock.truncate(0)
        self._server_lock.write(str(self._process.pid))
        self._server_lock.flush()

    def _run(
        self, argv: Sequence[str | Path], *, cwd: Path, identity: tuple[int, int] | None = None
    ) -> subprocess.CompletedProcess[str]:
        assert self._server_lock is not None
        return subprocess.run(  # noqa: S603
            tied([str(arg) for arg in argv], signal.SIGTERM, identity),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=server_environment(),
            pass_fds=[self._server_lock.fileno()],
        )

    def _launch_on_free_port(self) -> None:
        log = self.directory / "log"
        for last in (False, False, True):
            fixed = self._port
            self._port = fixed or free_port()
            old = log.stat().st_size if log.exists() else 0
            self._launch(self._port)
            try:
                self._wait_until_it_answers(old)
                return
            except Unavailable as error:
                self._port = fixed
                if fixed or last or "ddress already in use" not in str(error):
                    raise

    def _wait_until_it_answers(self, old: int) -> None:
        """`old`: how many bytes of the log are from before this start."""
        assert self._process is not None
        end = time.monotonic() + self.ready_timeout
        while not self._answers():
            code = self._process.poll()
            if code is None and time.monotonic() < end:
                time.sleep(0.01)
                continue
            what = f"does not answer after {self.ready_timeout:.0f} s" if code is None else f"ended with code {code}"
            log = (self.directory / "log").read_bytes()[old:].decode(errors="replace")
            said = " | ".join(log.strip().splitlines()[-6:]) or "nothing"
            raise Unavailable(f"{self.product} in {self.directory} {what}; its log says: {said}")

    def _take_folder(self) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"notif-{self.product.lower()}-"))
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._owner_lock is None:
                self._owner_lock = _lock(self._directory / "lock")
            if self._owner_lock is None:
                raise Refused(f"{self._directory} is in use by another process")
            self._server_lock = self._wait_for_server_lock(self._directory / "server.lock")
        except OSError as error:
            raise ConfigurationError(
                f"{self._directory} cannot be used for {self.product}: {error.strerror}"
            ) from error

    def _wait_for_server_lock(self, path: Path) -> IO[str]:
        end = time.monotonic() + self.orphan_timeout
        while (lock := _lock(path)) is None:
            if time.monotonic() > end:
                pid = path.read_text()
                raise Refused(
                    f"{path.parent} is in use by a server left from a killed process; end it with: kill {pid}"
                )
            time.sleep(0.01)
        return lock

    def _close_server_lock(self) -> None:
        if self._server_lock is not None:
            self._server_lock.close()
            self._server_lock = None


def _lock(path: Path) -> IO[str] | None:
    """An exclusive lock held while the answered file is open in any process; None if somebody has it."""
    file = open(path, "a")  # noqa: SIM115  (the caller closes it: that is the unlocking)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
