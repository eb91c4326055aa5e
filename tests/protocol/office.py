"""The provider of the schedules: what it does, what it says, and what of it the worker hears."""

from typing import TYPE_CHECKING

from notif.verdict import Accepted, Answer, Invalid, NeedsPerson, NotReached, Throttled, Unclear
from tests.protocol.model import KEY_LIFETIME, Violation
from tests.protocol.stage import Address

if TYPE_CHECKING:
    from tests.protocol.driver import RealModel
    from tests.protocol.hands import Worker

TROUBLE = (
    "429",
    "429",
    "no connection",
    "timeout, effect",
    "timeout, effect",
    "timeout",
    "timeout",
    "timeout, late effect",
    "permanent",
    "bad domain",
)
TIMEOUTS = ("timeout", "timeout, effect", "timeout, late effect")


class PostOffice:
    """Remembers keys for a day, as Resend does; with `keyed` False it takes every request for a new one."""

    def __init__(self, model: "RealModel") -> None:
        self._model, self._keyed = model, model.settings.keyed
        self._accepted: dict[str, tuple[bytes, float]] = {}
        self._bytes: dict[str, tuple[bytes, float]] = {}
        self.late: list[tuple[float, Address]] = []
        """Requests whose effect is still to come."""

    def answer(self, address: Address, request: bytes, key: str) -> str:
        """One request arrives."""
        model = self._model
        for memory in (self._accepted, self._bytes):
            for old in [k for k, (_, since) in memory.items() if model.now - since > KEY_LIFETIME]:
                del memory[old]
        if self._bytes.setdefault(key, (request, model.now))[0] != request:
            raise Violation("bytes under one key changed", key)
        answer = model.dice.pick(TROUBLE) if model.fault("provider", 0.5) else "accepted"
        if model.checker.quiet and model.outage:
            answer = model.dice.pick(("timeout", "timeout", "timeout, effect"))
        model.say(f"    answer on its way: {answer}")
        if self._keyed and key in self._accepted:
            return "accepted" if answer == "permanent" else answer
        if answer in ("accepted", "timeout, effect", "timeout, late effect"):
            self._accepted[key] = (request, model.now)
            if answer == "timeout, late effect":
                self.late.append((model.now + model.dice.pick((5, 20, 60)), address))
            else:
                model.checker.effect(address)
        return answer

    def spoken(self, worker: "Worker", answer: str, too_late: bool) -> Answer:
        """What the adapter makes of it; an answer that comes after the deadline isn't one."""
        if answer in TIMEOUTS or (too_late and answer != "no connection"):
            worker.used = not worker.probe  # a probe's failure is the provider's, not the job's
            return Unclear("timeout")
        match answer:
            case "429":
                seconds = self._model.dice.pick((1.0, 5.0, 60.0, 3_600.0))
                return Throttled(seconds, self._model.dice.pick((1.0, seconds)), "rate_limit_exceeded")
            case "bad domain":
                assert worker.ref
                row = self._model.checker.seen.rows.get(worker.address)
                return NeedsPerson(row.domain if row else "", "domain not verified")
            case "no connection":
                return NotReached("refused")
            case "permanent":
                return Invalid("validation_error", "never")
            case _:
                return Accepted("provider-id")

    def deliver_late(self) -> None:
        for due, address in [x for x in self.late if x[0] <= self._model.now]:
            self.late.remove((due, address))
            self._model.checker.effect(address)
