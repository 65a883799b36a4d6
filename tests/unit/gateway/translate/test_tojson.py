"""The filter `tojson` writes large values in pieces: the same text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai import writing
from gateway.openai.giving_way import is_aside
from gateway.translate import tojson

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=30,
)
options = st.fixed_dictionaries(
    {},
    optional={
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 2]),
        "separators": st.sampled_from([None, (",", ":"), (" , ", " : ")]),
        "sort_keys": st.booleans(),
    },
)


@pytest.fixture(scope="module", autouse=True)
def little_at_once() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_AT_ONCE", 4)
        patch.setattr(writing, "_CHARACTERS", 8)
        yield


@pytest.fixture(scope="module", autouse=True)
def aside() -> Any:
    token = is_aside.set(True)
    yield
    is_aside.reset(token)


@given(values, options)
@settings(max_examples=500)
def test_the_same_as_in_one_call(value: Any, given_options: dict[str, Any]) -> None:
    assert tojson.in_pieces(json.dumps)(value, **given_options) == json.dumps(value, **given_options)


@given(st.dictionaries(st.integers() | st.booleans() | st.none() | st.floats(), values, max_size=12))
def test_keys_that_are_no_text(value: dict[Any, Any]) -> None:
    assert tojson.in_pieces(json.dumps)(value) == json.dumps(value)


@pytest.mark.parametrize(("beside", "calls"), [(False, 1), (True, 3 + 8)])
def test_on_the_loop_it_is_one_call(beside: bool, calls: int) -> None:
    made = []

    def tojson_of(value: Any) -> str:
        made.append(value)
        return json.dumps(value)

    token = is_aside.set(beside)
    assert tojson.in_pieces(tojson_of)([[1]] * 16) == json.dumps([[1]] * 16)
    is_aside.reset(token)
    # Three of them ask how it writes.
    assert len(made) == calls


def test_what_cannot_be_written_fails_as_it_does() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        tojson.in_pieces(json.dumps)([1, 2, 3, 4, 5, [object()]])
