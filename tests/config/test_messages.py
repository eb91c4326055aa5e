"""E-mail messages: addresses, headers, tags; nothing injected, nothing personal in an error."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from notif.envelope import explain
from notif.messages import EmailMessage, address, bare, domain_of

MAIL: dict[str, Any] = {"from": "Acme <hello@acme.test>", "to": "jo@b.test", "subject": "Hi", "text": "hello"}


def mail(**changes: Any) -> EmailMessage:
    return EmailMessage.model_validate({**MAIL, **changes})


def refused(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        mail(**changes)
    return explain(caught.value)


def test_a_message() -> None:
    message = mail(cc=["C <c@b.test>"], bcc="d@b.test", reply_to="Help <help@acme.test>", headers={"X-Order": "1"})
    assert message.sender == "Acme <hello@acme.test>"
    assert message.recipients == ("jo@b.test", "C <c@b.test>", "d@b.test")
    assert message.reply_to == ("Help <help@acme.test>",)
    assert message.model_dump(by_alias=True)["from"] == "Acme <hello@acme.test>"
    with pytest.raises(ValidationError):
        message.subject = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "kept", "domain"),
    [
        ("a@b.test", "a@b.test", "b.test"),
        ("A.B+c@Example.COM", "A.B+c@example.com", "example.com"),
        ("  Jo  <a@B.test> ", "Jo <a@b.test>", "b.test"),
        ("<a@b.test>", "a@b.test", "b.test"),
        ("Jürgen Müller <a@b.test>", "Jürgen Müller <a@b.test>", "b.test"),
        ("Acme, Inc. <a@b.test>", '"Acme, Inc." <a@b.test>', "b.test"),
        ('"Acme, Inc." <a@b.test>', '"Acme, Inc." <a@b.test>', "b.test"),
        ('"say \\"hi\\"" <a@b.test>', '"say \\"hi\\"" <a@b.test>', "b.test"),
        ('"Jo" <a@b.test>', "Jo <a@b.test>", "b.test"),
        ('"jo@b.test" <a@b.test>', '"jo@b.test" <a@b.test>', "b.test"),
        ('"" <a@b.test>', "a@b.test", "b.test"),
        ("Jo <a@exämple.de>", "Jo <a@xn--exmple-cua.de>", "xn--exmple-cua.de"),
        ("a@例え.test", "a@xn--r8jz45g.test", "xn--r8jz45g.test"),
    ],
)
def test_addresses_in_normal_form(written: str, kept: str, domain: str) -> None:
    assert address(written) == kept
    assert address(kept) == kept
    assert domain_of(kept) == domain
    assert "<" not in bare(kept)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("", "is no e-mail address"),
        ("jo", "is no e-mail address: An email address must have an @-sign"),
        ("jo@localhost", "is no e-mail address: The part after the @-sign is not valid. It should have a period"),
        ("jo@b.invalid", "is no e-mail address: The part after the @-sign is a special-use"),
        ("jö@b.test", "is no e-mail address: Internationalized characters before the @-sign"),
        ("a@b.test, c@d.test", "is no e-mail address"),
        ("A <a@b.test>, C <c@d.test>", "holds more than one address; write a list, or the name in quotes"),
        ("a@b.test, C <c@d.test>", "holds more than one address; write a list, or the name in quotes"),
        ("Jo <a@b.test> Jo", "is no e-mail address"),
        ("a@b.test\r\nBcc: c@d.test", "holds the control character U+000D; write it on one line"),
        ("Jo\nBcc: c@d.test <a@b.test>", "holds the control character U+000A; write it on one line"),
        ("Jo\u2028 <a@b.test>", "holds the control character U+2028; write it on one line"),
        ("\u202emoc.knab <a@b.test>", "holds the control character U+202E; write it on one line"),
        (f"{'x' * 257} <a@b.test>", "has a display name of more than 256 characters"),
    ],
)
def test_no_address(written: str, sentence: str) -> None:
    for field in ("from", "to", "cc", "bcc", "reply_to"):
        assert refused(**{field: written}).startswith(f"{field}{'' if field == 'from' else '.0'}: {sentence}")


@given(st.text(max_size=30), st.sampled_from(["{0} <a@b.test>", '"{0}" <a@b.test>', "{0}", "a@{0}.test", "{0}@b.test"]))
def test_whatever_is_written_an_address_is_one_line_and_stays_as_it_is(text: str, form: str) -> None:
    try:
        kept = address(form.format(text))
    except PydanticCustomError:
        assume(False)
    assert len(kept.splitlines()) == 1
    assert address(kept) == kept
    assert bare(kept).isascii()
    assert bare(kept).count("@") == 1


def test_numbers_of_recipients() -> None:
    assert len(mail(to=[f"u{n}@b.test" for n in range(50)]).to) == 50
    assert refused(to=[f"u{n}@b.test" for n in range(51)]).startswith("to: Value should have at most 50 items")
    assert refused(to=[]).startswith("to: Value should have at least 1 item")
    assert refused(bcc=[f"u{n}@b.test" for n in range(51)]).startswith("bcc: Value should have at most 50 items")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("Bcc", "x@b.test", "Bcc is set by a field of its own, by the provider or by notif"),
        ("reply-TO", "x@b.test", "reply-TO is set by a field of its own, by the provider or by notif"),
        ("Content-Type", "text/plain", "Content-Type is set by a field of its own"),
        ("X-Notif-Redirected-For", "x", "X-Notif-Redirected-For is set by a field of its own"),
        ("X-Order: 1\r\nBcc", "x", "a header's name is 1 to 76 printable ASCII characters"),
        ("X Order", "x", "a header's name is 1 to 76 printable ASCII characters"),
        ("X-Örder", "x", "a header's name is 1 to 76 printable ASCII characters"),
        ("", "x", "a header's name is 1 to 76 printable ASCII characters"),
        ("X-Order", "1\r\nBcc: x@b.test", "holds the control character U+000D; write it on one line"),
    ],
)
def test_headers_that_are_refused(name: str, value: str, sentence: str) -> None:
    assert refused(headers={name: value}).startswith(f"headers: {sentence}")


def test_headers() -> None:
    headers = {"List-Unsubscribe": "<https://acme.test/u/1>", "In-Reply-To": "<1@acme.test>", "X-Note": "größer"}
    assert mail(headers=headers).headers == headers
    assert refused(headers={"x-a": "1", "X-A": "2"}) == "headers: X-A is there twice, in different cases"
    assert refused(headers={"X-A": "1", "x-a": "2"}) == "headers: x-a is there twice, in different cases"


@pytest.mark.parametrize(
    "name",
    [
        "From",
        "To",
        "Cc",
        "Subject",
        "Sender",
        "Return-Path",
        "Date",
        "Message-ID",
        "MIME-Version",
        "Received",
        "DKIM-Signature",
        "Content-ID",
        "Authentication-Results",
        "Idempotency-Key",
        "Resent-To",
        "ARC-Seal",
        "X-Resend-Id",
    ],
)
def test_headers_that_are_not_the_publishers(name: str) -> None:
    assert refused(headers={name.lower(): "x"}).startswith(f"headers: {name.lower()} is set by a field of its own")


def test_tags() -> None:
    assert len(mail(tags={f"t{n}": "v" for n in range(73)}).tags) == 73
    assert refused(tags={f"t{n}": "v" for n in range(74)}).startswith("tags: Dictionary should have at most 73 items")
    assert refused(tags={"job": "1"}) == "tags: the tag 'job' is notif's own"
    assert refused(tags={"n": "1"}) == "tags: the tag 'n' is notif's own"
    for wrong in ("a.b", "a:b", "ä", "", "x" * 257, "a\n"):
        assert "tags." in refused(tags={"t": wrong})
        assert "tags." in refused(tags={wrong: "v"})


def test_subject_and_body() -> None:
    assert refused(subject="Hi\r\nBcc: x@b.test").startswith("subject: holds the control character U+000D")
    assert refused(subject="").startswith("subject: String should have at least 1 character")
    assert refused(text=None) == "value: html or text: at least one must hold something"
    assert refused(text="", html="") == "value: html or text: at least one must hold something"
    assert mail(text=None, html="<p>").html == "<p>"


def test_unknown_fields_are_refused() -> None:
    assert refused(attachments=[]) == "attachments: Extra inputs are not permitted"
    assert refused(sender="a@b.test") == "sender: Extra inputs are not permitted"


def test_an_error_does_not_tell_who_it_was() -> None:
    assert "juliet" not in refused(to="juliet..capulet@verona.test")
    assert "juliet" not in refused(to="juliet capulet verona")
