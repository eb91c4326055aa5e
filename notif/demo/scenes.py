"""The scenes, in the order they are played. Each claims something, and the demo fails if it is not so."""

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from notif.demo.stage import Stage
from notif.envelope import new_job_id

EMAIL = "notif.email.transactional"
ORDER = {
    "email": "ann@example.test",
    "name": "Ann",
    "order_number": "A-1001",
    "carrier": "DHL",
    "tracking_url": "https://track.example.test/A-1001",
}


def first_light(stage: Stage) -> None:
    """One job, from publish to the provider."""
    stage.title("A job, from publish to the provider")
    job = stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER).job_id
    stage.tell(f"Published `order.shipped` for tenant Acme as job {job}.")
    mail = stage.wait("the mail arrives", lambda: stage.mails_of(job))[0]
    stage.wait("its worker settles it", lambda: stage.state(job) == "delivered")
    stage.tell(f"The sandbox, which stands in for Resend, got: {mail['subject']!r} to {mail['to'][0]}.")
    stage.tell("Its way, as `notif explain` tells it:")
    stage.way_of(job)
    stage.expect(len(stage.mails_of(job)) == 1, "It arrived once.")


def once_only(stage: Stage) -> None:
    """The same id again, and a transaction that is taken back."""
    stage.title("Published twice is sent once; rolled back is never sent")
    job = new_job_id()
    for _ in range(2):
        stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER, job_id=job)
    stage.wait("the mail arrives", lambda: stage.mails_of(job))
    stage.wait("it is settled", lambda: stage.state(job) == "delivered")
    stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER, job_id=job)
    stage.wait(
        "the third publish, after its end, ends as a duplicate",
        lambda: "duplicate" in {status.state for status in stage.notifier.status(job)},
    )
    stage.expect(len(stage.mails_of(job)) == 1, "Published three times under one id: one mail.")
    taken_back = _rolled_back(stage)
    after = stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER).job_id
    stage.wait("a job published later arrives", lambda: stage.mails_of(after))
    stage.expect(not stage.mails_of(taken_back), "Published in a transaction that was rolled back: no mail.")


class _TakenBack(Exception):
    """Ends a transaction as a product's own error would."""


def _rolled_back(stage: Stage) -> UUID:
    job = new_job_id()
    with suppress(_TakenBack), stage.app.maintenance.transaction() as session:
        stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER, job_id=job, session=session)
        raise _TakenBack
    return job


def killed_worker(stage: Stage) -> None:
    """kill -9 between the provider's effect and its answer."""
    stage.title("A worker is killed in the middle of its call")
    stage.sandbox.faults([{"fault": "hold"}])
    job = stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER).job_id
    stage.wait("the provider has the mail, its answer is held back", lambda: stage.sandbox.counts()["held"])
    pid = stage.machine.kill(f"worker:{EMAIL}")
    stage.sandbox.release()
    stage.tell(
        f"kill -9 to worker {pid}: nobody knows now that the mail was taken. Its lease runs out after 6 s (20 s in"
    )
    stage.tell(
        "production), then another process repeats the same bytes under the same key, and the provider knows them."
    )
    stage.wait("the job comes back and is settled", lambda: stage.state(job) == "delivered")
    stage.way_of(job)
    stage.expect(len(stage.mails_of(job)) == 1, "Two calls, one mail.")


def dead_letter(stage: Stage) -> None:
    """Refused for good: a dead letter, somebody is told, it is put back."""
    stage.title("What can't be delivered becomes a dead letter, and a person can put it back")
    stage.sandbox.faults([{"fault": "error", "status": 422, "name": "invalid_parameter"}])
    job = stage.notifier.send(tenant_id=stage.tenant, kind="order.shipped", data=ORDER).job_id
    stage.wait("the provider refuses it", lambda: stage.state(job) == "dead")
    (letter,) = (one for one in stage.app.letters.list() if one.job_id == job)
    stage.tell(f"Dead letter {letter.id}: {letter.cause}, outcome {letter.outcome}: {letter.last_error}")
    incident = stage.wait("somebody is told", stage.sandbox.incidents)[0]
    stage.tell(f"On call reads: {incident['name']!r}.")
    stage.app.letters.replay(letter.id, stage.app.terms(letter.queue).key_lifetime, accept=False, who="demo")
    stage.tell(f"`notif dead-letters replay {letter.id}` puts it back.")
    stage.wait("the mail arrives", lambda: stage.mails_of(job))
    stage.wait("the incident is resolved", lambda: all(one["resolved_at"] for one in stage.sandbox.incidents()))
    stage.expect(len(stage.mails_of(job)) == 1, "It arrived once, and the incident is resolved.")


def books(stage: Stage) -> None:
    """Whatever happened, the books add up."""
    stage.title("The books add up")
    ended = stage.app.maintenance.call("SELECT verdict, count(*)::int FROM core.delivery GROUP BY 1 ORDER BY 1")
    pending = stage.app.maintenance.call("SELECT count(*)::int FROM core.outbox")[0][0]
    stage.tell(", ".join(f"{count} {verdict}" for verdict, count in ended) + f", {pending} still in the outbox.")
    delivered = dict(tuple(row) for row in ended)["delivered"]
    stage.expect(
        delivered == len(stage.sandbox.mails()) and pending == 0, "As many mails arrived as jobs were delivered."
    )


SCENES: tuple[Callable[[Stage], None], ...] = (first_light, once_only, killed_worker, dead_letter, books)
