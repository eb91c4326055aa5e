"""Between Redis and a worker's consumers: whose middleware runs, and what another language may have put on a queue."""

import json

import psycopg
import pytest

from notif.adapters.dramatiq_worker import Lifecycle
from notif.envelope import MAX_BYTES, Envelope
from tests.database.test_sql_door import job, nested, publish
from tests.kit import Installation
from tests.spine.hands import Hands


def test_no_middleware_but_ours(hands: Hands) -> None:
    """Dramatiq's own retries, age limits and time limits would lose jobs behind our backs."""
    assert [type(each) for each in hands.worker.broker.middleware] == [Lifecycle]


def test_a_poisonous_envelope_beyond_the_limit_is_one_letter_with_all_of_it(notif: Installation, hands: Hands) -> None:
    """The limit is the Python door's; SQL takes what it is given."""
    data = {**notif.envelope().data, "email": "no address", "name": "Ä" * 150_000}
    assert len(json.dumps(data, ensure_ascii=False).encode()) > MAX_BYTES
    poison, good = job(notif, data=data), job(notif)
    with psycopg.connect(notif.servers.url("notif_publisher", notif.database), autocommit=True) as door:
        assert publish(door, poison, good) == 2
    refs = hands.push()
    assert sorted(hands.handle(ref) for ref in refs) == ["delivered", "poison"]
    assert [hands.handle(ref) for ref in refs] == ["gone", "gone"]
    notif.due()
    assert hands.turn() == []
    (letter,) = notif.rows("SELECT job_id::text, cause, status, outcome, attempts, raw FROM core.dead_letters")
    assert letter[:5] == (poison["job_id"], "poison", "pending_review", "failed", 0)
    assert json.loads(letter[5]) == {name: poison[name] for name in Envelope.model_fields}
    assert [mail["tags"]["job"] for mail in notif.mails()] == [good["job_id"]]


@pytest.mark.parametrize("levels", [200, 254])
def test_what_the_door_lets_through_every_worker_can_read(notif: Installation, hands: Hands, levels: int) -> None:
    """As deep as it may be: no surprise, which would leave the row to its timer for ever."""
    with psycopg.connect(notif.servers.url("notif_publisher", notif.database), autocommit=True) as door:
        assert publish(door, job(notif, data={**notif.envelope().data, "name": nested(levels - 1)})) == 1
    assert hands.turn() == ["poison"]
    (letter,) = notif.app.letters.list()
    assert notif.app.letters.get(letter.id).payload is not None
