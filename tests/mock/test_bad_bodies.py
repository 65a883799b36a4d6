"""Bodies that no client should send: each ends in a clear 400 or 413, and the next request is answered."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.gateway import Gateway

# What makes a request of each route, as JSON text without the last brace.
BEGIN = {
    "/v1/chat/completions": '{"model":"mock","messages":[{"role":"user","content":"x"}],"max_tokens":2',
    "/v1/completions": '{"model":"mock","prompt":"x","max_tokens":2',
    "/tokenize": '{"model":"mock","prompt":"x"',
    "/detokenize": '{"model":"mock","tokens":[70]',
}
ROUTES = list(BEGIN)
LATER = ["/v1/embeddings", "/v1/responses", "/v1/moderations", "/v1/images/generations"]
MANY = 1_000_000
DEEP = 10_000


def test_every_route_that_takes_a_body_is_here(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    # The one of an operator's that takes a body has tests of its own.
    posts = {path for path, methods in paths.items() if "post" in methods and not path.startswith("/admin/")}
    assert posts == BEGIN.keys()


def with_members(path: str, text: str) -> bytes:
    return f"{BEGIN[path]}{text}}}".encode()


def refused(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The error in OpenAI's shape."""
    assert answer.status_code in (statuses or (400,)), answer.text[:2000]
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert len(answer.content) < 20_000
    assert isinstance(error, dict)
    return error


@pytest.fixture
def post(client: httpx.Client, engine: MockEngine) -> Iterator[Any]:
    """Sends a body; in the end nothing has reached the engine and all routes still answer."""
    yield lambda path, body: client.post(path, content=body)
    assert engine.requests() == []
    for path in ROUTES:
        assert client.post(path, content=with_members(path, "")).status_code == 200


NOT_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "EOF"),
    "blank": (b" \n ", "EOF"),
    "cut": (b'{"model":"mock"', "EOF"),
    "text": (b"hello", "expected"),
    "quotes": (b"{'model':'mock'}", "key must be a string"),
    "trailing comma": (b'{"model":"mock",}', "trailing comma"),
    "comment": (b'{"model":"mock"} // x', "trailing characters"),
    "trailing garbage": (b'{"model":"mock"}x', "trailing characters"),
    "trailing NUL": (b'{"model":"mock"}\x00', "trailing characters"),
    "two values": (b'{"model":"mock"}{"model":"mock"}', "trailing characters"),
    "byte order mark": (b'\xef\xbb\xbf{"model":"mock"}', "byte order mark"),
    "UTF-16": ('{"model":"mock"}'.encode("utf-16"), "not UTF-8 (byte 0)"),
    "Latin-1": ('{"model":"é"}'.encode("latin-1"), "not UTF-8 (byte 10)"),
    "overlong": (b'{"model":"\xc0\xaf"}', "not UTF-8 (byte 10)"),
    "raw surrogate": (b'{"model":"\xed\xa0\x80"}', "not UTF-8 (byte 10)"),
    "cut character": (b'{"model":"\xf0\x9f\x8c"}', "not UTF-8 (byte 10)"),
    "raw line break": (b'{"model":"a\nb"}', "control character"),
    "form": (b"model=mock&prompt=x", "expected"),
    "many brackets": (b"[" * MANY, "nested too deeply"),
    "many objects": (b'{"a":' * (MANY // 2), "nested too deeply"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_not_json(name: str, post: Any) -> None:
    body, says = NOT_JSON[name]
    for path in ROUTES:
        error = refused(post(path, body))
        assert error["message"].startswith("The body is not valid JSON: ")
        assert says in error["message"]
        assert (error["param"], error["code"]) == (None, "invalid_json")


MEMBERS: dict[str, tuple[str, str]] = {
    "NaN": (',"user":NaN', "expected value at line 1 column"),
    "Infinity": (',"user":[Infinity]', "expected value at line 1 column"),
    "-Infinity": (',"user":{"a":-Infinity}', "at line 1 column"),
    "escaped surrogate": (',"user":"\\ud83c"', "half a surrogate (line 1 column"),
    "low surrogate": (',"user":"a\\udf0a"', "half a surrogate (line 1 column"),
    "surrogates the wrong way round": (',"user":"\\udf0a\\ud83c"', "half a surrogate (line 1 column"),
    "surrogate in a key": (',"\\ud83c":1', "half a surrogate (line 1 column"),
    "half an escape": (',"user":"\\u12"', "invalid escape"),
    "known key twice": (',"model":"mock"', 'the key "model" stands twice (line 1 column'),
    "unknown key twice": (',"a":1,"a":1', 'the key "a" stands twice (line 1 column'),
    "key twice, once escaped": (',"\\u006dodel":"mock"', 'the key "model" stands twice (line 1 column'),
    "nested key twice": (',"user":[{"b":{"a":1,"a":2}}]', 'the key "a" stands twice (line 1 column'),
    "nested list": (f',"user":{"[" * DEEP}{"]" * DEEP}', "nested too deeply (line 1 column"),
    "nested object": (",\"user\":" + '{"a":' * DEEP + "1" + "}" * DEEP, "nested too deeply (line 1 column"),
    "integer of 5,000 digits": (f',"user":1{"0" * 5000}', "an integer has more than 4300 digits (line 1 column"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_that_is_not_json(name: str, post: Any) -> None:
    text, says = MEMBERS[name]
    for path in ROUTES:
        error = refused(post(path, with_members(path, text)))
        assert error["message"].startswith("The body is not valid JSON: ")
        assert says in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "text",
    [
        ',"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","type":"string"}}}',
        ',"guided_json":{"properties":{"a":{},"a":{}}}',
        ',"stream_options":{"include_usage":true,"include_usage":false}',
        ',"logit_bias":{"5":1,"5":2}',
    ],
)
def test_a_key_that_stands_twice_inside_a_field(text: str, path: str, post: Any) -> None:
    assert "stands twice" in refused(post(path, with_members(path, text)))["message"]


def test_a_key_that_stands_twice_in_a_message(post: Any) -> None:
    for member in ('"content":"x"', '"role":"user"', '"name":"a","name":"b"'):
        body = f'{{"model":"mock","messages":[{{"role":"user","content":"x",{member}}}]}}'.encode()
        assert "stands twice" in refused(post("/v1/chat/completions", body))["message"]


@pytest.mark.parametrize("body", [b"null", b"true", b"1", b'"x"', b"[]", b'[{"model":"mock"}]'])
def test_a_root_of_the_wrong_type(body: bytes, post: Any) -> None:
    for path in ROUTES:
        assert refused(post(path, body))["message"] == "The body must be an object."


PLACES: list[tuple[str, str, str]] = [
    ("/v1/chat/completions", ',"temperature":1e999', "temperature"),
    ("/v1/chat/completions", ',"temperature":-1e999', "temperature"),
    ("/v1/chat/completions", ',"logit_bias":{"5":1e999}', "logit_bias.5"),
    ("/v1/chat/completions", ',"vllm_xargs":{"a":[1e999]}', "vllm_xargs.a"),
    ("/v1/chat/completions", ',"guided_json":{"maximum":1e999}', "guided_json.maximum"),
    ("/v1/chat/completions", f',"seed":1{"0" * 400}', "seed"),
    ("/v1/chat/completions", f',"n":-1{"0" * 400}', "n"),
    ("/v1/chat/completions", f',"logit_bias":{{"5":1{"0" * 400}}}', "logit_bias.5"),
    ("/v1/chat/completions", f',"priority":{2**31}', "priority"),
    ("/v1/completions", f',"logprobs":1{"0" * 400}', "logprobs"),
    ("/v1/completions", f',"stop_token_ids":[1,2,1{"0" * 400}]', "stop_token_ids[2]"),
    ("/v1/chat/completions", ',"stream_options":{"colour":1}', "stream_options.colour"),
    ("/v1/chat/completions", ',"stop":["a",""]', "stop[1]"),
]


@pytest.mark.parametrize(("path", "text", "param"), PLACES)
def test_a_value_out_of_every_bound_names_its_place(path: str, text: str, param: str, post: Any) -> None:
    assert refused(post(path, with_members(path, text)))["param"] == param


def many(item: str, last: str = "") -> str:
    return "[" + ",".join([item] * MANY) + (f",{last}" if last else "") + "]"


EMPTY = '""'
LONG: list[tuple[str, str, str]] = [
    ("/v1/chat/completions", f'"stop":{many(EMPTY)}', "stop[0]"),
    ("/v1/chat/completions", f'"stop_token_ids":{many("1")}', "stop_token_ids"),
    ("/v1/chat/completions", f'"allowed_token_ids":{many("1", "1")}', "allowed_token_ids"),
    ("/v1/chat/completions", f'"logprob_token_ids":{many("1")}', "logprob_token_ids"),
    ("/v1/chat/completions", f'"bad_words":{many("1")}', "bad_words[0]"),
    ("/v1/chat/completions", f'"documents":{many("{}")}', "documents"),
    ("/v1/chat/completions", f'"tools":{many("{}")}', "tools[0].type"),
    ("/v1/chat/completions", f'"guided_choice":{many("1")}', "guided_choice[0]"),
    ("/v1/chat/completions", f'"structured_outputs":{{"choice":{many("1")}}}', "structured_outputs.choice[0]"),
    ("/v1/chat/completions", f'"messages":{many("1")}', "messages[0]"),
    ("/v1/chat/completions", f'"messages":{many("{}")}', "messages[0].role"),
    ("/v1/chat/completions", f'"messages":[{{"role":"user","content":{many("1")}}}]', "messages[0].content[0]"),
    ("/v1/completions", f'"prompt":{many(EMPTY)}', "prompt"),
    ("/v1/completions", f'"prompt":{many("1", "-1")}', f"prompt[{MANY}]"),
    ("/v1/completions", f'"prompt":{many("[]")}', "prompt[0]"),
    ("/v1/completions", f'"prompt":{many("[1]")}', "prompt"),
    ("/v1/completions", f'"prompt":[{many("1", "true")}]', f"prompt[0][{MANY}]"),
    ("/tokenize", f'"messages":{many("{}")}', "messages[0].role"),
    ("/detokenize", f'"tokens":{many("1", "2.5")}', f"tokens[{MANY}]"),
]


@pytest.mark.parametrize(("path", "text", "param"), LONG, ids=[f"{path}-{param}" for path, _, param in LONG])
def test_a_list_of_a_million_elements(path: str, text: str, param: str, post: Any) -> None:
    # The field itself, where the beginning holds it.
    begin = BEGIN[path] if text.partition(":")[0] not in BEGIN[path] else '{"model":"mock"'
    assert refused(post(path, f"{begin},{text}}}".encode()))["param"] == param


@pytest.mark.parametrize("path", ROUTES)
def test_names_of_a_megabyte_do_not_come_back(path: str, post: Any) -> None:
    name = "x" * MANY
    begin = BEGIN[path]
    for body in (
        with_members(path, f',"{name}":1,"{name}":2'),
        f"{begin}}}".replace('"mock"', f'"{name}"').encode(),
        with_members(path, f',"logit_bias":{{"{name}":1}},"stop":""').replace(b'"x"', b"5").replace(b"[70]", b"5"),
    ):
        answer = post(path, body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["message"]
        assert len(answer.content) < 20_000


def test_tens_of_thousands_of_members(post: Any) -> None:
    for path in ROUTES:
        error = refused(post(path, with_members(path, "".join(f',"u{number}":1' for number in range(70_000)))))
        assert "70000 fields" in error["message"]


def test_an_object_of_too_many_members(post: Any) -> None:
    for path in ROUTES:
        error = refused(post(path, with_members(path, "".join(f',"u{number}":1' for number in range(150_000)))))
        assert "an object of more than 80000 members" in error["message"]


def test_members_of_messages_by_the_ten_thousand(post: Any) -> None:
    """Each would be a warning."""
    members = "".join(f',"u{number}":1' for number in range(70_000))
    for path in ("/v1/chat/completions", "/tokenize"):
        for message in (
            f'{{"role":"user","content":"x"{members}}}',
            f'{{"role":"user","content":[{{"type":"text","text":"x"{members}}}]}}',
            f'{{"role":"assistant","tool_calls":[{{"function":{{"name":"f"{members}}}}}]}}',
        ):
            error = refused(post(path, f'{{"model":"mock","messages":[{message}]}}'.encode()))
            assert (error["param"], error["code"]) == ("messages", "unknown_parameter")
            assert "70000 members" in error["message"]


# Large bodies

MIB = 1024 * 1024


def large() -> Iterator[bytes]:
    """64 MiB."""
    yield b'{"model":"'
    for _ in range(64):
        yield b"x" * MIB


@pytest.mark.parametrize("length", ["content-length", "chunked"])
def test_64_mib(length: str, post: Any) -> None:
    """The client sends all of it, whether or not anyone listens, and still reads the answer."""
    for path in ROUTES:
        body = b"".join(large()) if length == "content-length" else large()
        error = refused(post(path, body), 413)
        assert error["code"] == "body_too_large"
        assert "max_body_bytes" in error["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_length_over_the_limit_is_refused_before_the_body_comes(path: str, post: Any, gateway: Gateway) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {64 * MIB}\r\n\r\n{{".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", LATER)
def test_what_is_to_come_reads_no_body(path: str, post: Any) -> None:
    for body in (b"", b"{", b"\xff", b"[" * DEEP, b"x" * (64 * MIB)):
        assert "not supported yet" in refused(post(path, body))["message"]


def test_a_body_of_exactly_the_limit(client: httpx.Client, engine: MockEngine) -> None:
    limit = 4 * MIB
    body = with_members("/v1/completions", "")
    assert client.post("/v1/completions", content=body + b" " * (limit - len(body))).status_code == 200
    assert client.post("/v1/completions", content=body + b" " * (limit - len(body) + 1)).status_code == 413
    assert len(engine.wait_for_requests(1)) == 1


def test_integers_of_any_size_that_are_nobodys_business(client: httpx.Client, engine: MockEngine) -> None:
    """What is only passed on arrives as it was."""
    huge = 10**400
    answer = client.post(
        "/v1/chat/completions",
        content=with_members("/v1/chat/completions", f',"vllm_xargs":{{"a":[{huge}]}},"colour":{huge}'),
    )
    assert answer.status_code == 200
    (request,) = engine.wait_for_requests(1)
    assert request["sampling_parameters"]["extra_args"] == {"a": [huge]}
