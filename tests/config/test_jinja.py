"""Templates: escaped where it must be, strict, sandboxed, and wrong ones refused at boot with file and variable."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from notif.adapters.jinja import JinjaRenderer
from notif.errors import ConfigurationError, InvalidEnvelope


class Line(BaseModel):
    items: int


def write(folder: Path, **files: str) -> JinjaRenderer:
    """Files of template `mail`; a name with two underscores is one in the folder above."""
    names = {"subject": "mail/subject.txt", "html": "mail/body.html", "text": "mail/body.txt"}
    for name, content in files.items():
        file = folder / names.get(name, f"{name}.html")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return JinjaRenderer(folder)


def test_only_html_is_escaped(tmp_path: Path) -> None:
    renderer = write(tmp_path, subject="{{ a }}", html="<p>{{ a }}</p>", text="{{ a }}")
    parts = renderer.render("mail", {"a": "<b> & 'c'"})
    assert parts == {
        "subject": "<b> & 'c'",
        "html": "<p>&lt;b&gt; &amp; &#39;c&#39;</p>",
        "text": "<b> & 'c'",
    }


def test_only_the_bodies_there_are(tmp_path: Path) -> None:
    assert write(tmp_path, subject="s", text="t").render("mail", {}) == {"subject": "s", "text": "t"}


@pytest.mark.parametrize(
    "value", ["1\r\nBcc: x@b.test", "1\nBcc: x@b.test", "1\u2028Bcc: x@b.test", "1\x85Bcc: x@b.test"]
)
def test_a_subject_is_one_line(tmp_path: Path, value: str) -> None:
    renderer = write(tmp_path, subject="\n  Order {{ a }}\n\n", text="t")
    assert renderer.render("mail", {"a": value})["subject"] == "Order 1 Bcc: x@b.test"


def test_an_empty_subject(tmp_path: Path) -> None:
    renderer = write(tmp_path, subject="{{ a }}", text="t")
    with pytest.raises(InvalidEnvelope, match=r"^template mail/subject.txt: the subject came out empty$"):
        renderer.render("mail", {"a": " "})


def test_fields_come_before_the_methods_of_what_holds_them(tmp_path: Path) -> None:
    renderer = write(tmp_path, subject="{{ line.items }}", text="t")
    assert renderer.render("mail", {"line": Line(items=3)})["subject"] == "3"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\n{{ b }}", "template mail/body.txt, line 2: 'b' is undefined"),
        ("{% if b %}{% endif %}", "template mail/body.txt, line 1: 'b' is undefined"),
        ("{{ a.nme }}", "template mail/body.txt, line 1: 'str object' has no attribute 'nme'"),
        ("{{ a.__class__.__mro__ }}", "template mail/body.txt, line 1: access to attribute '__class__' of"),
        ("{{ l.append(1) }}", "template mail/body.txt, line 1: "),
        ("{{ a + 1 }}", "template mail/body.txt, line 1: TypeError"),
        ("{% for i in range(999999999) %}{% endfor %}", "template mail/body.txt, line 1: OverflowError"),
        ("{{ 1 / l[0] }}", "template mail/body.txt, line 1: ZeroDivisionError"),
        ("{% include a %}", "template mail/body.txt, line 1: 'personal' not found"),
    ],
)
def test_what_fails_when_it_is_rendered(tmp_path: Path, text: str, sentence: str) -> None:
    renderer = write(tmp_path, subject="s", text=text)
    with pytest.raises(InvalidEnvelope) as caught:
        renderer.render("mail", {"a": "personal", "l": [0]})
    assert str(caught.value).startswith(sentence)


def refused(renderer: JinjaRenderer, *fields: str, template: str = "mail") -> str:
    with pytest.raises(ConfigurationError) as caught:
        renderer.check(template, fields)
    return str(caught.value)


def test_check_finds_a_variable_that_is_no_field(tmp_path: Path) -> None:
    renderer = write(tmp_path, subject="{{ order_number }}", html="<p>{{ nmae }}</p>")
    renderer.check("mail", ["order_number", "nmae"])
    sentence = "mail/body.html uses 'nmae', which is no field of the model; did you mean 'name'?"
    assert refused(renderer, "order_number", "name") == sentence


def test_check_knows_scopes_and_globals(tmp_path: Path) -> None:
    text = "{% for i in range(3) %}{{ loop.index }}{{ i }}{% endfor %}{% set t = a %}{{ t }}{{ self }}"
    renderer = write(tmp_path, subject="s", text=text)
    renderer.check("mail", ["a"])
    leaked = write(tmp_path, subject="s", text="{% for i in a %}{% endfor %}{{ i }}")
    assert refused(leaked, "a").startswith("mail/body.txt uses 'i'")


def test_check_follows_layouts(tmp_path: Path) -> None:
    page = '{% extends "layout.html" %}{% set title = a %}{% block body %}{{ a }}{% endblock %}'
    renderer = write(
        tmp_path,
        subject="s",
        html=page,
        layout='{{ title }}{% block body %}{% endblock %}{% include "foot.html" %}',
        foot="{{ year }}",
    )
    renderer.check("mail", ["a", "year"])
    assert renderer.render("mail", {"a": "<", "year": 1})["html"] == "&lt;&lt;1"
    sentence = "mail/body.html uses 'year', which is no field of the model; did you mean 'years'?"
    assert refused(renderer, "a", "years") == sentence
    (tmp_path / "foot.html").unlink()
    assert refused(JinjaRenderer(tmp_path), "a") == "mail/body.html refers to 'foot.html', which isn't there"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"text": "t"}, "mail/subject.txt is missing"),
        ({"subject": "s"}, "mail has no body; write body.html, body.txt or both"),
        ({"subject": "s", "text": "\n{% if a %}"}, "mail/body.txt, line 2: Unexpected end of template."),
        ({"subject": "s", "text": "{{ a | nofilter }}"}, "mail/body.txt, line 1: No filter named 'nofilter'"),
    ],
)
def test_check_finds_what_is_missing_or_no_template(tmp_path: Path, files: dict[str, Any], sentence: str) -> None:
    assert refused(write(tmp_path, **files), "a").startswith(sentence)


def test_check_finds_what_is_no_text(tmp_path: Path) -> None:
    renderer = write(tmp_path, subject="s", text="t")
    (tmp_path / "mail/body.txt").write_bytes(b"\xff")
    assert refused(renderer).startswith("mail/body.txt can't be read: 'utf-8' codec")


def test_no_such_template(tmp_path: Path) -> None:
    renderer = write(tmp_path, subject="s", text="t")
    sentence = f"'male' is no folder under {tmp_path}; did you mean 'mail'?"
    assert refused(renderer, template="male") == sentence
    with pytest.raises(ConfigurationError):
        renderer.render("../mail", {})
    absent = JinjaRenderer(tmp_path / "absent")
    assert refused(absent) == f"'mail' is no folder under {tmp_path / 'absent'}; none is known"


def test_files_are_read_once(tmp_path: Path) -> None:
    """One process renders one version, whatever a deploy does to the files under it."""
    renderer = write(tmp_path, subject="old", text="t")
    assert renderer.render("mail", {})["subject"] == "old"
    (tmp_path / "mail/subject.txt").write_text("new")
    assert renderer.render("mail", {})["subject"] == "old"
    assert JinjaRenderer(tmp_path).render("mail", {})["subject"] == "new"
