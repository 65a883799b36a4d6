"""JSON that is written in pieces: the same text as in one call."""

import json
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai import json_text, writing

texts = st.lists(st.sampled_from('ab"\\/\n\x01é日🎉'), max_size=60).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**30), 10**30) | texts,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(texts, inner, max_size=12),
    max_leaves=40,
)


@pytest.fixture(scope="module", autouse=True)
def little_at_once() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_AT_ONCE", 4)
        patch.setattr(writing, "_CHARACTERS", 8)
        patch.setattr(writing, "_NUMBERS", 3)
        yield


@given(values)
@settings(max_examples=500)
def test_any_value(value: Any) -> None:
    # A number beyond 64 bits makes one call for all of it write in another way.
    written = writing.text(value)
    assert json.loads(written) == value
    assert written == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@given(texts)
def test_a_text(text: str) -> None:
    assert writing.string(text) == orjson.dumps(text)


@given(st.lists(texts))
def test_the_parts_of_a_text(parts: list[str]) -> None:
    assert b"".join(writing.escaped(parts)) == orjson.dumps("".join(parts))


@given(st.lists(st.integers(0, 2**31)) | st.lists(texts))
def test_a_list(elements: Any) -> None:
    assert writing.array(elements) == orjson.dumps(elements)


def test_a_range() -> None:
    assert writing.array(range(10)) == b"[0,1,2,3,4,5,6,7,8,9]"


@given(st.lists(texts))
def test_texts_are_joined(parts: list[str]) -> None:
    assert writing.join(iter(parts)) == "".join(parts)


def test_many_pieces_come_of_what_is_large() -> None:
    assert len(list(writing.written({"a": list(range(40))}))) > 10
    assert list(writing.written({"a": [1]})) == [json_text.dumps({"a": [1]}).decode()]


def calls_of_writing(value: Any) -> int:
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        list(writing.written(value))
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "wide",
    [
        [[1]] * 2000,
        [[1, "a"]] * 2000,
        {str(number): [1] for number in range(2000)},
        [["é" * 30]] * 500,
        [[[1] * 5]] * 500,
    ],
)
@pytest.mark.parametrize("around", [lambda one: [one], lambda one: {"p": one}, lambda one: {"p": [1, one, [2]]}])
def test_what_is_deep_takes_no_longer_than_what_is_not(wide: Any, around: Callable[[Any], Any]) -> None:
    deep = wide
    for _ in range(150):
        deep = around(deep)
    assert json.loads(writing.text(deep)) == deep
    assert calls_of_writing(deep) < calls_of_writing(wide) + 150 * 60
