"""The forms of requests: learned at the second sight, known until there are too many or they do not hold any more."""

import json
from typing import Any

import pytest

from gateway.api import forms as module
from gateway.api.forms import Forms, Known

PATH = "/v1/chat/completions"


def messages_of(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts or ("hi",)]


def body_of(*texts: str, **members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages_of(*texts)} | members).encode()


def request_of(body: bytes, path: str = PATH) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def see_twice(forms: Forms[str], body: bytes) -> bytes:
    """The form, which is to be learned then."""
    assert forms.new(body) is None
    form = forms.new(body)
    assert form is not None
    return form


@pytest.fixture
def forms() -> Forms[str]:
    return Forms(PATH)


def test_a_form_is_learned_at_the_second_sight(forms: Forms[str]) -> None:
    assert forms.new(body_of("a")) is None
    assert forms.new(body_of("a", user="1")) is None
    assert forms.new(body_of("a", user="2")) is None
    form = forms.new(body_of("b", "c"))
    assert form == b'{"model": "m", "messages": \0}'
    # Seen is not known.
    assert forms.recognize(request_of(body_of("d"))) is False
    forms.learn(form, "known")
    assert forms.new(body_of("e")) is None
    assert forms.recognize(request_of(body_of("d", user="1"))) is False


def test_a_known_request(forms: Forms[str]) -> None:
    forms.learn(see_twice(forms, body_of("a", stop=["]"])), "known")
    body = body_of("b", 'é\n"', stop=["]"])
    assert forms.recognize(request_of(body)) == Known([], body, messages_of("b", 'é\n"'), "known")


def test_of_a_head_it_gives_what_is_read(forms: Forms[str]) -> None:
    forms.learn(see_twice(forms, body_of()), "known")
    read = b"Authorization: Bearer a", b"X-Request-Id: b", b"traceparent: d", b"tracestate: e", b"tracestate: f"
    lines = b"\r\n".join((*read, b"X-Other: c"))
    found = forms.recognize(request_of(body_of()).replace(b"Host: h", lines))
    assert isinstance(found, Known)
    assert found.headers == [
        (b"authorization", b"Bearer a"),
        (b"x-request-id", b"b"),
        (b"traceparent", b"d"),
        (b"tracestate", b"e"),
        (b"tracestate", b"f"),
    ]


def test_one_that_has_not_come_completely_may_be_known(forms: Forms[str]) -> None:
    forms.learn(see_twice(forms, body_of()), "known")
    whole = request_of(body_of("a"))
    begins = whole.index(b"\r\n") + 2
    assert {forms.recognize(whole[:length]) for length in range(begins)} == {False}
    assert {forms.recognize(whole[:length]) for length in range(begins, len(whole))} == {True}
    assert isinstance(forms.recognize(whole), Known)


@pytest.mark.parametrize(
    "data",
    [
        request_of(body_of(), "/v1/completions"),
        request_of(body_of(), PATH + "?a=1"),
        request_of(body_of()) + b"\n",
        request_of(body_of()).replace(b"Host", b"Upgrade"),
        request_of(body_of() + b" "),
        request_of(body_of(model="n")),
        request_of(json.dumps({"model": "m", "messages": [{"role": "tool", "content": "x"}]}).encode()),
        request_of(json.dumps({"model": "m", "messages": []}).encode()),
        request_of(body_of()[:-1]),
        request_of(b""),
        b"",
    ],
)
def test_everything_else_goes_the_usual_way(forms: Forms[str], data: bytes) -> None:
    forms.learn(see_twice(forms, body_of()), "known")
    assert forms.recognize(data) is False


@pytest.mark.parametrize("body", [b"", b"{", body_of()[:-3], b'{"model":"m"}', b'{"prompt":"x"}'])
def test_what_is_no_chat_has_no_form(forms: Forms[str], body: bytes) -> None:
    assert [forms.new(body) for _ in range(3)] == [None] * 3


def test_of_many_forms_the_last_are_known(forms: Forms[str]) -> None:
    numbers = range(module._MOST_FORMS + 10)
    for number in numbers:
        forms.learn(see_twice(forms, body_of(seed=number)), str(number))
    known = [forms.recognize(request_of(body_of("x", seed=number))) for number in numbers]
    assert known[:10] == [False] * 10
    assert [one.form for one in known[10:] if isinstance(one, Known)] == [str(number) for number in numbers[10:]]


def test_of_many_that_are_seen_once_the_last_are_remembered(forms: Forms[str]) -> None:
    last = module._MOST_SEEN
    for number in range(last + 1):
        assert forms.new(body_of(seed=number)) is None
    # As if they had never been.
    assert forms.new(body_of(seed=0)) is None
    assert forms.new(body_of(seed=last)) is not None
    assert forms.new(body_of(seed=0)) is not None


def test_as_many_as_can_be_seen_are_remembered(forms: Forms[str]) -> None:
    bodies = [body_of(seed=number) for number in range(module._MOST_SEEN)]
    assert [forms.new(body) for body in bodies] == [None] * len(bodies)
    assert None not in [forms.new(body) for body in bodies]


def test_long_bodies_have_no_form(forms: Forms[str]) -> None:
    room = module.LONGEST - len(body_of(""))
    longest = body_of("x" * room)
    assert len(longest) == module.LONGEST
    longer = body_of("x" * (room + 1))
    assert [forms.new(longer) for _ in range(3)] == [None] * 3
    assert see_twice(forms, longest) == b'{"model": "m", "messages": \0}'
    # A long text makes no long form.
    forms.learn(see_twice(forms, body_of("a", user="1")), "known")
    assert isinstance(forms.recognize(request_of(body_of("x" * (room - 200), user="1"))), Known)
    assert forms.recognize(request_of(body_of("x" * room, user="1"))) is False
    # That it is too long is known when its head is.
    begun = request_of(longest)
    assert forms.recognize(begun[: begun.index(b"\r\n\r\n") + 4]) is False


def test_long_forms_are_not_learned(forms: Forms[str]) -> None:
    room = module._LONGEST_FORM - len(b'{"model": "m", "messages": \0, "user": ""}')
    long = body_of(user="x" * (room + 1))
    assert [forms.new(long) for _ in range(3)] == [None] * 3
    assert len(see_twice(forms, body_of(user="x" * room))) == module._LONGEST_FORM


def test_what_cannot_be_known_goes_the_usual_way(forms: Forms[str]) -> None:
    forms.learn(see_twice(forms, body_of()), None)
    assert forms.recognize(request_of(body_of())) is False
    # And is not to be learned again.
    assert [forms.new(body_of()) for _ in range(3)] == [None] * 3


def test_what_is_outdated_is_not_known(forms: Forms[str]) -> None:
    # Equal to one another, but each of its own.
    one, other = "".join(["kn", "own"]), "".join(["kno", "wn"])
    assert one is not other
    forms.learn(see_twice(forms, body_of()), one)
    forms.learn(see_twice(forms, body_of(user="1")), one)
    forms.learn(see_twice(forms, body_of(user="2")), other)
    forms.learn(see_twice(forms, body_of(user="3")), None)
    forms.outdated(one)
    assert forms.recognize(request_of(body_of())) is False
    assert forms.recognize(request_of(body_of(user="1"))) is False
    assert isinstance(forms.recognize(request_of(body_of(user="2"))), Known)
    assert forms.new(body_of(user="3")) is None
    form = forms.new(body_of())
    assert form is not None
    forms.learn(form, "new")
    found = forms.recognize(request_of(body_of()))
    assert isinstance(found, Known)
    assert found.form == "new"


def test_forms_are_of_one_path() -> None:
    other: Forms[str] = Forms("/other")
    other.learn(see_twice(other, body_of()), "known")
    assert isinstance(other.recognize(request_of(body_of(), "/other")), Known)
    assert other.recognize(request_of(body_of())) is False


def test_without_gateway_relay_nothing_is_known(forms: Forms[str], monkeypatch: pytest.MonkeyPatch) -> None:
    forms.learn(see_twice(forms, body_of()), "known")
    monkeypatch.setattr(module, "read_head", None)
    monkeypatch.setattr(module, "read_chat", None)
    whole = request_of(body_of())
    assert {forms.recognize(whole[:length]) for length in range(len(whole) + 1)} == {False}
    assert [forms.new(body_of(user="1")) for _ in range(3)] == [None] * 3
