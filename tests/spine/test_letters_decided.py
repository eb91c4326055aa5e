"""Closing a dead letter, poison, ids under two tenants, and the books: `core.discard` through the LettersPort."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from notif.adapters.postgres.ledger import PostgresPoison
from notif.errors import NotFound, Refused
from tests.kit import EMAIL, Installation, eventually
from tests.spine.hands import Hands
from tests.spine.letters import DAY, REFUSAL, audit, letter_of, refused, replay

# ---- one decision, once


def test_of_two_replays_at_once_one_wins(notif: Installation, hands: Hands) -> None:
    job, letter = refused(notif, hands)
    gate = threading.Barrier(4)

    def one(who: str) -> str:
        gate.wait(10)
        try:
            notif.app.letters.replay(letter.id, DAY, accept=False, who=who)
        except Refused as error:
            return str(error)
        return "won"

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(one, ("ann", "bob", "cid", "dan")))
    winner = notif.app.letters.get(letter.id).decided_by
    assert answers.count("won") == 1
    assert all(answer.startswith(f"it was replayed by {winner} at ") for answer in answers if answer != "won")
    assert hands.turn() == ["delivered"]
    assert len(notif.mails_of(job)) == 1
    assert audit(notif) == [(winner, "replay", f"dead letter {letter.id}", "")]


def test_a_replay_waits_for_a_discard_under_way_and_is_refused(notif: Installation, hands: Hands) -> None:
    _, letter = refused(notif, hands)
    waiting = "SELECT true FROM pg_stat_activity WHERE query LIKE 'SELECT core.replay%' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        with notif.app.maintenance.transaction() as other:
            other.exec_driver_sql("SELECT core.discard(%s, 'no', 'bob')", (letter.id,))
            answer = pool.submit(replay, notif, letter)
            eventually(lambda: notif.admin(waiting), what="the replay waits for the discard")
        with pytest.raises(Refused, match="it was discarded by bob at "):
            answer.result(10)
    assert notif.one("SELECT count(*) FROM core.outbox") == 0


def test_after_a_discard_a_replay_is_refused_with_who_and_when(notif: Installation, hands: Hands) -> None:
    _, letter = refused(notif, hands)
    notif.app.letters.discard(letter.id, reason="told her by telephone", who="bob")
    decided = notif.app.letters.get(letter.id)
    assert decided.decided_at
    with pytest.raises(Refused) as raised:
        replay(notif, letter, accept=True)
    assert str(raised.value).startswith("it was discarded by bob at ")
    assert decided.decided_at.strftime("%Y-%m-%d %H:%M:%S") in str(raised.value)
    with pytest.raises(Refused, match="discarded by bob"):
        notif.app.letters.discard(letter.id, reason="again", who="cid")
    assert notif.one("SELECT count(*) FROM core.outbox") == 0


def test_after_a_replay_a_discard_is_refused(notif: Installation, hands: Hands) -> None:
    job, letter = refused(notif, hands)
    replay(notif, letter)
    with pytest.raises(Refused, match="replayed by ann"):
        notif.app.letters.discard(letter.id, reason="too late", who="bob")
    assert notif.one("SELECT count(*) FROM core.processed_job WHERE job_id = %s", job) == 0


@pytest.mark.parametrize("letter", [0, 2**62])
def test_a_letter_there_is_not(notif: Installation, letter: int) -> None:
    with pytest.raises(NotFound, match=f"no dead letter {letter}"):
        notif.app.letters.get(letter)
    with pytest.raises(NotFound, match=f"no dead letter {letter}"):
        notif.app.letters.replay(letter, DAY, accept=True, who="ann")
    with pytest.raises(NotFound, match=f"no dead letter {letter}"):
        notif.app.letters.discard(letter, reason="?", who="ann")


# ---- discard


def test_discard_writes_the_fence(notif: Installation, hands: Hands) -> None:
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    notif.sandbox.faults([REFUSAL])
    hands.turn()
    letter = letter_of(notif, envelope.job_id)
    notif.app.letters.discard(letter.id, reason="wrong address", who="bob")
    fence = "SELECT consumer, tenant_id, expires_at - processed_at FROM core.processed_job WHERE job_id = %s"
    assert notif.rows(fence, envelope.job_id) == [(EMAIL, notif.tenant, timedelta(days=7))]
    notif.app.queue.publish(EMAIL, envelope)
    assert hands.turn() == ["duplicate"]
    assert notif.mails() == []
    decided = notif.app.letters.get(letter.id)
    assert (decided.status, decided.decided_by, decided.reason) == ("discarded", "bob", "wrong address")
    assert audit(notif) == [("bob", "discard", f"dead letter {letter.id}", "wrong address")]


def test_a_discard_meets_a_row_of_the_same_job_as_duplicate(notif: Installation, hands: Hands) -> None:
    """Pending letter until then, fence from then on: at no moment is there neither."""
    envelope = notif.envelope()
    notif.app.queue.publish(EMAIL, envelope)
    notif.sandbox.faults([REFUSAL])
    hands.turn()
    notif.app.queue.publish(EMAIL, envelope)
    (ref,) = hands.pick()
    notif.app.letters.discard(letter_of(notif, envelope.job_id).id, reason="no", who="bob")
    assert hands.handle(ref) == "duplicate"
    assert notif.mails() == []


def test_poison_without_a_job_can_only_be_discarded(notif: Installation, hands: Hands) -> None:
    PostgresPoison(hands.database).bury(EMAIL, EMAIL, "nonsense", None, b"\xff\x00", "no reference")
    (letter,) = notif.app.letters.list()
    assert (letter.job_id, letter.tenant_id, letter.cause) == (None, None, "poison")
    with pytest.raises(Refused, match="poison that names no job: nothing to put back"):
        replay(notif, letter, accept=True)
    notif.app.letters.discard(letter.id, reason="seen", who="bob")
    assert notif.app.letters.list() == []
    assert notif.one("SELECT count(*) FROM core.processed_job") == 0
    assert [one.status for one in notif.app.letters.list(status="discarded")] == ["discarded"]


def test_poison_with_its_row_can_be_put_back(notif: Installation, hands: Hands) -> None:
    """The bytes on Redis were spoilt, the row was not."""
    job = notif.send()
    (ref,) = hands.pick()
    assert PostgresPoison(hands.database).bury(EMAIL, EMAIL, "x", ref, b"\xff", "no reference")
    replay(notif, letter_of(notif, job))
    assert hands.turn() == ["delivered"]


# ---- an id under two tenants


def test_another_tenants_letter_of_the_same_id_stands_in_nobodys_way(notif: Installation, hands: Hands) -> None:
    mine = notif.envelope()
    notif.app.queue.publish(EMAIL, mine)
    notif.sandbox.faults([REFUSAL])
    hands.turn()
    own = letter_of(notif, mine.job_id)
    theirs = notif.envelope(tenant=notif.add_tenant("Other")).model_copy(update={"job_id": mine.job_id})
    notif.app.queue.publish(EMAIL, theirs)
    assert hands.turn() == ["dead"]
    foreign = letter_of(notif, mine.job_id)
    assert (foreign.cause, foreign.tenant_id) == ("foreign", theirs.tenant_id)
    replay(notif, own)
    assert hands.turn() == ["delivered"]
    assert [mail["to"] for mail in notif.mails_of(mine.job_id)] == [["ann@example.test"]]


def test_a_discarded_foreign_letter_leaves_the_owners_replay_open(notif: Installation, hands: Hands) -> None:
    mine = notif.envelope()
    notif.app.queue.publish(EMAIL, mine)
    notif.sandbox.faults([REFUSAL])
    hands.turn()
    own = letter_of(notif, mine.job_id)
    notif.app.queue.publish(
        EMAIL, notif.envelope(tenant=notif.add_tenant("Other")).model_copy(update={"job_id": mine.job_id})
    )
    assert hands.turn() == ["dead"]
    notif.app.letters.discard(letter_of(notif, mine.job_id).id, reason="a bug of theirs", who="bob")
    replay(notif, own)
    assert hands.turn() == ["delivered"]


# ---- the books


def test_the_books_add_up_through_replays_and_discards(notif: Installation, hands: Hands) -> None:
    jobs = notif.send_many(6)
    notif.sandbox.faults([{**REFUSAL, "times": 4}])
    assert sorted(hands.turn()) == ["dead"] * 4 + ["delivered"] * 2
    letters = notif.app.letters.list()
    for letter in letters[:2]:
        replay(notif, letter)
    notif.app.letters.discard(letters[2].id, reason="no", who="bob")
    waiting = notif.send()
    assert books(notif) == {"published": 7, "delivered": 2, "dead": 2, "in the outbox": 3}
    notif.sandbox.faults([REFUSAL])
    assert sorted(hands.turn()) == ["dead", "delivered", "delivered"]
    assert books(notif) == {"published": 7, "delivered": 4, "dead": 3, "in the outbox": 0}
    assert {mail["tags"]["job"] for mail in notif.mails()} <= {str(job) for job in (*jobs, waiting)}


def books(notif: Installation) -> dict[str, int]:
    """Every job is in exactly one place; a replayed letter is none, its job goes on."""
    count = "SELECT count(*) FROM core."
    found = {
        "published": notif.one(
            "SELECT count(DISTINCT job_id) FROM (SELECT job_id FROM core.outbox UNION ALL SELECT job_id FROM core.delivery "
            "UNION ALL SELECT job_id FROM core.dead_letters) j"
        ),
        "delivered": notif.one(count + "delivery WHERE verdict = 'delivered'"),
        "dead": notif.one(count + "dead_letters WHERE status <> 'replayed'"),
        "in the outbox": notif.one(count + "outbox"),
    }
    assert found["published"] == sum(found.values()) - found["published"]
    return found


def test_a_replay_keeps_request_payload_and_everything_else_of_the_row(notif: Installation, hands: Hands) -> None:
    """The letter holds the row as JSON: what comes back is what was buried, to the microsecond and the byte."""
    changed = (
        "'due_at', 'ready_at', 'generation', 'attempts', 'state', 'key_number', 'claimed_at', 'expires_at', 'history'"
    )
    job = notif.send(name="Ann “Ä” \\ \U0001f4e6")
    look = f"SELECT to_jsonb(o) - ARRAY[{changed}] FROM core.outbox o WHERE job_id = %s"
    (ref,) = hands.pick()
    claimed = hands.ledger.claim(ref, hands.terms(), bytes(range(256)))
    before = notif.one(look, job)
    notif.rows("SELECT core.bury(o, 'test', 'test') FROM core.outbox o")
    assert claimed
    replay(notif, letter_of(notif, job))
    assert notif.one(look, job) == before
    assert bytes(notif.one("SELECT request FROM core.outbox")) == bytes(range(256))


def test_a_letter_shows_what_a_person_needs(notif: Installation, hands: Hands) -> None:
    job, letter = refused(notif, hands)
    assert letter.payload == notif.envelope().data
    assert (letter.job_id, letter.queue, letter.consumer, letter.tenant_id) == (job, EMAIL, EMAIL, notif.tenant)
    assert (letter.cause, letter.correlation_id, letter.status) == ("invalid_parameter", str(job), "pending_review")
    assert letter.last_error.startswith("422 invalid_parameter: ")
    assert [move["state"] for move in letter.history] == ["ready", "pushed", "claimed", "dead"]
    (listed,) = notif.app.letters.list()
    assert (listed.payload, listed.raw, listed.id) == (None, None, letter.id)


def test_nobody_but_maintenance_decides(notif: Installation, hands: Hands) -> None:
    _, letter = refused(notif, hands)
    for role in ("notif_publisher", "notif_worker"):
        with psycopg.connect(notif.servers.url(role, notif.database), autocommit=True) as connection:
            for call in ("core.replay(%s, '1 day', true, 'x')", "core.discard(%s, 'x', 'x')"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT {call}".encode(), (letter.id,))
