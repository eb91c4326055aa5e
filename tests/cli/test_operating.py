"""Commands of a second shell, beside one `notif up`: it finds it by the data folder alone."""

import json
import os
import socket
import subprocess
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from notif.sandbox import SandboxClient
from tests.cli.shells import NOTIF, Done, Shell, Up, bare, command
from tests.kit import EMAIL, ROOT, eventually

MAIL = {"from": "shop@mail.acme.test", "to": "ann@example.test", "subject": "Hi", "text": "hello"}
SHIPPED = {"email": "ann@example.test", "name": "Ann", "order_number": "A-1", "carrier": "DHL"}
Send = Callable[..., str]


@pytest.fixture
def tenant(notif_: Shell) -> str:
    done = notif_("tenants", "add", "--name", "Acme")
    assert done.code == 0, done.err
    return done.out.strip()


@pytest.fixture
def send(notif_: Shell, tenant: str) -> Send:
    def call(*options: str, kind: str = "email.message", **data: Any) -> str:
        done = notif_("send", "--tenant", tenant, "--kind", kind, "--data", json.dumps(data or MAIL), *options)
        assert done.code == 0, done.err
        return done.out.strip()

    return call


def explained(notif_: Shell, job: str) -> dict[str, Any]:
    done = notif_("explain", job, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def until(notif_: Shell, job: str, state: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = explained(notif_, job)
        return found if found["state"] == state else None

    found = eventually(look, what=f"{job} {state}")
    assert found
    return found


# ---- tenants
def test_tenants_are_added_listed_changed_and_deactivated(notif_: Shell, tenant: str, send: Send) -> None:
    def mine() -> dict[str, Any]:
        found: dict[str, Any] = next(
            x for x in json.loads(notif_("tenants", "list", "--json").out) if x["id"] == tenant
        )
        return found

    cell = str(uuid.UUID(int=0))
    named = {"id": tenant, "name": "Acme", "timezone": "UTC", "tier": "standard", "cell_id": cell, "active": True}
    assert mine() == named
    assert notif_("tenants", "set", tenant, "--timezone", "Asia/Tokyo", "--tier", "gold").code == 0
    assert mine() == {**named, "timezone": "Asia/Tokyo", "tier": "gold"}
    assert notif_("tenants", "deactivate", tenant).code == 0
    assert mine()["active"] is False
    refused = notif_("send", "--tenant", tenant, "--kind", "email.message", "--data", json.dumps(MAIL))
    assert refused.code == 1
    assert refused.err.startswith(f"notif: tenant_id: {tenant} is no active tenant")
    assert tenant in notif_("tenants", "list").out


def test_a_tenant_that_can_not_be_is_refused(notif_: Shell, tenant: str) -> None:
    def refusal(*arguments: str) -> str:
        done = notif_("tenants", *arguments)
        assert (done.code, done.out) == (1, "")
        return done.err

    assert "did you mean 'Europe/Berlin'?" in refusal("add", "--name", "x", "--timezone", "Berlin")
    assert "did you mean 'America/New_York'?" in refusal("add", "--name", "x", "--timezone", "new york")
    assert "write it like Europe/Berlin" in refusal("set", tenant, "--timezone", "qqqq")
    assert "name: must be 1 to 200 characters" in refusal("add", "--name", " ")
    assert "tier: must be 1 to 40 characters" in refusal("set", tenant, "--tier", "x" * 41)
    assert "is there already" in refusal("add", "--name", "x", "--id", tenant)
    assert "no tenant" in refusal("deactivate", str(uuid.uuid4()))


def test_what_a_tenant_is_called_moves_no_cursor(notif_: Shell, tenant: str) -> None:
    assert notif_("tenants", "set", tenant, "--name", "[red]Ann & Söhne[/red]").code == 0
    assert "[red]Ann & Söhne[/red]" in notif_("tenants", "list").out
    assert "name: must be" in notif_("tenants", "set", tenant, "--name", "\x1b[2J").err


# ---- jobs
def test_a_job_is_sent_and_explained(notif_: Shell, send: Send, sandbox_of_up: SandboxClient) -> None:
    job = send(kind="order.shipped", **SHIPPED)
    found = until(notif_, job, "delivered")
    keys = {"job_id", "queue", "consumer", "state", "waits_for", "until", "attempts", "history"}
    assert found.keys() == keys
    assert (found["job_id"], found["queue"], found["attempts"]) == (job, EMAIL, 1)
    assert [move["state"] for move in found["history"]] == ["ready", "pushed", "claimed", "delivered"]
    assert [mail["tags"]["job"] for mail in sandbox_of_up.mails()] == [job]
    words = notif_("explain", job).out
    assert words.startswith(f"{EMAIL}: delivered, 1 attempt\n")


def test_a_job_for_later_says_what_it_waits_for(notif_: Shell, send: Send) -> None:
    job = send("--in", "10m")
    found = explained(notif_, job)
    assert (found["state"], found["attempts"]) == ("scheduled", 0)
    ahead = datetime.fromisoformat(found["until"]) - datetime.now(UTC)
    assert timedelta(minutes=8) < ahead <= timedelta(minutes=10)
    assert "waits for its time until 20" in notif_("explain", job).out
    at = explained(notif_, send("--at", "2031-01-31T09:00:00+01:00"))
    assert at["until"] == "2031-01-31T08:00:00+00:00"


def test_a_job_is_taken_back_or_it_is_too_late(notif_: Shell, send: Send) -> None:
    job = send("--in", "1h")
    assert notif_("cancel", job) == Done(0, f"{EMAIL}: cancelled\n", "")
    assert explained(notif_, job)["state"] == "cancelled"
    done = notif_("cancel", job, "--json")
    assert (done.code, json.loads(done.out)) == (1, {EMAIL: False})
    assert done.err == "notif: too late: see `notif explain`\n"


def test_a_job_for_two_queues_is_explained_a_line_each(notif_: Shell, send: Send, sandbox_of_up: SandboxClient) -> None:
    job = send("--in", "1h", kind="order.placed", **SHIPPED)
    lines = notif_("explain", job, "--json").out.splitlines()
    assert sorted(json.loads(line)["queue"] for line in lines) == ["loyalty", EMAIL]
    assert "loyalty, read by loyalty-points: scheduled" in notif_("explain", job).out


def test_a_job_sent_twice_is_explained_by_its_first_end(
    notif_: Shell, send: Send, sandbox_of_up: SandboxClient
) -> None:
    job = send()
    until(notif_, job, "delivered")
    assert send("--job-id", job) == job
    eventually(lambda: "duplicate" in notif_("explain", job).out, what="the second one ends")
    assert explained(notif_, job)["state"] == "delivered"


@pytest.mark.parametrize("name", ["explain", "cancel"])
def test_a_job_nobody_knows(name: str, notif_: Shell) -> None:
    job = str(uuid.uuid4())
    done = notif_(name, job)
    assert done.code == 1
    assert done.err.startswith(f"notif: no job {job} is known here")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--kind", "order.shiped", "--data", "{}"],
            "kind: 'order.shiped' is not configured; did you mean 'order.shipped'?",
        ),
        (["--kind", "otp", "--data", "{}"], "data of 'otp': subject: Field required; from: Field required"),
        (["--kind", "otp", "--data", json.dumps(MAIL), "--channel", "sms"], "channel: kind 'otp' has no channel 'sms'"),
        (
            ["--kind", "otp", "--data", json.dumps(MAIL), "--job-id", str(uuid.uuid4())],
            "must be a UUID of version 7, not 4",
        ),
        (["--kind", "otp", "--data", json.dumps(MAIL), "--at", "2099-01-01T00:00Z"], "run_at: 2099-01-01"),
    ],
)
def test_what_can_not_be_published_is_refused(options: list[str], sentence: str, notif_: Shell, tenant: str) -> None:
    done = notif_("send", "--tenant", tenant, *options)
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_data_may_come_from_a_file_or_standard_input(up: Up, notif_: Shell, tenant: str, tmp_path: Path) -> None:
    file = tmp_path / "mail.json"
    file.write_text(json.dumps(MAIL))
    common = ("send", "--tenant", tenant, "--kind", "email.message", "--in", "1h", "--json")
    from_file = notif_(*common, "--data", f"@{file}")
    from_stdin = command(*common, "--data", "@-", env=bare(up.folder), stdin=json.dumps(MAIL))
    for done in (from_file, from_stdin):
        envelope = json.loads(done.out)
        assert envelope.keys() == {"job_id", "tenant_id", "correlation_id", "kind", "data"}
        assert envelope["data"] == MAIL


# ---- dead letters and halts
@pytest.fixture
def dead(notif_: Shell, send: Send, sandbox_of_up: SandboxClient) -> tuple[str, int]:
    """A job the provider refused for good, and its letter."""
    sandbox_of_up.faults([{"fault": "error", "status": 422, "name": "validation_error", "message": "\x1b[31mno"}])
    job = send()
    until(notif_, job, "dead")
    letters = json.loads(notif_("dead-letters", "list", "--json").out)
    return job, next(letter["id"] for letter in letters if letter["job_id"] == job)


def test_a_dead_letter_is_shown(notif_: Shell, dead: tuple[str, int], tenant: str) -> None:
    job, letter = dead
    found = next(x for x in json.loads(notif_("dead-letters", "list", "--json").out) if x["id"] == letter)
    keys = ["id", "job_id", "queue", "consumer", "cause", "outcome", "attempts", "last_error", "status"]
    assert list(found) == [*keys, "correlation_id", "tenant_id"]
    assert (found["job_id"], found["tenant_id"], found["queue"]) == (job, tenant, EMAIL)
    assert (found["outcome"], found["status"]) == ("failed", "pending_review")
    assert job in notif_("dead-letters", "list").out
    whole = notif_("dead-letters", "show", letter)
    assert "ann@example.test" in whole.out
    assert "\x1b" not in whole.out
    assert json.loads(notif_("dead-letters", "show", letter, "--json").out)["payload"] == MAIL
    assert f"a person: dead letter {letter}" in notif_("explain", job).out


def test_a_dead_letter_is_replayed_once(notif_: Shell, dead: tuple[str, int], sandbox_of_up: SandboxClient) -> None:
    job, letter = dead
    assert notif_("dead-letters", "replay", letter) == Done(0, f"{job}\n", "")
    until(notif_, job, "delivered")
    assert [mail["tags"]["job"] for mail in sandbox_of_up.mails()] == [job]
    again = notif_("dead-letters", "replay", letter, "--who", "ann")
    assert again.code == 1
    assert again.err.startswith("notif: it was replayed by ")


def test_a_dead_letter_is_discarded_with_a_reason(notif_: Shell, dead: tuple[str, int]) -> None:
    job, letter = dead
    assert notif_("dead-letters", "discard", letter, "--reason", "wrong address", "--who", "ann").code == 0
    found = json.loads(notif_("dead-letters", "show", letter, "--json").out)
    assert (found["status"], found["decided_by"], found["reason"]) == ("discarded", "ann", "wrong address")
    assert str(letter) in notif_("dead-letters", "list", "--status", "discarded").out
    assert explained(notif_, job)["state"] == "discarded"


def test_a_possible_duplicate_is_sent_only_if_somebody_accepts_it(
    notif_: Shell, dead: tuple[str, int], up: Up, sandbox_of_up: SandboxClient
) -> None:
    job, letter = dead
    with psycopg.connect(up.running.env["NOTIF_DATABASE_OWNER_URL"], autocommit=True) as connection:
        connection.execute(  # as if a call's outcome had stayed unknown two days ago: Resend keeps keys for one
            "UPDATE core.dead_letters SET snapshot = snapshot || jsonb_build_object('ambiguous', true, 'key_since', "
            "now() - interval '2 days') WHERE id = %s",
            (letter,),
        )
    refused = notif_("dead-letters", "replay", letter)
    assert refused.code == 1
    assert "replay with --accept-possible-duplicate" in refused.err
    assert notif_("dead-letters", "replay", letter, "--accept-possible-duplicate").code == 0
    until(notif_, job, "delivered")


@pytest.mark.parametrize(("raw", "shown"), [(b"\x1b[2J{", "\\x1b[2J{"), (b"\xff\x00", "ff00")])
def test_poison_is_shown_as_what_can_be_shown(raw: bytes, shown: str, notif_: Shell, up: Up) -> None:
    with psycopg.connect(up.running.env["NOTIF_DATABASE_OWNER_URL"], autocommit=True) as connection:
        connection.execute(
            "SELECT core.bury_poison(%s, %s, %s, NULL, NULL, %s, 'is no reference')", (EMAIL, EMAIL, raw.hex(), raw)
        )
        row = connection.execute("SELECT id FROM core.dead_letters WHERE message_id = %s", (raw.hex(),)).fetchone()
    assert row
    assert f"raw             {shown}\n" in notif_("dead-letters", "show", row[0]).out
    assert json.loads(notif_("dead-letters", "show", row[0], "--json").out)["raw"] == shown
    assert "nothing to put back" in notif_("dead-letters", "replay", row[0]).err
    assert notif_("dead-letters", "discard", row[0], "--reason", "seen").code == 0


def test_a_letter_nobody_knows(notif_: Shell) -> None:
    for name in (["show", "999999"], ["replay", "999999"], ["discard", "999999", "--reason", "x"]):
        done = notif_("dead-letters", *name)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("notif: no dead letter 999999")


def test_a_halted_sender_domain_is_resumed(notif_: Shell, send: Send, sandbox_of_up: SandboxClient) -> None:
    sandbox_of_up.limits(unverified=["mail.acme.test"])
    job = send()
    assert until(notif_, job, "halted")["waits_for"] == "a person: notif resume"
    wrong = notif_("resume", "resend")
    assert wrong.code == 1
    assert wrong.err == "notif: resend is neither halted nor closed; what is: resend --domain mail.acme.test\n"
    sandbox_of_up.limits(unverified=[])
    assert notif_("resume", "resend", "--domain", "mail.acme.test").code == 0
    until(notif_, job, "delivered")


def test_a_provider_nobody_knows(notif_: Shell) -> None:
    done = notif_("resume", "resent")
    assert (done.code, done.err) == (1, "notif: provider: 'resent' is not configured; did you mean 'resend'?\n")


# ---- processes and the database
def test_ps_lists_every_role(notif_: Shell, up: Up) -> None:
    found = json.loads(notif_("ps", "--json").out)
    assert all(list(each) == ["role", "lane", "pid", "host", "leader", "since"] for each in found)
    lanes = {each["lane"] for each in found if each["role"] == "worker"}
    assert lanes == {EMAIL, "notif.email.marketing", "loyalty"}
    assert {each["role"] for each in found} == {"worker", "relay", "maintenance"}
    assert {(each["host"], each["leader"]) for each in found} == {(socket.gethostname(), None)}


@pytest.mark.parametrize(
    ("role", "code"),
    [("relay", 0), ("worker", 0), (f"worker:{EMAIL}", 0), ("worker:notif.sms.marketing", 1), ("web", 1)],
)
def test_a_health_check_asks_for_one_role(role: str, code: int, notif_: Shell) -> None:
    done = notif_("ps", "--check", role)
    assert done.code == code
    assert bool(done.err) == bool(code)


def test_env_makes_a_shell_a_product_s(up: Up, notif_: Shell) -> None:
    printed = notif_("env").out
    script = f"{printed}\nexec env"
    shown = subprocess.run(
        ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True
    )
    variables = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert variables.items() >= up.running.env.items()
    assert "notif_publisher" in variables["NOTIF_DATABASE_URL"]
    assert json.loads(notif_("env", "--json").out) == up.running.env
    assert "notif_worker" in json.loads(notif_("env", "--worker", "--json").out)["NOTIF_DATABASE_URL"]


def test_one_more_worker_joins_from_a_second_shell(up: Up, notif_: Shell) -> None:
    worker = subprocess.Popen(
        [*NOTIF, "worker", EMAIL], env=bare(up.folder, RESEND_API_KEY="re_real"), cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        eventually(
            lambda: worker.pid in [each["pid"] for each in json.loads(notif_("ps", "--json").out)],
            what="a second worker",
        )
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


def test_urls_of_the_environment_win(notif_: Shell) -> None:
    done = notif_("ps", NOTIF_DATABASE_MAINTENANCE_URL="postgresql://x:y@127.0.0.1:1/none")
    assert done.code == 1
    assert "Postgres does not answer" in done.err


def test_an_upgraded_database_has_nothing_to_do(notif_: Shell) -> None:
    done = notif_("db", "upgrade")
    assert done.code == 0
    assert done.out.endswith("nothing to do\n")
