"""One `notif up` for all tests of the command line, and a shell beside it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from notif.cli.main import run
from notif.sandbox import SandboxClient
from tests.cli.shells import Done, Shell, Up, bare


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up") / "data"
    started = Up(folder, bare(folder))
    yield started
    started.stop()


@pytest.fixture
def sandbox_of_up(up: Up) -> Iterator[SandboxClient]:
    client = SandboxClient(up.running.env["RESEND_API_URL"])
    client.reset()
    yield client
    client.reset()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command in this process: a new one each would take two seconds."""

    def call(*arguments: object, env: dict[str, str]) -> Done:
        with monkeypatch.context() as patch:
            for name in os.environ:
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            capsys.readouterr()
            code = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """A shell beside which nothing runs."""
    return bare(tmp_path / "nothing")


@pytest.fixture
def notif_(shell: Shell, up: Up) -> Shell:
    """A second shell beside the `notif up`: it knows the data folder, and no URL."""

    def call(*arguments: object, **more: str) -> Done:
        return shell(*arguments, env={**bare(up.folder), **more})

    return call
