"""The mock's bytes against those of a real tritonserver 2.51.

Every expected value was recorded from that server, with a decoupled Python-backend model under the name `m` that had
the stock backend's inputs, explicit model control, and requests with `Connection: close`. The order of headers is not
compared.
"""

import json
from typing import Any

import pytest

from bench.mock_engine.running import running_mock_engine

from .conftest import Answer, Client, generate_body

JSON = {"content-type": "application/json"}
PLAIN = {"content-type": "text/plain"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
CHUNKED_JSON = {"content-type": "application/json", "transfer-encoding": "chunked"}
STREAM = "/v2/models/m/generate_stream"
WHOLE = "/v2/models/m/generate"

# method, path, body; status line without the protocol, headers, body
CONTROL_PLANE: list[tuple[str, str, Any, str, dict[str, str], bytes]] = [
    ("GET", "/v2/health/live", None, "200 OK", PLAIN, b""),
    ("GET", "/v2/health/ready", None, "200 OK", PLAIN, b""),
    ("GET", "/v2/models/m/ready", None, "200 OK", PLAIN, b""),
    ("GET", "/v2/models/m/versions/1/ready", None, "200 OK", PLAIN, b""),
    ("GET", "/v2/health/ready?x=1", None, "200 OK", PLAIN, b""),
    ("GET", "/v2/models/nope/ready", None, "400 Bad Request", PLAIN, b'{"error":"Model version not ready"}'),
    (
        "GET",
        "/v2/models/nope",
        None,
        "404 Not Found",
        JSON,
        b'{"error":"Request for unknown model: \'nope\' is not found"}',
    ),
    (
        "GET",
        "/v2/models/nope/config",
        None,
        "404 Not Found",
        JSON,
        b'{"error":"Request for unknown model: \'nope\' is not found"}',
    ),
    (
        "GET",
        "/v2/models/m/versions/2",
        None,
        "404 Not Found",
        JSON,
        b'{"error":"Request for unknown model: \'m\' version 2 is not found"}',
    ),
    (
        "GET",
        "/v2/models/nope/stats",
        None,
        "400 Bad Request",
        JSON,
        b'{"error":"requested model \'nope\' is not available"}',
    ),
    ("GET", "/v2/", None, "404 Not Found", PLAIN, b'{"error":"Not Found"}'),
    ("GET", "/v2/nope", None, "404 Not Found", PLAIN, b'{"error":"Not Found"}'),
    ("GET", "/v2/models/m/foo", None, "404 Not Found", PLAIN, b'{"error":"Not Found"}'),
    ("POST", "/v2/health/live", b"", "405 Not Allowed", PLAIN, b'{"error":"Method Not Allowed"}'),
    ("POST", "/v2/models/m", b"", "405 Not Allowed", JSON, b'{"error":"Method Not Allowed"}'),
    ("GET", STREAM, None, "405 Not Allowed", JSON, b'{"error":"Method Not Allowed"}'),
    ("GET", "/v2/repository/index", None, "405 Not Allowed", JSON, b'{"error":"Method Not Allowed"}'),
    (
        "POST",
        "/v2/repository/index",
        {"ready": True},
        "200 OK",
        JSON,
        b'[{"name":"m","version":"1","state":"READY"}]',
    ),
    ("POST", "/v2/repository/models/m/load", b"{}", "200 OK", JSON, b""),
    (
        "POST",
        "/v2/repository/models/nope/load",
        b"",
        "500 Internal Server Error",
        JSON,
        b'{"error":"failed to load \'nope\', failed to poll from model repository"}',
    ),
    ("POST", "/v2/repository/models/nope/unload", b"", "200 OK", JSON, b""),
    (
        "POST",
        "/v2/models/m/infer",
        {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["one"]}]},
        "501 Not Implemented",
        PLAIN,
        b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}',
    ),
]


def check(answer: Answer, status: str, headers: dict[str, str], body: bytes) -> None:
    assert answer.status_line == f"HTTP/1.1 {status}"
    length = {} if "transfer-encoding" in headers else {"content-length": str(len(body))}
    assert answer.headers == headers | length | {"connection": "close"}
    assert answer.body == body


@pytest.mark.parametrize(("method", "path", "body", "status", "headers", "expected"), CONTROL_PLANE)
def test_control_plane(
    stock: Client, method: str, path: str, body: Any, status: str, headers: dict[str, str], expected: bytes
) -> None:
    check(stock.ask(method, path, body), status, headers, expected)


def test_server_metadata(stock: Client) -> None:
    body = (
        b'{"name":"triton","version":"2.65.0","extensions":["classification","sequence","model_repository",'
        b'"model_repository(unload_dependents)","schedule_policy","model_configuration","system_shared_memory",'
        b'"cuda_shared_memory","binary_tensor_data","parameters","statistics","trace","logging"]}'
    )
    check(stock.ask("GET", "/v2"), "200 OK", JSON, body)


def test_model_metadata_has_the_stock_inputs(stock: Client) -> None:
    answer = stock.ask("GET", "/v2/models/m")
    assert answer.headers["content-type"] == "application/json"
    metadata = json.loads(answer.body)
    flags = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]
    assert metadata == {
        "name": "m",
        "versions": ["1"],
        "platform": "vllm",
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1]},
            {"name": "image", "datatype": "BYTES", "shape": [-1]},
            {"name": "stream", "datatype": "BOOL", "shape": [1]},
            {"name": "sampling_parameters", "datatype": "BYTES", "shape": [1]},
            {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1]},
            *({"name": f"return_{flag}", "datatype": "BOOL", "shape": [1]} for flag in flags),
            {"name": "embedding_request", "datatype": "BYTES", "shape": [1]},
        ],
        "outputs": [
            {"name": "text_output", "datatype": "BYTES", "shape": [-1]},
            {"name": "finish_reason", "datatype": "BYTES", "shape": [-1]},
            {"name": "cumulative_logprob", "datatype": "FP32", "shape": [-1]},
            {"name": "logprobs", "datatype": "BYTES", "shape": [-1]},
            {"name": "num_input_tokens", "datatype": "UINT32", "shape": [1]},
            {"name": "num_output_tokens", "datatype": "UINT32", "shape": [-1]},
        ],
    }


def test_our_metadata_announces_our_inputs(own: Client) -> None:
    inputs = {tensor["name"]: tensor for tensor in json.loads(own.ask("GET", "/v2/models/m").body)["inputs"]}
    assert inputs["send_admission"] == {"name": "send_admission", "datatype": "BOOL", "shape": [1]}
    assert inputs["add_special_tokens"] == {"name": "add_special_tokens", "datatype": "BOOL", "shape": [1]}
    assert inputs["input_ids"] == {"name": "input_ids", "datatype": "INT64", "shape": [-1]}


def test_statistics(stock: Client) -> None:
    before = json.loads(stock.ask("GET", "/v2/models/m/stats").body)["model_stats"][0]
    assert before.keys() == {
        "name", "version", "last_inference", "inference_count", "execution_count", "inference_stats", "response_stats",
        "batch_stats", "memory_usage",
    }  # fmt: skip
    stock.stream()
    (after,) = json.loads(stock.ask("GET", "/v2/models/stats").body)["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 1


TEXT = 'whole "text" \\ / ä € 😀 \x01 \n\t é'
EVENT = (
    b'6d\r\ndata: {"model_name":"m","model_version":"1","text_output":"whole \\"text\\" \\\\ / \xc3\xa4 \xe2\x82\xac '
    b'\xf0\x9f\x98\x80 \\u0001 \\n\\t \xc3\xa9"}\n\n\r\n0\r\n\r\n'
)
ERROR = 'INVALID_ARG x: no "quotes" \\ ä\nsecond'


def bare_body(**members: Any) -> dict[str, Any]:
    """A request whose answer is exactly the model's text."""
    return {"text_input": "one", "exclude_input_in_output": True, "sampling_parameters": '{"max_tokens":50}'} | members


def test_a_stream_of_one_response(stock: Client) -> None:
    stock.engine.add_fault(text=TEXT)
    check(stock.ask("POST", STREAM, bare_body()), "200 OK", EVENTS, EVENT)


def test_inputs_as_lists(stock: Client) -> None:
    stock.engine.add_fault(text=TEXT)
    for one in (["one"], [["one"]]):
        check(stock.ask("POST", STREAM, bare_body(text_input=one, stream=[False])), "200 OK", EVENTS, EVENT)


def test_keys_that_are_no_inputs_are_parameters(stock: Client) -> None:
    stock.engine.add_fault(text=TEXT)
    for members in ({"unknown": 1}, {"parameters": {"a": 1, "b": "x", "c": True, "d": 1.5}}):
        check(stock.ask("POST", STREAM, bare_body(**members)), "200 OK", EVENTS, EVENT)


def test_the_request_id_comes_back(stock: Client) -> None:
    stock.engine.add_fault(text=TEXT)
    expected = EVENT.replace(b'6d\r\ndata: {"model_name"', b'78\r\ndata: {"id":"abc","model_name"')
    check(stock.ask("POST", STREAM, bare_body(id="abc")), "200 OK", EVENTS, expected)


def test_generate_with_one_response(stock: Client) -> None:
    stock.engine.add_fault(text=TEXT)
    expected = EVENT.replace(b"6d\r\ndata: ", b"65\r\n").replace(b"\n\n\r\n", b"\r\n")
    check(stock.ask("POST", WHOLE, bare_body()), "200 OK", CHUNKED_JSON, expected)


def test_generate_with_several_responses(either: Client) -> None:
    expected = (
        b'8a\r\n{"error":"generate expects model to produce exactly 1 response, use generate stream for model that '
        b'generates various number of responses"}\r\n0\r\n\r\n'
    )
    check(either.ask("POST", WHOLE, bare_body(stream=True)), "200 OK", CHUNKED_JSON, expected)
    either.engine.add_fault(error_after={"tokens": 2, "error": "INTERNAL: died"})
    check(either.ask("POST", WHOLE, bare_body(stream=True)), "200 OK", CHUNKED_JSON, expected)


def test_an_error_before_the_first_response(either: Client) -> None:
    either.engine.add_fault(error_before=ERROR)
    event = b'3e\r\ndata: {"error":"INVALID_ARG x: no \\"quotes\\" \\\\ \xc3\xa4\\nsecond"}\n\n\r\n0\r\n\r\n'
    check(either.ask("POST", STREAM, bare_body()), "400 Bad Request", EVENTS, event)
    body = b'36\r\n{"error":"INVALID_ARG x: no \\"quotes\\" \\\\ \xc3\xa4\\nsecond"}\r\n0\r\n\r\n'
    check(either.ask("POST", WHOLE, bare_body()), "400 Bad Request", CHUNKED_JSON, body)


def test_an_error_after_responses(either: Client) -> None:
    either.engine.add_fault(error_after={"tokens": 2, "error": "INTERNAL: died"}, text="abcdefghi")
    # Two tokens of three bytes each.
    expected = (
        b'42\r\ndata: {"model_name":"m","model_version":"1","text_output":"abc"}\n\n\r\n'
        b'42\r\ndata: {"model_name":"m","model_version":"1","text_output":"def"}\n\n\r\n'
        b'22\r\ndata: {"error":"INTERNAL: died"}\n\n\r\n0\r\n\r\n'
    )
    check(either.ask("POST", STREAM, bare_body(stream=True)), "200 OK", EVENTS, expected)


def test_all_outputs_are_in_alphabetical_order(stock: Client) -> None:
    (first, *_) = stock.stream(sampling={"logprobs": 1}, return_logprobs=True, return_cumulative_logprob=True).events
    assert list(first) == [
        "cumulative_logprob", "finish_reason", "logprobs", "model_name", "model_version", "num_input_tokens",
        "num_output_tokens", "text_output",
    ]  # fmt: skip
    assert isinstance(first["logprobs"], str)


NON_STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
NON_BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"
NON_INTEGER = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
WRONG_SHAPE = "The schema can not convert input 'text_input' to tensor with proper shape"
WRONG_PARAMETER = "has invalid type. It should be either 'int', 'bool', or 'string'."

REFUSED_BODIES: list[tuple[Any, int, str]] = [
    ({"text_input": 5}, 500, NON_STRING),
    ({"text_input": None}, 500, NON_STRING),
    ({"text_input": {"a": 1}}, 500, NON_STRING),
    ({"text_input": "one", "sampling_parameters": {"a": 1}}, 500, NON_STRING),
    ({"text_input": ["one", "two"]}, 400, WRONG_SHAPE),
    ({"text_input": []}, 400, WRONG_SHAPE),
    ({"text_input": "one", "stream": "true"}, 500, NON_BOOLEAN),
    ({"text_input": "one", "stream": 1}, 500, NON_BOOLEAN),
    ({"text_input": "one", "stream": None}, 500, NON_BOOLEAN),
    ({"text_input": "one", "id": 5}, 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
    ({"text_input": "one", "list": [1]}, 400, f"parameter 'list' {WRONG_PARAMETER}"),
    ({"text_input": "one", "object": {"a": 1}}, 400, f"parameter 'object' {WRONG_PARAMETER}"),
    ({"text_input": "one", "null": None}, 400, f"parameter 'null' {WRONG_PARAMETER}"),
    (
        {"text_input": "one", "parameters": {"a": [1]}},
        400,
        f"Converting keyword: 'parameters': parameter 'a' {WRONG_PARAMETER}",
    ),
    (
        b'{"text_input":"a","text_input":"b"}',
        400,
        "[request id: <id_unknown>] input 'text_input' already exists in request",
    ),
    (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
    (b"[1]", 500, "attempt to get members for non-object"),
    (b'"x"', 500, "attempt to get members for non-object"),
    (
        b'{"text_input":"one"} trailing',
        500,
        "failed to parse the request JSON buffer: The document root must not be followed by other values. at 21",
    ),
]


@pytest.mark.parametrize(("body", "status", "error"), REFUSED_BODIES)
def test_bodies_that_triton_refuses(stock: Client, body: Any, status: int, error: str) -> None:
    reason = {400: "Bad Request", 500: "Internal Server Error"}[status]
    expected = json.dumps({"error": error}, separators=(",", ":")).encode()
    check(stock.ask("POST", STREAM, body), f"{status} {reason}", JSON, expected)


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([1.5], NON_INTEGER),
        ("a", NON_INTEGER),
        ([1, "a"], NON_INTEGER),
        ([[1, 2], [3, 4]], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_token_ids_that_triton_refuses(own: Client, ids: Any, error: str) -> None:
    answer = own.ask("POST", STREAM, {"input_ids": ids})
    assert (answer.status, json.loads(answer.body)) == (500, {"error": error})


def test_a_missing_input(stock: Client) -> None:
    inputs = len(json.loads(stock.ask("GET", "/v2/models/m").body)["inputs"])
    error = (
        f"[request id: <id_unknown>] expected number of inputs between 1 and {inputs} but got 0 inputs for model 'm'. "
        "Got input(s) [], but missing required input(s) ['text_input']. Please provide all required input(s)."
    )
    expected = json.dumps({"error": error}, separators=(",", ":"))
    check(stock.ask("POST", STREAM, {}), "400 Bad Request", JSON, expected.encode())


def test_compressed_bodies_are_refused(stock: Client) -> None:
    answer = stock.ask("POST", STREAM, bare_body(), "Content-Encoding: gzip\r\n")
    expected = b'{"error":"Unsupported content-encoding, only \'identity\' is supported."}'
    check(answer, "400 Bad Request", JSON, expected)


def test_a_model_is_loaded_and_unloaded() -> None:
    """The states that the real server showed, with a load of some time and requests in flight."""
    with running_mock_engine(models=("m",), token_interval_ms=0, load_seconds=0.3) as engine:
        client = Client(engine)

        def index() -> Any:
            return json.loads(client.ask("POST", "/v2/repository/index", {}).body)

        engine.add_fault(match="stalls", stall_after=1)
        stalled = client.send("POST", STREAM, generate_body("this stalls"))
        assert stalled.recv(1) == b"H"
        client.ask("POST", "/v2/repository/models/m/unload", {})
        assert index() == [{"name": "m", "version": "1", "state": "UNLOADING"}]
        assert client.ask("GET", "/v2/health/ready").status == 400
        assert client.ask("GET", "/v2/models/m/ready").status == 400
        no_version = b'{"error":"Request for unknown model: \'m\' has no available versions"}'
        for answer in (client.ask("GET", "/v2/models/m"), client.ask("POST", STREAM, bare_body())):
            check(answer, "404 Not Found", JSON, no_version)

        engine.clear_faults()
        with stalled:
            rest = b""
            while part := stalled.recv(65536):
                rest += part
        assert rest.endswith(b"0\r\n\r\n")
        assert index() == [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
        assert client.ask("GET", "/v2/health/ready").status == 200

        loading = client.send("POST", "/v2/repository/models/m/load", {})
        while index() != [{"name": "m", "version": "1", "state": "LOADING"}]:
            pass
        assert client.ask("GET", "/v2/health/ready").status == 400
        assert b"200 OK" in loading.recv(100)
        loading.close()
        assert index() == [{"name": "m", "version": "1", "state": "READY"}]
        assert client.stream().status == 200


def test_connections_are_kept_alive(own: Client) -> None:
    body = json.dumps(bare_body()).encode()
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (WHOLE.encode(), len(body)) + body
    with own.connect() as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(65536)
            assert b"connection:" not in answer.lower()


def test_chunked_requests(own: Client) -> None:
    body = json.dumps(bare_body()).encode()
    with own.connect() as connection:
        head = f"POST {WHOLE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        connection.sendall(head + b"5\r\n" + body[:5] + b"\r\n")
        connection.sendall(b"%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
