"""The native reading of chat requests: what is found is what the parsers of the usual way make of the same bytes
(httptools for the head, jiter and the schema for the body), and what they refuse or read otherwise is not found."""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import httptools
import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.errors import ApiError
from gateway.openai.schema import ChatRequest, parse_chat
from gateway_relay import read_chat, read_head

Messages = list[dict[str, str]]

# --- Bodies

TRICKY = [
    "messages",
    '"messages":[',
    '[{"role":"user","content":"x"}]',
    "]}",
    "{[",
    "\\",
    '\\"',
    "\\\\",
    '"',
    ",",
    ":",
    "\x00\x1f\x7f",
    "\ud7ff\ue000\U00010000\U0010ffff",
    "日本 🎉 é",
    "",
]
texts = st.sampled_from(TRICKY) | st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["messages", "role", "content"]) | texts, inner, max_size=3)
    ),
    max_leaves=6,
)
messages_of_text = st.lists(
    st.builds(
        lambda role, content, is_turned: (
            {"content": content, "role": role} if is_turned else {"role": role, "content": content}
        ),
        st.sampled_from(["system", "user", "assistant"]),
        texts,
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
blanks = st.text(" \t\r\n", max_size=3)


class Style(NamedTuple):
    """How JSON is written: as `json.dumps` names it."""

    ensure_ascii: bool
    indent: int | str | None
    separators: tuple[str, str]


styles = st.builds(
    Style,
    st.booleans(),
    st.sampled_from([None, 0, 2, "\t"]),
    st.tuples(st.builds("{},{}".format, blanks, blanks), st.builds("{}:{}".format, blanks, blanks)),
)


class Around(NamedTuple):
    """What stands around the messages of a body."""

    before: bytes
    after: bytes

    def body(self, array: bytes) -> bytes:
        return self.before + array + self.after

    @property
    def form(self) -> bytes:
        return self.before + b"\0" + self.after


def written(value: Any, style: Style) -> bytes:
    return json.dumps(value, **style._asdict()).encode()


def is_plain(name: str, style: Style) -> bool:
    """Whether a name stands in JSON as it is; ahead of the messages no other is read."""
    return name != "messages" and json.dumps(name, ensure_ascii=style.ensure_ascii) == f'"{name}"'


@st.composite
def arounds(draw: st.DrawFn) -> Around:
    style = draw(styles)
    comma, colon = (separator.encode() for separator in style.separators)
    names = st.sampled_from(["model", "role", "content", "Messages", "messages2", ""]) | st.text(max_size=6)
    first = draw(st.dictionaries(names.filter(lambda name: is_plain(name, style)), values, max_size=3))
    last = draw(
        st.dictionaries(names.filter(lambda name: name != "messages" and name not in first), values, max_size=3)
    )

    def members(of: dict[str, Any]) -> list[bytes]:
        return [written(name, style) + colon + written(value, style) for name, value in of.items()]

    def some() -> bytes:
        return draw(blanks).encode()

    before = some() + b"{" + some() + comma.join([*members(first), b'"messages"' + colon])
    # Blanks behind the array belong to it.
    after = comma.lstrip() + comma.join(members(last)) if last else b""
    return Around(before, after + (some() if last else b"") + b"}" + some())


def value_of(body: bytes) -> Any:
    """As `gateway.openai.schema.parse` reads it. Raises `ValueError`."""
    return jiter.from_json(body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)


def is_json(body: bytes) -> bool:
    try:
        value_of(body)
    except ValueError:
        return False
    return True


@given(arounds(), messages_of_text, messages_of_text, styles, styles, blanks)
def test_the_messages_and_what_stands_around_them(
    around: Around, messages: Messages, others: Messages, style: Style, other_style: Style, behind: str
) -> None:
    array = written(messages, style)
    body = around.body(array + behind.encode())
    assert read_chat(body) == (around.form, messages)
    assert value_of(body)["messages"] == messages
    assert read_chat(around.body(written(others, other_style))) == (around.form, others)


@given(st.text(max_size=20), st.randoms(use_true_random=False))
def test_every_way_to_write_a_text(text: str, choices: random.Random) -> None:
    def character(c: str) -> str:
        units = c.encode("utf-16-be")
        ways = ["".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))]
        ways.append("\\u".join(ways[0].upper().split("\\U")))
        if c >= " " and c not in '"\\':
            ways.append(c)
        short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
        ways += [short[c]] if c in short else []
        return choices.choice(ways)

    content = "".join(map(character, text))
    body = f'{{"messages":[{{"role":"user","content":"{content}"}}]}}'.encode()
    assert read_chat(body) == (b'{"messages":\0}', [{"role": "user", "content": text}])
    assert value_of(body)["messages"][0]["content"] == text


@pytest.mark.parametrize("length", range(1, 20))
def test_a_text_is_read_alike_wherever_something_stands_in_it(length: int) -> None:
    for at in range(length):

        def text(what: bytes, at: int = at) -> bytes:
            return with_content(b"x" * at + what + b"x" * (length - at - 1))

        for code in range(0x20):
            assert read_chat(text(bytes([code]))) is None
        for what in (*" !#[]\x7f\x80é日🎉", '\\"', "\\\\", "\\u0041", "\\u0000"):
            body = text(what.encode())
            assert read_chat(body) == (b'{"model":"m","messages":\0}', value_of(body)["messages"])
        for wrong in (b'"', b"\\", b"\x80", b"\xa2", b"\xdc", b"\xff"):
            assert not is_json(text(wrong))
            assert read_chat(text(wrong)) is None


def test_the_members_of_a_message_always_stand_in_the_same_order() -> None:
    """Templates can see it."""
    found = read_chat(b'{"messages":[{"content":"x","role":"user"}]}')
    assert found is not None
    assert list(found[1][0]) == ["role", "content"]


@given(arounds(), messages_of_text, st.data())
def test_whatever_differs_around_is_another_form(around: Around, messages: Messages, data: st.DataObject) -> None:
    side = data.draw(st.sampled_from([0, 1]))
    text = around[side]
    at = data.draw(st.integers(0, len(text)))
    new = data.draw(st.sampled_from([bytes([c]) for c in b' \t\n{}[]",:\\/0ae\x00\x80\xff']) | st.just(b""))
    changed = text[:at] + new + text[at + data.draw(st.integers(0, 2)) :]
    other = around._replace(**{Around._fields[side]: changed})
    if other == around or (side == 1 and changed.lstrip(b" \t\r\n") == text):
        return
    found = read_chat(other.body(json.dumps(messages).encode()))
    assert found is None or found[0] != around.form


BASES = [
    b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
    b'{"messages": [ {"role":"system","content":"a\\n\\"\\\\\\/b"} , {"content":"\\ud83c\\udf89","role":"user"} ] , '
    b'"model":"m","stream":true}',
    '{"model":"m","stop":["]","}","\\"messages\\":["],"messages":[{"role":"assistant","content":"日é🎉"},'
    '{"role":"user","content":""}],"temperature":0.5,"chat_template_kwargs":{"messages":[1,{}]}}'.encode(),
    b'{"chat_template_kwargs":{"messages":[{"role":"user","content":"no"}]},"user":"\\\\","messages":'
    b'[{"role":"user","content":"\\u0041"}],"model":"m"}',
]
MARKS = [bytes([c]) for c in b'{}[]",:\\ \n\t\r\x00\x1f\x7f\x80\xc3\xed\xff01-e.nut/'] + [
    b'"messages":[',
    b'"messages":[{"role":"user","content":"x"}]',
    b'"role":"user"',
    b'"content":"x",',
    b"\\ud800",
    b"\\udc00",
    b"\\u00",
    b"\xed\xa0\x80",
    b"null",
]


def mutants(base: bytes, count: int, marks: list[bytes], seed: int) -> Iterator[bytes]:
    source = random.Random(seed)
    for _ in range(count):
        data = base
        for _ in range(source.choice((1, 1, 1, 2, 3))):
            at = source.randrange(len(data) + 1)
            match source.randrange(5):
                case 0:
                    changed = bytes(byte ^ 1 << source.randrange(8) for byte in data[at : at + 1])
                    data = data[:at] + changed + data[at + 1 :]
                case 1:
                    data = data[:at] + source.choice(marks) + data[at:]
                case 2:
                    data = data[:at] + source.choice(marks) + data[at + 1 :]
                case 3:
                    data = data[:at] + data[at + source.randrange(1, 4) :]
                case _:
                    # Some other part of it once more.
                    begin = source.randrange(len(data) + 1)
                    data = data[:at] + data[begin : begin + source.randrange(1, 40)] + data[at:]
        yield data


def request_of(body: bytes) -> tuple[ChatRequest, Messages] | None:
    """What is asked for but the messages, and these; None where the schema refuses it."""
    try:
        request = parse_chat(body)
    except ApiError:
        return None
    messages = [message.model_dump(exclude_unset=True) for message in request.messages]
    return request.model_copy(update={"messages": []}), messages


@pytest.mark.parametrize("base", range(len(BASES)))
def test_broken_bodies_are_never_read_otherwise(base: int) -> None:
    """A form that was learned came from a body that the schema took. So whatever is found in other bytes must be what
    the schema finds there, or stand in a form that it takes with no messages."""
    outcomes = set()
    for body in mutants(BASES[base], 6000, MARKS, seed=base):
        found = read_chat(body)
        outcomes.add((found is not None, is_json(body)))
        if found is None:
            continue
        form, messages = found
        before, _, after = form.partition(b"\0")
        around = Around(before, after)
        if not is_json(body):
            assert b"\0" in after or not is_json(around.body(b"[]")), body
            continue
        assert form.count(b"\0") == 1
        assert value_of(body)["messages"] == messages, body
        # With messages that are certainly plain it means the same otherwise.
        asked, plain = request_of(body), request_of(around.body(b'[{"role":"user","content":"x"}]'))
        if asked is None or plain is None:
            assert asked is plain, body
        else:
            assert asked == (plain[0], messages), body
    assert outcomes == {(False, False), (False, True), (True, False), (True, True)}


@pytest.mark.parametrize("body", BASES)
def test_of_a_body_that_is_cut_off_nothing_is_found_in_its_form(body: bytes) -> None:
    whole = read_chat(body)
    assert whole is not None
    for length in range(len(body)):
        found = read_chat(body[:length])
        assert found is None or found[0] != whole[0]


def with_content(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"' + content + b'"}]}'


def with_array(array: bytes) -> bytes:
    return b'{"model":"m","messages":' + array + b"}"


PLAIN = b'{"role":"user","content":"x"}'
INVALID = {
    "a first half of a surrogate": with_content(b"\\ud800"),
    "a first half ahead of text": with_content(b"\\ud83cxxxxxx"),
    "a first half ahead of an escape": with_content(b"\\ud83c\\n\\n\\n"),
    "two first halves": with_content(b"\\ud83c\\ud83c"),
    "a first half ahead of a character": with_content(b"\\ud83c\\u0041"),
    "a second half of a surrogate": with_content(b"\\udf89"),
    "the halves in the wrong order": with_content(b"\\udf89\\ud83c"),
    "half a pair, cut off": with_content(b"\\ud83c\\udf8"),
    "no UTF-8": with_content(b"\xff"),
    "no UTF-8, with an escape": with_content(b"\\n\xff"),
    "a character that is cut off": with_content(b"\xe6\x97"),
    "a character that an escape cuts off": with_content(b"\xc3\\u00a9"),
    "a character that begins in its middle": with_content(b"\\u00e9\xa9"),
    "a character that is too long": with_content(b"\xc0\x80"),
    "a surrogate as UTF-8": with_content(b"\xed\xa0\x80"),
    "a character past the last one": with_content(b"\xf4\x90\x80\x80"),
    **{f"a raw {code:#04x}": with_content(bytes([code])) for code in range(0x20)},
    **{
        f"the escape {escape!r}": with_content(escape)
        for escape in (
            *(b"\\x41", b"\\'", b"\\0", b"\\a", b"\\v", b"\\N", b"\\U00000041", b"\\\n", b"\\\xc3\xa9", b"\\\x00"),
            *(b"\\u", b"\\u0", b"\\u00", b"\\u004", b"\\u00g1", b"\\u-041", b"\\u+041", b"\\u 041", b"\\u0x41"),
            *(b"\\u004\\", b"\\"),
        )
    },
    "a text without an end": b'{"model":"m","messages":[{"role":"user","content":"x}]}',
    "an escape at the end": b'{"messages":[{"role":"user","content":"\\',
    "a number of four digits at the end": b'{"messages":[{"role":"user","content":"\\u004',
    "half a pair at the end": b'{"messages":[{"role":"user","content":"\\ud83c\\u',
    "the role twice": with_array(b'[{"role":"user","role":"user","content":"x"}]'),
    "the content twice": with_array(b'[{"role":"user","content":"x","content":"x"}]'),
    "a comma behind the last message": with_array(b"[" + PLAIN + b",]"),
    "a comma behind the last member": with_array(b'[{"role":"user","content":"x",}]'),
    "a comma ahead of the first message": with_array(b"[," + PLAIN + b"]"),
    "no comma between messages": with_array(b"[" + PLAIN + PLAIN + b"]"),
    "no comma between members": with_array(b'[{"role":"user" "content":"x"}]'),
    "two commas": with_array(b"[" + PLAIN + b",," + PLAIN + b"]"),
    "no colon": with_array(b'[{"role" "user","content":"x"}]'),
    "an equals sign": with_array(b'[{"role"="user","content":"x"}]'),
    "names without quotes": with_array(b'[{role:"user",content:"x"}]'),
    "other quotes": with_array(b"[{'role':'user','content':'x'}]"),
    "a comment": with_array(b"[/**/" + PLAIN + b"]"),
    "a blank of another kind": with_array(b"[\x0b" + PLAIN + b"]"),
    "an array without an end": b'{"messages":[' + PLAIN,
    "a brace for a bracket": with_array(b"[" + PLAIN + b"}"),
    "nothing": b"",
    "blanks": b" \n",
    "an opening brace": b"{",
    "a byte order mark": b"\xef\xbb\xbf" + BASES[0],
    "a NUL first": b"\0" + BASES[0],
    "a comma first": b'{,"messages":[' + PLAIN + b"]}",
    "a bracket ahead that closes nothing": b'{"a":],"messages":[' + PLAIN + b"]}",
    "no value ahead": b'{"a":,"messages":[' + PLAIN + b"]}",
    "a text ahead without an end": b'{"a":"x,"messages":[' + PLAIN + b"]}",
    "a wrong escape ahead": b'{"a":"\\x","messages":[' + PLAIN + b"]}",
    "no comma ahead": b'{"a":1 "messages":[' + PLAIN + b"]}",
    "an object ahead without an end": b'{"a":{"messages":[' + PLAIN + b"]}",
}


@pytest.mark.parametrize("what", INVALID)
def test_what_is_no_json_is_not_found(what: str) -> None:
    assert not is_json(INVALID[what])
    assert read_chat(INVALID[what]) is None


OTHER = {
    **{
        f"the role {role}": with_array(b'[{"role":"%s","content":"x"}]' % role.encode())
        for role in ("tool", "developer", "function", "User", "user ", "nobody", "")
    },
    "a role with an escape": with_array(b'[{"role":"us\\u0065r","content":"x"}]'),
    "a role that is no text": with_array(b'[{"role":null,"content":"x"}]'),
    "a name with an escape": with_array(b'[{"rol\\u0065":"user","content":"x"}]'),
    "no role": with_array(b'[{"content":"x"}]'),
    "no content": with_array(b'[{"role":"assistant"}]'),
    "an empty message": with_array(b"[{}]"),
    **{
        f"the content {content.decode()}": with_array(b'[{"role":"user","content":%s}]' % content)
        for content in (b"null", b"1", b"true", b"{}", b"[]", b'["x"]', b'[{"type":"text","text":"x"}]')
    },
    **{
        f"the member {member.decode()}": with_array(b'[{"role":"user",%s,"content":"x"}]' % member)
        for member in (b'"name":"n"', b'"name":null', b'"":""', b'"tool_calls":[]', b'"Role":"user"', b'"refusal":"r"')
    },
    "a member behind": with_array(b'[{"role":"assistant","content":"x","reasoning_content":"r"}]'),
    "a plain message, then another": with_array(b"[" + PLAIN + b',{"role":"tool","content":"x","tool_call_id":"1"}]'),
    "a plain message, then none": with_array(b"[" + PLAIN + b",null]"),
    "no messages": b'{"model":"m"}',
    "an empty array": with_array(b"[]"),
    "an empty array with blanks": with_array(b"[ \n]"),
    **{
        f"the messages {one.decode()}": with_array(one)
        for one in (b"null", b"1", b'"x"', b"{}", PLAIN, b"[[" + PLAIN + b"]]", b'["x"]', b"[1]")
    },
    "too many": with_array(b"[" + b",".join([PLAIN] * 1001) + b"]"),
    "messages of another object": b'{"model":"m","metadata":{"messages":[' + PLAIN + b"]}}",
    "messages of an object in an array": b'{"model":"m","metadata":[{"messages":[' + PLAIN + b"]}]}",
    "messages in a text": b'{"model":"m","user":"\\"messages\\":[{\\"role\\":\\"user\\",\\"content\\":\\"x\\"}]"}',
    "messages by an escape": b'{"mess\\u0061ges":[' + PLAIN + b"]}",
    "a name ahead with an escape": b'{"mod\\u0065l":"m","messages":[' + PLAIN + b"]}",
    "no members": b"{}",
    "an array": b"[" + PLAIN + b"]",
    "a text": b'"messages"',
    "a number": b"1",
}


@pytest.mark.parametrize("what", OTHER)
def test_what_is_more_than_texts_is_not_found(what: str) -> None:
    assert is_json(OTHER[what])
    assert read_chat(OTHER[what]) is None


def test_as_many_messages_as_are_read() -> None:
    found = read_chat(with_array(b"[" + b",".join([PLAIN] * 1000) + b"]"))
    assert found == (b'{"model":"m","messages":\0}', [{"role": "user", "content": "x"}] * 1000)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"messages":', b""),
        (b'{"messages":', b"}x"),
        (b'{"messages":', b"}}"),
        (b'{"messages":', b"}{}"),
        (b'{"messages":', b"]"),
        (b'{"messages":', b",}"),
        (b'{"messages":', b"}\0"),
        (b'{"messages":', b"\0}"),
        (b'{"messages":', b',"messages":[]}'),
        (b'{"messages":', b',"mess\\u0061ges":[]}'),
        (b'{"messages":', b',"a":NaN}'),
        (b'{"messages":', b',"a":"\\ud800"}'),
        (b'{"messages":', b',"a":"\xff"}'),
        (b'{"a":1,"a":2,"messages":', b"}"),
        (b'{"a":01,"messages":', b"}"),
        (b'{"a":NaN,"messages":', b"}"),
        (b'{"a":tru,"messages":', b"}"),
        (b'{"a":[},"messages":', b"}"),
        (b'{"a":[1 2],"messages":', b"}"),
        (b'{"a":[,],"messages":', b"}"),
        (b'{"a":{"b"},"messages":', b"}"),
        (b'{"a":"\xff","messages":', b"}"),
        (b'{"\xff":1,"messages":', b"}"),
        (b'{"a":1\0,"messages":', b"}"),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b',"messages":', b"}"),
    ],
)
def test_what_is_wrong_around_makes_a_form_that_no_valid_body_has(before: bytes, after: bytes) -> None:
    around = Around(before, after)
    body = around.body(b"[" + PLAIN + b"]")
    assert not is_json(body)
    assert not is_json(around.body(b"[]"))
    assert read_chat(body) == (around.form, [{"role": "user", "content": "x"}])


# --- Heads

PATH = b"/v1/chat/completions"
LONGEST = 100_000
Headers = list[tuple[bytes, bytes]]
# With these a head says how the request is to be read.
SPECIAL = {b"content-length", b"connection", b"transfer-encoding", b"expect", b"upgrade"}


def request(
    *lines: bytes, body: bytes = b"{}", length: bytes | None = None, start: bytes = b"POST " + PATH + b" HTTP/1.1"
) -> bytes:
    lengths = b"Content-Length: %d" % len(body) if length is None else length
    return b"\r\n".join((start, *lines, *([lengths] if lengths else []), b"", body))


class Heard:
    """What uvicorn's parser makes of a request."""

    def __init__(self, data: bytes) -> None:
        self.headers: Headers = []
        self.body = b""
        self.path = b""
        self.is_complete = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # It leaves the blanks behind a value.
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        assert not self.is_complete
        self.is_complete = True


def check_heard(data: bytes, found: tuple[Headers, bytes]) -> None:
    heard = Heard(data)
    assert (heard.headers, heard.body) == found
    assert heard.is_complete
    assert heard.path == PATH
    assert heard.parser.get_method() == b"POST"
    assert heard.parser.get_http_version() == "1.1"
    assert heard.parser.should_keep_alive()
    assert not heard.parser.should_upgrade()


names = st.text("!#$%&'*+-.^_`|~0123456789abcxyzABCXYZ", min_size=1, max_size=8).map(str.encode) | st.sampled_from(
    [b"Host", b"Authorization", b"Content-Type", b"Accept", b"X-Request-ID", b"traceparent"]
)
visible = bytes([*range(0x21, 0x7F), *range(0x80, 0x100)])
header_values = st.lists(st.sampled_from([bytes([c]) for c in visible + b"\t :,;"]), max_size=10).map(b"".join)
header_blanks = st.text(" \t", max_size=2).map(str.encode)


@st.composite
def header_lines(draw: st.DrawFn) -> tuple[bytes, tuple[bytes, bytes]]:
    name = draw(names.filter(lambda name: name.lower() not in SPECIAL))
    value = draw(header_values).strip(b" \t")
    return name + b":" + draw(header_blanks) + value + draw(header_blanks), (name.lower(), value)


@given(st.lists(header_lines(), max_size=5), st.binary(max_size=30), st.data())
def test_an_ordinary_request(
    headers: list[tuple[bytes, tuple[bytes, bytes]]], body: bytes, data: st.DataObject
) -> None:
    size = b"%d" % len(body)
    special = [(b"CONTENT-length: " + size, (b"content-length", size))]
    if data.draw(st.booleans()):
        special.append((b"Connection: Keep-Alive", (b"connection", b"Keep-Alive")))
    lines = data.draw(st.permutations(headers + special))
    whole = request(*(line for line, _ in lines), body=body, length=b"")
    found = read_head(whole, PATH, LONGEST)
    assert found == ([header for _, header in lines], body)
    assert isinstance(found, tuple)
    check_heard(whole, found)
    names = [name for name, _ in found[0]]
    kept = tuple(data.draw(st.lists(st.sampled_from([*names, b"x-absent"]))))
    assert read_head(whole, PATH, LONGEST, kept) == ([one for one in found[0] if one[0] in kept], body)
    start = whole.index(b"\r\n") + 2
    assert not any(read_head(whole[:length], PATH, LONGEST) for length in range(start))
    assert all(read_head(whole[:length], PATH, LONGEST) is True for length in range(start, len(whole)))
    for rest in (b"\0", b"\r\n", b" ", whole):
        assert read_head(whole + rest, PATH, LONGEST) is False


BODY = b'{"model":"m"}'
OUT_OF_THE_ORDINARY = {
    **{
        f"the request line {start.decode('latin-1')!r}": request(start=start)
        for start in (
            *(b"GET " + PATH + b" HTTP/1.1", b"PUT " + PATH + b" HTTP/1.1", b"post " + PATH + b" HTTP/1.1"),
            *(b"POST / HTTP/1.1", b"POST /v1/completions HTTP/1.1", b"POST " + PATH + b"/ HTTP/1.1"),
            *(b"POST /V1/chat/completions HTTP/1.1", b"POST " + PATH[:-1] + b" HTTP/1.1"),
            *(b"POST " + PATH + b"?a=1 HTTP/1.1", b"POST " + PATH + b"? HTTP/1.1", b"POST " + PATH + b"# HTTP/1.1"),
            *(b"POST http://h" + PATH + b" HTTP/1.1", b"POST  " + PATH + b" HTTP/1.1", b"POST " + PATH + b"  HTTP/1.1"),
            *(b"POST " + PATH + b" HTTP/1.0", b"POST " + PATH + b" HTTP/2.0", b"POST " + PATH + b" http/1.1"),
            *(b"POST " + PATH, b"POST " + PATH + b" HTTP/1.1 ", b" POST " + PATH + b" HTTP/1.1"),
            *(b"\r\nPOST " + PATH + b" HTTP/1.1", b"POST\t" + PATH + b" HTTP/1.1", b""),
        )
    },
    "a line that ends with LF": request().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
    **{
        f"the header {line.decode('latin-1')!r}": request(line)
        for line in (
            *(b"Transfer-Encoding: chunked", b"transfer-encoding: identity", b"Expect: 100-continue", b"EXPECT:"),
            *(b"Upgrade: h2c", b"Upgrade: websocket", b"upgrade:", b"Transfer-Encoding:"),
            *(b"Connection: close", b"Connection: Upgrade", b"Connection: keep-alive, Upgrade", b"Connection:"),
            *(b"Connection: keep-alive, close", b"Connection: keepalive", b"connection: Close"),
            *(b"Connection: keep-alive\r\nConnection: close", b"Content-Length: 2", b"content-length: 3"),
            *(b"X: a\r\n b", b"X: a\r\n\tb", b" X: a", b"\tX: a", b"X", b"X a", b": a", b":", b"X : a", b"X\t: a"),
            *(b"X Y: a", b"X\xc3\xa9: a", b"(X): a", b"X\0: a", b'"X": a', b"X/Y: a", b"X\x7f: a", b"X\r: a"),
            *(b"X: a\rb", b"X: a\nb", b"X: a\nY: b", b"X: a\r", b"X:\ra", b"X: \n", b"X\n: a"),
        )
    },
    **{f"a value with {code:#04x}": request(b"X: a%cb" % code) for code in (*range(9), *range(10, 0x20), 0x7F)},
    "no length": request(length=b""),
    "no headers": b"POST " + PATH + b" HTTP/1.1\r\n\r\n{}",
    **{
        f"the length {length.decode('latin-1')!r}": request(length=b"Content-Length:" + length)
        for length in (
            *(b"", b" ", b" +2", b" -2", b" - 2", b" 2 2", b" 2, 2", b" 2,2", b" 2.0", b" 2x", b" x2", b" 0x2", b" 2;"),
            *(b' "2"', b" \xb2", b" 2e0", b" 1_0", b" \x0b2", b" " + b"9" * 19, b" " + b"9" * 20, b" " + b"9" * 400),
            *(b" 18446744073709551615", b" 18446744073709551616", b" 18446744073709551618", b" %d" % LONGEST),
        )
    },
    "a length that is too short": request(length=b"Content-Length: 1"),
    "a length of none": request(length=b"Content-Length: 0"),
}


@pytest.mark.parametrize("what", OUT_OF_THE_ORDINARY)
def test_what_is_out_of_the_ordinary_goes_the_usual_way(what: str) -> None:
    assert read_head(OUT_OF_THE_ORDINARY[what], PATH, LONGEST) is False


def test_a_head_is_refused_before_its_body_has_come() -> None:
    whole = request(b"Connection: close", body=BODY)
    assert read_head(whole[: -len(BODY)], PATH, LONGEST) is False
    assert read_head(request(length=b"Content-Length: 100000", body=b""), PATH, LONGEST) is False


def test_the_longest_request() -> None:
    whole = request(body=BODY)
    assert read_head(whole, PATH, len(whole)) == ([(b"content-length", b"%d" % len(BODY))], BODY)
    assert read_head(whole[:-1], PATH, len(whole)) is True
    assert read_head(whole, PATH, len(whole) - 1) is False
    assert read_head(whole[:-1], PATH, len(whole) - 1) is False


def test_a_head_without_an_end_is_not_waited_for() -> None:
    long = request(b"X: " + b"x" * LONGEST)
    assert read_head(long[:16_000], PATH, LONGEST) is True
    assert read_head(long[:17_000], PATH, LONGEST) is False


HEADS = [
    request(b"Host: h:1", b"Content-Type: application/json", b"Authorization: Bearer k", b"Connection: keep-alive"),
    request(b"host:h", b"X-Empty:", b"X-Odd: \t\xff a:b \t", b"ACCEPT: */*", length=b"CONTENT-LENGTH:  013", body=BODY),
    request(body=b""),
]
HEAD_MARKS = [bytes([c]) for c in b"\r\n :\t\0\x0b\x7f\x80\xff,;+-0129aZ"] + [
    b"\r\n",
    b"\r\n\r\n",
    b"\r\n ",
    b"Connection: close\r\n",
    b"\r\nContent-Length: 2",
    b"\r\nTransfer-Encoding: chunked",
    b"\r\nUpgrade: h2c",
    b"\r\nX: y",
]


@pytest.mark.parametrize("head", range(len(HEADS)))
def test_broken_requests_are_never_read_otherwise(head: int) -> None:
    """Than by the parser of the usual way."""
    outcomes = set()
    for data in mutants(HEADS[head], 6000, HEAD_MARKS, seed=head):
        found = read_head(data, PATH, LONGEST)
        outcomes.add(type(found) if isinstance(found, tuple) else found)
        if isinstance(found, tuple):
            check_heard(data, found)
    assert outcomes == {tuple, True, False}


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    assert read_head(data, PATH, LONGEST) is False
    found = read_chat(b'{"messages":[' + PLAIN + b"]" + data)
    assert found == (b'{"messages":\0' + data.lstrip(b" \t\r\n"), [{"role": "user", "content": "x"}])
    found = read_chat(b"{" + data)
    assert found is None or is_json(b"{" + data) or not is_json(found[0].replace(b"\0", b"[]"))
