"""JSON that is read in pieces: the same value as in one call, or the same words for the first mistake."""

import gc
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


@given(bodies(), st.sampled_from(SIZES))
@example(b'{"a":1,"' + b"k" * 60 + b'":2}', 16)
@example(b'{"' + b"k" * 60 + b'":!}', 16)
@example(b'{"a":1,"b":2,"a":3,"' + b"k" * 60 + b'":!}', 16)
@example(b'{"a":1,"b" "' + b"k" * 60 + b'"}', 16)
@example(b'["a" "' + b"k" * 60 + b'"]', 16)
@example(b'{} "' + b"k" * 60 + b'"', 16)
@example(b"1." + b"1" * 60, 16)
@example(b"[1e" + b"1" * 60 + b"]", 16)
@example(b"[" + b" " * 60 + b"1" + b" " * 60 + b"]", 16)
@settings(max_examples=300)
def test_what_is_too_long_is_not_read(body: bytes, size: int) -> None:
    """Whatever is ahead of it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LONGEST", 40)
        try:
            found: Any = repr(pieces.from_json(body, piece=size))
        except pieces.TooMuch:
            assert len(body) > 40
            return
        except ValueError as error:
            found = error.args
    if body.isascii():
        assert found == read(body, None)


@pytest.mark.parametrize("ahead", [b'{"a":1,', b'{"a":[{"b":{', b"{"])
def test_a_name_of_megabytes(ahead: bytes) -> None:
    with pytest.raises(pieces.TooMuch, match="name or a number of more than 262144 bytes") as caught:
        pieces.from_json(ahead + b'"' + b"k" * 4_000_000 + b'":1')
    assert caught.value.beginning == {b'{"a":1,': {"a": 1}}.get(ahead)
    assert caught.value.unfinished == ([caught.value.beginning] if caught.value.beginning else [])


def test_the_longest_name() -> None:
    name = "k" * (pieces.LONGEST - 100)
    assert pieces.from_json(b'[1,{"' + name.encode() + b'":[2]}]') == [1, {name: [2]}]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"' + rb"\"" * 120_000,
        b'{"a":' + b'"' * 3_000_000,
        b'{"a":' + b'"b" ' * 700_000,
        b'{"a":1 "' + b"x" * 3_000_000 + b'"}',
        b"x" * 3_000_000,
        b"[" * 3_000_000,
        b"[" + b"[]" * 1_500_000,
        b"[" + b"1" * 3_000_000,
        b"[" + b"\n" * 3_000_000 + b"x]",
    ],
)
def test_a_mistake_ahead_of_megabytes_without_a_comma(body: bytes) -> None:
    """It takes no call for all of them."""
    assert read(body, pieces.PIECE) == read(body, None)


def test_what_was_read_ahead_of_a_mistake_is_let_go_of_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[Any] = []
    monkeypatch.setattr(pieces, "empty", emptied.append)
    with pytest.raises(ValueError, match="expected value"):
        pieces.from_json(b'{"a":[1,2,3,4,5,6,7,8],"b":!}', piece=16)
    assert emptied == [{"a": [1, 2, 3, 4, 5, 6, 7, 8]}]


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
    with pytest.raises(pieces.TooMuch, match="more than 60000 lists and objects") as caught:
        pieces.from_json(body)
    beginning = caught.value.beginning
    found = beginning[0]["a"] if isinstance(beginning[0], dict) and beginning[0] else beginning
    # And no more than one piece goes beyond it.
    assert pieces.MAX_CONTAINERS - 2 <= len(found) <= pieces.MAX_CONTAINERS + pieces.PIECE


def test_of_too_many_members_the_beginning_is_read() -> None:
    body = b"{" + b",".join(b'"%d":1' % number for number in range(400_000)) + b"}"
    with pytest.raises(pieces.TooMuch, match="an object of more than 80000 members") as caught:
        pieces.from_json(body)
    assert pieces.MAX_MEMBERS <= len(caught.value.beginning) <= pieces.MAX_MEMBERS + pieces.PIECE


@pytest.mark.parametrize("body", [b"[1%b]", b'{"a":[{"b":[1%b]}]}'])
def test_a_long_list_is_where_the_collector_looks_seldom(body: bytes) -> None:
    value = pieces.from_json(body % (b",2" * 200_000))
    found = value["a"][0]["b"] if isinstance(value, dict) else value
    assert len(found) == 200_001
    assert any(one is found for one in gc.get_objects(generation=2))


def test_members_of_many_objects_are_no_matter() -> None:
    body = orjson.dumps([{str(number): 1 for number in range(10_000)}] * 12)
    assert pieces.from_json(body) == orjson.loads(body)


def test_brackets_in_texts_are_not_counted() -> None:
    text = '[{"a":1}]' * 100_000
    assert pieces.from_json(orjson.dumps([text, [text]])) == [text, [text]]
