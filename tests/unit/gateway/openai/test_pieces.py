"""JSON that is read in pieces: the same value as in one call, or the same words for the first mistake."""

import json
from typing import Any

import jiter
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.openai import pieces

SIZES = (16, 17, 24, 61, 256)

characters = st.sampled_from('ab"\\/\n\x01é日🎉,:[]{} ')
texts = st.lists(characters, max_size=60).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from("abcd") | texts, inner, max_size=8),
    max_leaves=40,
)
scraps = st.sampled_from(
    [b",", b'"', b"\\", b"[", b"]", b"{", b"}", b":", b"0", b"-", b"1e999", b"NaN", b" ", b"\n", b"\x01", b"\xff", b"x",
     b'"a":1,', b',"b":2', rb"\ud83d", rb"\ude00", rb"\u00e9", rb"\u12", rb"\ud83d\ude00", b'""', b"null", b"//"]
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Of JSON, some of it broken."""
    dumped = json.dumps(draw(values), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1])))
    body = dumped.encode()
    for _ in range(draw(st.integers(0, 3))):
        at, to = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
        body = body[:at] + draw(scraps | st.just(b"")) + body[draw(st.sampled_from([at, at + 1, to])) :]
    return body


def read(body: bytes, size: int | None, *, allow_inf_nan: bool = False) -> Any:
    """With the types of the numbers, of which some are equal."""
    try:
        if size is not None:
            return repr(pieces.from_json(body, allow_inf_nan=allow_inf_nan, piece=size))
        return repr(
            jiter.from_json(body, allow_inf_nan=allow_inf_nan, cache_mode="keys", catch_duplicate_keys=True)
        )
    except ValueError as error:
        return error.args


@given(bodies(), st.booleans())
@settings(max_examples=400)
@example(b'{"a":1,                        "b":{"a":1},                   "a":2}', False)
@example(b'[[1],                {"k":1, "l":[                        ],"k"       : !}]', False)
@example(b'{"' + b"k" * 100 + b'":1, "b":"' + b"v" * 100 + b'","' + b"k" * 100 + b'":2}', False)
@example(b'"' + rb"\ud83d\ude00" * 20 + b'"', False)
@example(b'["' + rb"\\" * 40 + b'", "' + rb"\"" * 41 + b'"]', False)
@example('["日本🎉"]'.encode() * 2 + b" ", False)
@example('  "日本🎉日本🎉日本🎉日本🎉日本🎉日本🎉"  '.encode(), False)
@example(b'  "' + b"a" * 60 + b'" x', False)
@example(b'["' + b"a" * 60, False)
@example(b'["' + b"a" * 60 + b'"', False)
@example(b"[" * 100 + b"]" * 100 + b",", False)
@example(b"[" * 300 + b"]" * 300, False)
@example(b'[1,{"a":' * 150, False)
@example(b"[" + b"1, " * 50 + b"\n" * 5 + b"x]", False)
@example(b"[" + b"1, " * 50 + b"]", False)
@example(b"[1" + b" " * 200 + b",,2]", False)
@example(b"," + b" " * 200, False)
@example(b"", False)
def test_every_cut_reads_the_same(body: bytes, allow_inf_nan: bool) -> None:
    expected = read(body, None, allow_inf_nan=allow_inf_nan)
    for size in SIZES:
        found = read(body, size, allow_inf_nan=allow_inf_nan)
        try:
            body.decode()
        except UnicodeDecodeError:
            # Where a character is cut, its first or its last byte may be named.
            assert isinstance(found, tuple) == isinstance(expected, tuple)
        else:
            assert found == expected


def test_a_body_of_many_pieces() -> None:
    texts = [f'"{number}" \\ é' for number in range(9000)]
    value = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts],
        "prompt": list(range(100_000)),
        "text": 'x\\y"z🎉\n' * 50_000,
        "numbers": {str(number): [number / 7] for number in range(20_000)},
    }
    for body in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=2).encode()):
        assert len(body) > 50 * pieces.PIECE
        assert pieces.from_json(body) == value


@pytest.mark.parametrize("body", [b"[" + b"{},[]," * 200_000 + b"!", b'[{"a":[' + b"[1]," * 200_000])
def test_of_too_many_lists_and_objects_the_beginning_is_read(body: bytes) -> None:
    with pytest.raises(pieces.TooMany, match="more than 60000 lists and objects") as caught:
        pieces.from_json(body)
    beginning = caught.value.beginning
    found = beginning[0]["a"] if isinstance(beginning[0], dict) and beginning[0] else beginning
    # And no more than one piece goes beyond it.
    assert pieces.MAX_CONTAINERS - 2 <= len(found) <= pieces.MAX_CONTAINERS + pieces.PIECE


def test_of_too_many_members_the_beginning_is_read() -> None:
    body = b"{" + b",".join(b'"%d":1' % number for number in range(400_000)) + b"}"
    with pytest.raises(pieces.TooMany, match="170000 members of objects") as caught:
        pieces.from_json(body)
    assert pieces.MAX_MEMBERS <= len(caught.value.beginning) <= pieces.MAX_MEMBERS + pieces.PIECE


def test_brackets_in_texts_are_not_counted() -> None:
    text = '[{"a":1}]' * 100_000
    assert pieces.from_json(orjson.dumps([text, [text]])) == [text, [text]]


@given(texts, st.integers(0, 3))
def test_a_text_as_json(text: str, times: int) -> None:
    text *= 3000 ** min(times, 1)
    assert pieces.string(text) == orjson.dumps(text)


@pytest.mark.parametrize("count", [0, 1, pieces.PIECE // 8, pieces.PIECE // 8 + 1, 50_000])
def test_numbers_as_json(count: int) -> None:
    assert pieces.numbers(range(count)) == orjson.dumps(list(range(count)))
