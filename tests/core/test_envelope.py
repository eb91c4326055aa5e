"""Envelope, job ids, correlation, backoff: pure, so checked as properties."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from notif.envelope import Envelope, correlated, new_job_id, uuid7
from notif.errors import InvalidEnvelope, TooLarge
from notif.retry import RetryPolicy

TENANT = uuid.uuid4()


@given(milliseconds=st.integers(0, 2**48 - 1), bits=st.integers(0, 2**74 - 1))
def test_a_job_id_is_a_uuid7_of_its_time(milliseconds: int, bits: int) -> None:
    made = uuid7(milliseconds, bits)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == milliseconds


@given(st.lists(st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1)), unique=True, max_size=30))
def test_job_ids_differ_and_sort_by_time(seeds: list[tuple[int, int]]) -> None:
    made = {seed: uuid7(*seed) for seed in seeds}
    assert len(set(made.values())) == len(seeds)
    times = [seed[0] for seed in sorted(seeds, key=lambda seed: made[seed])]
    assert times == sorted(times)


@pytest.mark.parametrize("version", [1, 3, 4, 5])
def test_another_version_is_refused(version: int) -> None:
    ids = {1: uuid.uuid1(), 3: uuid.uuid3(TENANT, "x"), 4: uuid.uuid4(), 5: uuid.uuid5(TENANT, "x")}
    with pytest.raises(InvalidEnvelope, match=f"job_id.*version 7, not {version}"):
        Envelope.new(TENANT, "k", {}, job_id=ids[version])


def test_unknown_fields_are_refused() -> None:
    fields = {
        "job_id": new_job_id(),
        "tenant_id": TENANT,
        "correlation_id": "c",
        "kind": "k",
        "data": {},
        "priority": 1,
    }
    with pytest.raises(InvalidEnvelope, match="priority"):
        Envelope.parse(fields)


def test_an_envelope_is_frozen() -> None:
    envelope = Envelope.new(TENANT, "k", {})
    with pytest.raises(ValidationError, match="frozen"):
        envelope.kind = "other"  # type: ignore[misc]


def test_the_correlation_id_is_the_contexts() -> None:
    with correlated("request-7"):
        assert Envelope.new(TENANT, "k", {}).correlation_id == "request-7"
        assert Envelope.new(TENANT, "k", {}, correlation_id="own").correlation_id == "own"
        with correlated("inner"):
            assert Envelope.new(TENANT, "k", {}).correlation_id == "inner"
        assert Envelope.new(TENANT, "k", {}).correlation_id == "request-7"
    alone = Envelope.new(TENANT, "k", {})
    assert alone.correlation_id == str(alone.job_id)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), object(), {1, 2}, "nul \x00 character", "half \ud800 pair"]
)
def test_what_json_or_postgres_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidEnvelope, match="data"):
        Envelope.new(TENANT, "k", {"x": value}).encoded()
    with pytest.raises(InvalidEnvelope, match="data"):
        Envelope.new(TENANT, "k", {"deep": [{"x": value}]}).encoded()


def test_a_written_escape_is_no_nul() -> None:
    assert Envelope.new(TENANT, "k", {"x": r"\u0000"}).encoded()


def test_the_limit_is_of_bytes() -> None:
    envelope = Envelope.new(TENANT, "k", {"x": "ä" * 100})
    size = len(envelope.encoded())
    assert envelope.encoded(size)
    with pytest.raises(TooLarge, match=f"has {size:,} bytes, the limit is {size - 1:,}"):
        envelope.encoded(size - 1)


@given(attempt=st.integers(1, 10_000), chance=st.floats(0, 1, exclude_max=True))
def test_backoff_doubles_with_jitter_up_to_an_hour(attempt: int, chance: float) -> None:
    wait = RetryPolicy().wait(attempt, chance)
    assert wait == min(30 * 2 ** min(attempt - 1, 32) * (1 + chance), 3600)
    assert 30 <= wait <= 3600


def test_the_first_waits_are_those_of_the_design() -> None:
    policy = RetryPolicy()
    assert [policy.wait(n, 0.0) for n in (1, 2, 3, 4, 7, 8)] == [30, 60, 120, 240, 1920, 3600]
    assert policy.wait(4, 0.999) == pytest.approx(480, abs=1)
