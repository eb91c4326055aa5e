"""What every command says of itself, and of what is wrong, without any service."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.shells import NOTIF, Shell
from tests.kit import ROOT

COMMANDS = [
    *("up", "ps", "env", "worker", "relay", "maintenance", "sandbox", "send", "cancel", "explain", "tenants"),
    *("dead-letters", "resume", "db", "config", "version", "tenants add", "tenants list", "tenants set"),
    *("tenants deactivate", "dead-letters list", "dead-letters show", "dead-letters replay", "dead-letters discard"),
    *("db upgrade", "db roles", "config check", "config show"),
]
ID = "01a22d7c-ab66-7507-80d1-749f5f194313"
SEND = ("send", "--tenant", ID, "--kind", "order.shipped")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell(*name.split(), "--help", env=nowhere)
    assert (done.code, done.err) == (0, "")
    assert f"Usage: notif {name}" in done.out


def test_the_list_names_every_command(shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell("--help", env=nowhere)
    assert [name for name in COMMANDS if " " not in name and f" {name} " not in done.out] == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["sned"], 2, "No such command 'sned'. Did you mean 'send'?"),
        (["send", "--kidn", "x"], 2, "No such option: --kidn"),
        (["cancel"], 2, "Missing argument 'JOB'."),
        (["cancel", "7"], 2, "Invalid value for 'JOB': '7' is no UUID, like 0192d3c4-0000-7000-8000-000000000001\n"),
        (
            ["send", "--tenant", "Acme", "--kind", "x", "--data", "{}"],
            2,
            "Invalid value for '--tenant': 'Acme' is no UUID, as `notif tenants list` shows them\n",
        ),
        ([*SEND, "--data", "{}", "--job-id", "1"], 2, "Invalid value for '--job-id': '1' is no UUID, like "),
        (["tenants", "set", "Acme", "--name", "x"], 2, "Invalid value for 'ID': 'Acme' is no UUID, as `notif tenants"),
        (["tenants", "add", "--name", "x", "--id", "1"], 2, "Invalid value for '--id': '1' is no UUID, like "),
        (["tenants", "add", "--name", "x", "--cell", "1"], 2, "Invalid value for '--cell': '1' is no UUID, like "),
        ([*SEND, "--data", "{"], 2, "Invalid value for --data: is no JSON: "),
        ([*SEND, "--data", "[1]"], 2, "Invalid value for --data: must be a JSON object"),
        ([*SEND, "--data", "@/no/such"], 2, "Invalid value for --data: /no/such can't be read: No such file"),
        ([*SEND, "--data", "{}", "--in", "5"], 2, "Invalid value for --in: '5' is no duration"),
        ([*SEND, "--data", "{}", "--at", "soon"], 2, "Invalid value for --at: 'soon' is no time; write it like 2027"),
        ([*SEND, "--data", "{}", "--at", "2027-01-31T09:00"], 2, "has no time zone; write 2027-01-31T09:00Z for UTC"),
        ([*SEND, "--data", "{}", "--at", "2027-01-31T09:00Z", "--in", "5m"], 2, "--at is given too"),
        (
            [*SEND, "--data", "{}"],
            2,
            "NOTIF_DATABASE_URL: not set, and publishing needs it; for one machine, `notif up`",
        ),
        (["ps"], 2, "NOTIF_DATABASE_MAINTENANCE_URL: not set"),
        (["worker", "transactional"], 2, "NOTIF_DATABASE_URL: not set, and a worker needs it"),
        (["worker", "transactionl"], 2, "'transactionl' is no lane and no queue; did you mean 'transactional'?"),
        (["worker", "marketing", "--channel", "sms"], 2, "queue: none is left of marketing"),
        (["relay"], 2, "NOTIF_DATABASE_MAINTENANCE_URL: not set"),
        (["env"], 1, "no `notif up` runs on "),
        (["tenants", "set", ID], 2, "name what to change"),
        (["dead-letters", "list", "--status", "pending"], 2, "Invalid value for '--status'"),
        (["dead-letters", "discard", "1"], 2, "Missing option '--reason'."),
        (["dead-letters", "discard", "1", "--reason", " "], 2, "Invalid value for --reason: is empty"),
        (["db", "upgrade"], 2, "NOTIF_DATABASE_OWNER_URL: not set, and a migration needs it"),
        (["db", "roles"], 2, "Invalid value for --admin-url: is missing"),
        (["config", "check", "/no/such.yaml"], 2, "/no/such.yaml: no such file"),
        (["sandbox", "--port", "99999"], 2, "Invalid value for '--port'"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_code(
    arguments: list[str], code: int, sentence: str, shell: Shell, nowhere: dict[str, str]
) -> None:
    done = shell(*arguments, env=nowhere)
    assert sentence in done.err
    assert done.err.startswith("notif: ")
    assert done.err.count("\n") == 1
    assert (done.code, done.out) == (code, "")


@pytest.mark.parametrize("name", ["", "tenants", "dead-letters", "db", "config"])
def test_nothing_asked_shows_what_there_is(name: str, shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell(*name.split(), env=nowhere)
    assert (done.code, done.err) == (2, "")
    assert f"Usage: notif {name}" in done.out
    assert done.out == shell(*name.split(), "--help", env=nowhere).out


def test_a_service_that_does_not_answer_is_one_line(shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell("ps", env={**nowhere, "NOTIF_DATABASE_MAINTENANCE_URL": "postgresql://x:y@127.0.0.1:1/none"})
    assert done.code == 1
    assert done.err.startswith("notif: Postgres does not answer: ")
    assert done.err.count("\n") == 1


def test_debug_shows_where_and_may_stand_anywhere(shell: Shell, nowhere: dict[str, str]) -> None:
    quiet, loud = shell("env", env=nowhere), shell("env", "--debug", env=nowhere)
    assert "Traceback" not in quiet.err
    assert "Traceback" in loud.err
    assert loud.err.endswith(quiet.err)
    assert loud.code == quiet.code == 1


def test_a_misspelt_variable_is_named(shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell("version", env=nowhere)
    assert (done.code, done.err) == (0, "")
    done = shell("ps", env={**nowhere, "NOTIF_DATABSE_URL": "x"})
    assert done.code == 2
    assert done.err == "notif: NOTIF_DATABSE_URL: no such variable; did you mean 'NOTIF_DATABASE_URL'?\n"


def test_every_problem_of_a_configuration_is_a_line(shell: Shell, nowhere: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "notif.yaml"
    file.write_text("channels: {email: {provider: resent}}\nprovders: {resend: {}}\nworkr: {}\n")
    done = shell("config", "check", file, env=nowhere)
    assert done.code == 2
    assert len(done.err.splitlines()) == 2
    assert all(line.startswith(f"notif: {file}: ") for line in done.err.splitlines())


TWO_STAGES = """
providers: {resend: {deadline: 16s}}
channels: {email: {provider: resend, from: hello@acme.test}}
kinds:
  a.one: {lane: transactional, channels: [emial]}
  a.two: {lane: transactional, channels: [email], model: notif.examples.OrderShiped, template: none}
  a.three: {lane: transactional, channels: [email], model: notif.examples.OrderShipped, template: none, to: email}
"""


def test_what_is_wrong_in_the_file_and_in_what_it_names_is_said_at_once(
    shell: Shell, nowhere: dict[str, str], tmp_path: Path
) -> None:
    """What doesn't go together, and models and templates: each line names the file, a kind that is wrong is named once."""
    file = tmp_path / "notif.yaml"
    file.write_text(TWO_STAGES)
    done = shell("config", "check", file, env={**nowhere, "NOTIF_APP": "no.such:module"})
    assert (done.code, done.out) == (2, "")
    of_the_file = done.err.splitlines()
    assert [line.split(":")[:3] for line in of_the_file] == [
        ["notif", f" {file}", f" {field}"]
        for field in ("worker.lease", "kinds.a.one.channels", "kinds.a.two.model", "kinds.a.three.template")
    ]
    both = shell("config", "check", file, env={**nowhere, "NOTIF_REDIS_URL": "x", "NOTIF_TYPO": "x"})
    assert [line.split(":")[1] for line in both.err.splitlines()[:2]] == [" NOTIF_TYPO", " NOTIF_REDIS_URL"]
    assert both.err.splitlines()[2:] == of_the_file
    alone = shell("config", "check", env={**nowhere, "NOTIF_REDIS_URL": "x"})
    assert (alone.code, alone.err) == (2, "notif: NOTIF_REDIS_URL: must begin with redis:// or rediss://\n")


def test_config_check_counts_what_it_found(shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell("config", "check", env=nowhere)
    assert done.code == 0
    assert "nothing is wrong (7 kinds, 3 queues)" in done.out
    without_app = {name: value for name, value in nowhere.items() if name != "NOTIF_APP"}
    assert "no consumer is registered by NOTIF_APP for: loyalty" in shell("config", "check", env=without_app).out


def test_config_show_never_shows_a_secret(shell: Shell, nowhere: dict[str, str]) -> None:
    secrets = {"RESEND_API_KEY": "re_s3cret", "NOTIF_REDIS_URL": "redis://:s3cret@127.0.0.1/0"}
    for form in ([], ["--json"]):
        done = shell("config", "show", *form, env={**nowhere, **secrets})
        assert done.code == 0
        assert "s3cret" not in done.out
        assert "order.shipped" in done.out


def test_roles_are_printed_for_those_who_run_them_by_hand(shell: Shell, nowhere: dict[str, str]) -> None:
    done = shell("db", "roles", "--print", "--database", "our data", env=nowhere)
    assert done.code == 0
    assert "CREATE ROLE notif_publisher LOGIN NOBYPASSRLS" in done.out
    assert 'GRANT CREATE ON DATABASE "our data" TO notif_owner;' in done.out


def test_a_reader_that_goes_away_is_no_error(nowhere: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [*NOTIF, "config", "show"],
            env=nowhere,
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
            cwd=ROOT,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_without_a_terminal_nothing_is_coloured(shell: Shell, nowhere: dict[str, str]) -> None:
    assert "\x1b" not in shell("config", "--help", env=nowhere).out
