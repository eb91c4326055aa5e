"""Adds the books: every job that was published against what there is to see. Knows nothing of notif but its promises."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.evidence import Evidence
from chaos.journal import Published

CREDITED = "loyalty"
"""The queue whose consumer writes to the database; all others send mail."""
SILENT = frozenset({"suppressed", "expired", "cancelled"})
"""Ends that assert that nothing was sent."""


@dataclass(frozen=True)
class Wrong:
    """One thing that must not be. `what`: lost, doubled, stuck, or wrong."""

    what: str
    job: str
    queue: str
    detail: str

    @property
    def text(self) -> str:
        return ": ".join(filter(None, (self.what, self.job, self.queue, self.detail)))


@dataclass(frozen=True)
class Books:
    """Counted by job and queue."""

    jobs: int = 0
    rows: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    """Of dead letters."""
    replays: int = 0
    wrong: list[Wrong] = field(default_factory=list)

    def count(self, what: str) -> int:
        return sum(each.what == what for each in self.wrong)


def check(published: Sequence[Published], seen: Evidence) -> Books:
    """Each job in exactly one end state on each of its queues, done once if it is said to be done, else not at all."""
    wrong: list[Wrong] = []
    ends: Counter[str] = Counter()
    found = _ends(seen)
    waiting = {(row.job, row.queue): row.state for row in seen.waiting}
    known = set()
    for job in published:
        for queue in job.queues:
            known.add((job.job, queue))
            own = found.get((job.job, queue), [])
            state = waiting.get((job.job, queue))
            ends.update(own)
            problems = [
                *_of_ends(job, own, state),
                *_of_effects(job.job, queue, own, seen),
                *_of_cancel(job, queue, own),
            ]
            wrong += [Wrong(what, job.job, queue, detail) for what, detail in problems]
    strangers = {*found, *waiting, *((job, "") for job in (*seen.arrived, *seen.credited))}
    for name, queue in sorted(strangers):
        if (name, queue) not in known and not (queue == "" and any(name == job for job, _ in known)):
            wrong.append(Wrong("wrong", name, queue, "nobody published it"))
    for key, count in sorted(seen.on_redis.items()):
        wrong.append(Wrong("stuck", "", key, f"{count} entries are left on Redis"))
    wrong += [Wrong("wrong", "", log, "an address of a person is in the log") for log in seen.leaks]
    wrong += [Wrong("wrong", "", "", f"{count} times {text}") for text, count in seen.surprises.items()]
    causes = Counter(letter.cause for letter in seen.letters)
    return Books(len(published), len(known), dict(ends), dict(causes), seen.replays, wrong)


def _ends(seen: Evidence) -> dict[tuple[str, str], list[str]]:
    """Verdicts and letters by job and queue. Duplicate is no end of its own: it says that there is another."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for end in seen.ends:
        if end.verdict != "duplicate":
            found[end.job, end.queue].append(end.verdict)
    for letter in seen.letters:
        found[letter.job or "no job", letter.queue].append(
            f"{'dead' if letter.status == 'pending_review' else letter.status}, {letter.outcome}"
        )
    return found


def _of_ends(job: Published, own: Sequence[str], state: str | None) -> list[tuple[str, str]]:
    if state is not None:
        return [("stuck", f"it is in the outbox as {state}{f', and {own}' if own else ''}")]
    if len(own) > 1:
        return [("wrong", f"it ended more than once: {own}")]
    if not own and job.taken:
        return [("lost", "it was published, and is nowhere")]
    return []


def _of_effects(job: str, queue: str, own: Sequence[str], seen: Evidence) -> list[tuple[str, str]]:
    times = (seen.credited if queue == CREDITED else seen.arrived).get(job, 0)
    done = "credited" if queue == CREDITED else "arrived"
    problems = []
    if times > 1:
        problems.append(("doubled", f"{done} {times} times"))
    if "delivered" in own and times == 0:
        problems.append(("lost", f"it is said to be delivered, and was not {done}"))
    certain = [end for end in own if end in SILENT or end.endswith("failed")]
    if times and certain:
        problems.append(("wrong", f"{done}, although it ended as {certain}"))
    if times and queue == CREDITED and "delivered" not in own:
        problems.append(("wrong", f"credited without its fence: {list(own)}"))
    return problems


def _of_cancel(job: Published, queue: str, own: Sequence[str]) -> list[tuple[str, str]]:
    answer = job.cancelled.get(queue)
    if answer is True and list(own) != ["cancelled"]:
        return [("wrong", f"cancel said yes, and it ended as {list(own)}")]
    if answer is False and "cancelled" in own:
        return [("wrong", "cancel said no, and it ended as cancelled")]
    return []
