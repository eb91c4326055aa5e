from collections.abc import Callable, Iterator

import pytest

from notif.adapters.http import PooledHttp
from notif.adapters.resend import ResendProvider
from notif.sandbox import Sandbox, SandboxClient


@pytest.fixture
def http() -> Iterator[PooledHttp]:
    client = PooledHttp()
    yield client
    client.close()


@pytest.fixture(scope="module")
def _sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_sandbox: Sandbox) -> SandboxClient:
    client = SandboxClient(_sandbox.url)
    client.reset()
    return client


@pytest.fixture
def sandbox_url(_sandbox: Sandbox) -> str:
    return _sandbox.url


@pytest.fixture
def provider_at(http: PooledHttp) -> Callable[[str], ResendProvider]:
    """A provider that talks to this URL."""
    return lambda url: ResendProvider("re_test", url, http=http)


@pytest.fixture
def provider(provider_at: Callable[[str], ResendProvider], sandbox_url: str) -> ResendProvider:
    return provider_at(sandbox_url)
