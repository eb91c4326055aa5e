"""The guides, run as they stand: what a reader copies works."""

import json
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from notif.adapters.postgres.database import driver_url
from notif.bootstrap import App
from notif.ports import Publication, Tenant
from notif.sandbox import Sandbox
from notif.testing import make_queue
from tests import servers as real
from tests.kit import CONFIG, EMAIL, Installation
from tests.pages import ROOT, blocks
from tests.spine.hands import Hands

ORDER = {"email": "ann@example.test", "name": "Ann", "order_number": "1042", "carrier": "DHL"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A product's package `shop`, to write the guides' modules into."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "shop"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def module(code: str, shop: Path) -> None:
    """Write a block to the file that its first line names."""
    name = code.partition("\n")[0].removeprefix("# shop/")
    (shop / name).write_text(code)


def configured(folder: Path, fragment: str, templates: Path = ROOT / "config" / "templates") -> Path:
    """The tests' configuration with a guide's part in the place of ours."""
    content: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    ours = {name: content["kinds"][name] for name in ("email.message", "order.shipped")}
    part: dict[str, Any] = yaml.safe_load(fragment)
    content |= {"queues": {}, **part, "kinds": ours | part.get("kinds", {}), "templates": str(templates)}
    path = folder / "notif.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_publish(notif: Installation, tmp_path: Path) -> None:
    """As a role of the product's that owns nothing of ours."""
    shop = f"shop_{uuid.uuid4().hex[:8]}"
    (grant,) = blocks("docs/how-to/publish.md", "sql")
    notif.admin(f"CREATE ROLE {shop} LOGIN PASSWORD '{real.PASSWORD}'; {grant.replace(' shop', f' {shop}')}")
    url = notif.servers.url(shop, notif.database)
    env = {
        **notif.env("notif_publisher"),
        "NOTIF_DATABASE_URL": url,
        "NOTIF_CONFIG": str(ROOT / "config" / "notif.yaml"),
    }
    del env["NOTIF_APP"]
    known = f"""
import sqlalchemy
engine = sqlalchemy.create_engine({driver_url(url).render_as_string(hide_password=False)!r})
tenant_id = {str(notif.tenant)!r}
orders = [{ORDER!r}] * 2
"""
    state = "print(notifier.status(envelope.job_id)[0].state)"
    first, ask, many = blocks("docs/how-to/publish.md", "python")
    script = tmp_path / "shop.py"
    script.write_text("\n".join((known, first, state, ask, state, many)))
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["ready", "cancelled"], "")
    assert notif.one("SELECT count(*) FROM core.outbox WHERE state = 'ready'") == 2
    notif.admin(f"DROP OWNED BY {shop}; DROP ROLE {shop}")


def test_own_consumer(
    notif: Installation, servers: real.Servers, database: str, sandbox: Sandbox, shop: Path, tmp_path: Path
) -> None:
    """Credited once and mailed once, though published six times: three before its end, three after."""
    page = "docs/how-to/own-consumer.md"
    (code,), (fragment,), (rights,) = blocks(page, "python"), blocks(page, "yaml"), blocks(page, "sql")
    module(code, shop)
    notif.admin("DROP TABLE IF EXISTS loyalty;" + rights)  # that of the fixture of the same name
    there = Installation(servers, database, sandbox, tmp_path, configured(tmp_path, fragment))
    env = {"NOTIF_APP": "shop.loyalty:register", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    try:
        there.relay(**env)
        there.worker("loyalty", "transactional", **env)
        envelope = there.envelope("order.placed", **ORDER, points=10)
        queues = there.app.kinds.get("order.placed").all_queues
        for _ in range(3):
            there.app.queue.publish_many([Publication(queues, envelope)])
        there.until(envelope.job_id, "delivered", queue="loyalty", within=60)
        there.until(envelope.job_id, "delivered", queue=EMAIL, within=60)
        for _ in range(3):
            there.app.queue.publish_many([Publication(queues, envelope)])
            there.until_empty()
        with psycopg.connect(servers.admin(database), autocommit=True) as connection:
            credited = connection.execute("SELECT job_id, points FROM loyalty").fetchall()
        assert credited == [(envelope.job_id, 10)]
        assert len(there.mails_of(envelope.job_id)) == 1
    finally:
        there.close()
        notif.admin("DROP TABLE loyalty")


def test_kinds_and_templates(shop: Path, tmp_path: Path) -> None:
    page = "docs/how-to/kinds-and-templates.md"
    (model,), (body,), (fragment,) = blocks(page, "python"), blocks(page, "jinja"), blocks(page, "yaml")
    module(model, shop)
    folder = tmp_path / "templates" / "password_reset"
    folder.mkdir(parents=True)
    (folder / "body.txt").write_text(body)
    (folder / "subject.txt").write_text("Your password")
    orders = tmp_path / "templates" / "order_shipped"
    orders.symlink_to(ROOT / "config" / "templates" / "order_shipped")
    app = App.from_settings({"NOTIF_CONFIG": str(configured(tmp_path, fragment, tmp_path / "templates"))})
    data = {"email": "ann@example.test", "name": "Ann", "link": "https://acme.test/r/1"}
    kind = app.kinds.get("password.reset")
    message = app.composer.message(kind, kind.parse(data))
    assert message.to == ("ann@example.test",)
    assert "Hello Ann,\nchoose a new password here: https://acme.test/r/1" in (message.text or "")


def test_staging(tmp_path: Path) -> None:
    for fragment in blocks("docs/how-to/staging.md", "yaml"):
        delivery = App.from_settings({"NOTIF_CONFIG": str(configured(tmp_path, fragment))}).config.delivery
        assert delivery.redirect_to == "staging@acme.test" or delivery.covers("bob@acme.test")


def test_test_your_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIF_CONFIG", str(ROOT / "config" / "notif.yaml"))
    monkeypatch.delenv("NOTIF_APP", raising=False)
    (code,) = blocks("docs/how-to/test-your-code.md", "python")
    place: dict[str, Any] = {}
    exec(code, place)
    place["test_an_order_is_announced"](make_queue())


def test_sandbox_in_ci(notif: Installation, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESEND_API_URL", sandbox.url)
    mail = {"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}
    headers = {"authorization": "Bearer re_x", "content-type": "application/json", "user-agent": "test"}
    urllib.request.urlopen(urllib.request.Request(f"{sandbox.url}/emails", json.dumps(mail).encode(), headers)).close()
    arrived, what_if = blocks("docs/how-to/sandbox-in-ci.md", "python")
    place: dict[str, Any] = {}
    exec(arrived, place)
    exec(what_if, place)


def test_faults_of_the_sandboxs_page(notif: Installation) -> None:
    (script,) = [code for code in blocks("docs/reference/sandbox.md", "sh") if "/_sandbox/faults" in code]
    notif.sandbox.faults(json.loads(script.partition("'")[2].rpartition("'")[0]))


def test_the_sql_door(notif: Installation) -> None:
    """As a client in another language would, under the publisher's role; a worker then delivers it."""
    (script,) = blocks("docs/reference/sql.md", "sql")
    job = json.loads(script.partition("'")[2].rpartition("'")[0])[0]
    notif.app.tenants.add(Tenant(uuid.UUID(job["tenant_id"]), "Door", "UTC", "standard", uuid.UUID(int=0), True))
    with psycopg.connect(notif.servers.url("notif_publisher", notif.database), autocommit=True) as connection:
        connection.execute(script.encode())
    hands = Hands(notif)
    try:
        assert hands.turn() == ["delivered"]
    finally:
        hands.close()
    (mail,) = notif.mails_of(uuid.UUID(job["job_id"]))
    assert mail["to"] == [job["data"]["email"]]
