"""Jobs that died, and what a person does with their letters: shared by the tests of dead letters."""

import uuid
from datetime import timedelta
from typing import Any

from notif.ports import Letter
from tests.kit import Installation
from tests.spine.hands import Hands

DAY = timedelta(hours=24)
REFUSAL = {"fault": "error", "status": 422, "name": "invalid_parameter"}


def letter_of(notif: Installation, job: uuid.UUID) -> Letter:
    (number,) = notif.rows("SELECT id FROM core.dead_letters WHERE job_id = %s ORDER BY id DESC LIMIT 1", job)[0]
    return notif.app.letters.get(number)


def refused(notif: Installation, hands: Hands, **data: Any) -> tuple[uuid.UUID, Letter]:
    """A job that died of a certain answer."""
    job = notif.send(**data)
    notif.sandbox.faults([REFUSAL])
    assert hands.turn() == ["dead"]
    return job, letter_of(notif, job)


def unclear(notif: Installation, hands: Hands) -> tuple[uuid.UUID, Letter]:
    """A job that died after calls whose outcome nobody knows."""
    job = notif.send()
    notif.sandbox.faults([{"fault": "500"}, REFUSAL])
    assert hands.turn() == ["retrying"]
    notif.due()
    assert hands.turn() == ["dead"]
    return job, letter_of(notif, job)


def replay(
    notif: Installation, letter: Letter, key_lifetime: timedelta | None = DAY, *, accept: bool = False
) -> uuid.UUID:
    return notif.app.letters.replay(letter.id, key_lifetime, accept=accept, who="ann")


def calls(notif: Installation) -> list[tuple[str, str]]:
    """Key and body of every request there was."""
    return [(request["key"], request["body_hash"]) for request in notif.sandbox.requests()]


def aged(notif: Installation) -> None:
    """A day passes: no provider key of before lives any more."""
    query = "UPDATE core.dead_letters SET snapshot = jsonb_set(snapshot, '{key_since}', to_jsonb(now() - interval '24 hours'))"
    notif.rows(query)


def audit(notif: Installation) -> list[Any]:
    return notif.rows("SELECT who, action, target, detail FROM core.audit ORDER BY id")
