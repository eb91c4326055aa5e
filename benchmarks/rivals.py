"""What a product would write by hand on Dramatiq: the actors that notif is measured beside. Loaded by `dramatiq benchmarks.rivals`.

They take the job's data from Redis, keep nothing if Redis loses it, call the provider inside a transaction, and know no
tenant's turn, pause, expiry, dead letter or history. Their fence alone is as ours.
"""

import os
from collections.abc import Mapping
from typing import Any, cast

import dramatiq
import requests
import resend
from dramatiq.brokers.redis import RedisBroker
from requests.adapters import HTTPAdapter
from resend.http_client import HTTPClient
from sqlalchemy import create_engine, text

THREADS = 8


class Pooled(HTTPClient):
    """The SDK's own client, over connections that are kept."""

    def __init__(self) -> None:
        self._session = requests.Session()
        self._session.mount("http://", HTTPAdapter(pool_connections=1, pool_maxsize=THREADS))

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        json: dict[str, object] | list[object] | None = None,
        files: dict[str, Any] | None = None,
        data: dict[str, str] | None = None,
    ) -> tuple[bytes, int, Mapping[str, str]]:
        del files, data
        response = self._session.request(method, url, headers=headers, json=cast(Any, json), timeout=30)
        return response.content, response.status_code, response.headers


broker = RedisBroker(  # type: ignore[no-untyped-call]
    host=os.environ["BENCH_REDIS_HOST"],
    port=int(os.environ["BENCH_REDIS_PORT"]),
    password=os.environ["BENCH_REDIS_PASSWORD"],
)
dramatiq.set_broker(broker)
engine = create_engine(os.environ["BENCH_DATABASE_URL"], pool_size=THREADS)
resend.api_key = "re_sandbox"
resend.api_url = os.environ["BENCH_SANDBOX_URL"]
if "BENCH_POOLED" in os.environ:
    resend.default_http_client = Pooled()


@dramatiq.actor(queue_name="noop")
def noop(job_id: str, tenant_id: str, message: dict[str, Any]) -> None:
    del job_id, tenant_id, message


@dramatiq.actor(queue_name="email")
def email(job_id: str, tenant_id: str, message: resend.Emails.SendParams) -> None:
    with engine.begin() as connection:
        insert = text(
            "INSERT INTO bench.fence (job_id, consumer, tenant_id) VALUES (:job, 'email', :tenant) ON CONFLICT DO NOTHING"
        )
        if connection.execute(insert, {"job": job_id, "tenant": tenant_id}).rowcount:
            resend.Emails.send(message, {"idempotency_key": job_id})
