"""What an e-mail is: the data of kind `email.message`, and the forms of addresses, headers and tags."""

import re
import unicodedata
from typing import Annotated, Any, Self

from email_validator import EmailNotValidError, validate_email
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

MAX_RECIPIENTS = 50
"""Of each of to, cc and bcc: Resend's limit for `to`."""
MAX_TAGS = 73
"""Resend takes 75; two are ours: `job` and `n`."""
OUR_TAGS = frozenset({"job", "n"})
REDIRECTED_FOR = "X-Notif-Redirected-For"
"""Header that names the recipients a message had before `delivery.redirect_to` replaced them."""

_NAMED = re.compile(r"(?P<name>.*?)\s*<(?P<address>[^<>]*)>", re.DOTALL)
_QUOTED_PAIR = re.compile(r"\\(.)")
_NEEDS_QUOTES = re.compile(r'[()<>@,:;\\".\[\]]')
_HEADER_NAME = re.compile(r"[!-9;-~]{1,76}")
_TAG = r"^[A-Za-z0-9_-]{1,256}$"
# Fields of their own, or written by the provider: a second one makes two mail programs show two different mails.
_TAKEN_HEADERS = re.compile(
    r"(from|to|cc|bcc|reply-to|subject|sender|return-path|date|message-id|mime-version|received|dkim-signature"
    r"|authentication-results|idempotency-key|content-.*|resent-.*|arc-.*|x-resend-.*|x-notif-.*)",
    re.IGNORECASE,
)
# Bidirectional overrides let a name read as another address.
_OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def wrong(text: str) -> PydanticCustomError:
    """For validators: pydantic reports `text` as it is. It never holds the value, which may be personal."""
    return PydanticCustomError("wrong", "{text}", {"text": text})


def one_line(text: str) -> str:
    """Refuses control characters (CR and LF inject headers), line separators and bidirectional overrides."""
    for character in text:
        if unicodedata.category(character) in {"Cc", "Zl", "Zp"} or character in _OVERRIDES:
            raise wrong(f"holds the control character U+{ord(character):04X}; write it on one line")
    return text


def address(text: str) -> str:
    """`a@b.c` or `Name <a@b.c>` in normal form: the domain in lower-case ASCII, the name quoted where it must be.

    No DNS is asked. `.test` domains pass, for sandboxes; the parts before the @ are ASCII, as Resend wants them.
    """
    one_line(text)
    match = _NAMED.fullmatch(text.strip())
    name, bare = (match["name"], match["address"]) if match else ("", text.strip())
    try:
        checked = validate_email(bare.strip(), check_deliverability=False, test_environment=True, allow_smtputf8=False)
    except EmailNotValidError as error:
        raise wrong(f"is no e-mail address: {error}") from None
    plain = f"{checked.local_part}@{checked.ascii_domain}"
    phrase = _phrase(name)
    return f"{phrase} <{plain}>" if phrase else plain


def _phrase(name: str) -> str:
    """A display name as RFC 5322 wants it, except that it stays UTF-8: the provider encodes it."""
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = _QUOTED_PAIR.sub(r"\1", name[1:-1]).strip()
    elif re.search("[<>@]", name):  # `A <a@b.c>, C <c@d.e>` would lose A
        raise wrong("holds more than one address; write a list, or the name in quotes")
    if len(name) > 256:
        raise wrong("has a display name of more than 256 characters")
    if not _NEEDS_QUOTES.search(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def bare(text: str) -> str:
    """The address alone, without the display name."""
    match = _NAMED.fullmatch(text.strip())
    return (match["address"] if match else text).strip()


def domain_of(text: str) -> str:
    """The domain of `a@b.c` or `Name <a@b.c>`, in lower case."""
    return bare(text).rpartition("@")[2].lower()


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _headers(headers: dict[str, str]) -> dict[str, str]:
    seen = set()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise wrong("a header's name is 1 to 76 printable ASCII characters without ':' and blanks")
        if _TAKEN_HEADERS.fullmatch(name):
            raise wrong(f"{name} is set by a field of its own, by the provider or by notif")
        if name.lower() in seen:
            raise wrong(f"{name} is there twice, in different cases")
        seen.add(name.lower())
        one_line(value)
    return headers


def _tags(tags: dict[str, str]) -> dict[str, str]:
    for name in OUR_TAGS & tags.keys():
        raise wrong(f"the tag {name!r} is notif's own")
    return tags


def _sized(low: int) -> Any:
    return Field(min_length=low, max_length=MAX_RECIPIENTS)


Address = Annotated[str, StringConstraints(max_length=700), AfterValidator(address)]
"""A field's type for an e-mail address; of use in a product's own models too."""
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_listed)]
"""Several, or a single one written as a string."""
Recipients = Annotated[Addresses, _sized(1)]
"""1 to 50 addresses."""
Tag = Annotated[str, StringConstraints(pattern=_TAG)]


class EmailContent(BaseModel):
    """What is read: subject and body, which a template can make."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: Annotated[str, StringConstraints(min_length=1, max_length=998), AfterValidator(one_line)]
    html: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _has_a_body(self) -> Self:
        if not (self.html or self.text):
            raise wrong("html or text: at least one must hold something")
        return self


class EmailMessage(EmailContent):
    """One message, as Resend takes it but for the tags `job` and `n`, which its adapter adds."""

    sender: Address = Field(alias="from")
    to: Recipients
    cc: Annotated[Addresses, _sized(0)] = ()
    bcc: Annotated[Addresses, _sized(0)] = ()
    reply_to: Annotated[Addresses, _sized(0)] = ()
    headers: Annotated[dict[str, str], Field(max_length=50), AfterValidator(_headers)] = {}
    tags: Annotated[dict[Tag, Tag], Field(max_length=MAX_TAGS), AfterValidator(_tags)] = {}

    @property
    def recipients(self) -> tuple[str, ...]:
        """Everybody who would get it: to, cc and bcc."""
        return (*self.to, *self.cc, *self.bcc)
