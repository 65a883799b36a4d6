"""What tests ask of the mock: faults, cancellation, the record of requests, the states of server and models."""

import json
import socket
import time
from typing import Any

import pytest

from bench.mock_engine.running import MockEngineError, running_mock_engine

from .conftest import Answer, Client, generate_body, read_answer

STREAM = "/v2/models/m/generate_stream"
LONG = {"max_tokens": 1000, "ignore_eos": True}


def open_stream(client: Client, prompt: str, sampling: Any = None, **inputs: Any) -> socket.socket:
    """A stream of which the first bytes have come."""
    connection = client.send("POST", STREAM, generate_body(prompt, sampling or LONG, **inputs))
    assert connection.recv(4) == b"HTTP"
    return connection


def ended(client: Client, match: str) -> dict[str, Any]:
    (request,) = client.engine.wait_for_requests(1, match)
    return request


# Cancellation


def test_a_closed_stream_is_cancelled_at_once(own: Client) -> None:
    own.engine.add_fault(match="go away", stall_after=3)
    open_stream(own, "go away").close()
    request = ended(own, "go away")
    assert request["ended"] == "cancelled"
    assert request["tokens"] <= 3
    assert request["seconds_from_close_to_cancel"] < 5
    assert own.engine.state()["in_flight"] == 0


def test_a_half_closed_stream_is_cancelled(own: Client) -> None:
    own.engine.add_fault(match="half", stall_after=3)
    with open_stream(own, "half") as connection:
        connection.shutdown(socket.SHUT_WR)
        assert ended(own, "half")["ended"] == "cancelled"


def test_after_the_admission_a_close_is_seen_before_the_first_token(own: Client) -> None:
    own.engine.add_fault(match="queued", stall_after=0)
    open_stream(own, "queued", send_admission=True).close()
    request = ended(own, "queued")
    assert (request["ended"], request["admitted"], request["tokens"]) == ("cancelled", True, 0)


def test_before_the_first_response_a_close_is_not_seen(own: Client) -> None:
    own.engine.add_fault(match="queued", stall_after=0)
    own.send("POST", STREAM, generate_body("queued")).close()
    time.sleep(0.2)
    assert own.engine.state()["in_flight"] == 1
    own.engine.clear_faults()
    assert ended(own, "queued")["ended"] == "cancelled"


def test_generate_is_never_cancelled(own: Client) -> None:
    body = generate_body("whole", LONG | {"max_tokens": 50}, stream=False)
    own.send("POST", "/v2/models/m/generate", body).close()
    request = ended(own, "whole")
    assert (request["ended"], request["tokens"]) == ("finished", 50)


def test_the_stock_backend_sees_a_close_only_at_its_next_output(stock: Client) -> None:
    # After the first token, so that no further output can show the close.
    stock.engine.add_fault(match="go away", stall_after=1)
    open_stream(stock, "go away").close()
    time.sleep(0.2)
    assert stock.engine.state()["in_flight"] == 1
    stock.engine.clear_faults()
    request = ended(stock, "go away")
    assert request["ended"] == "cancelled"
    # It came there a little after it was made here.
    assert request["seconds_from_close_to_cancel"] >= 0.1


# Faults


def test_faults_fit_requests_by_model_prompt_and_number(own: Client) -> None:
    own.engine.add_fault(match="alpha", next=2, error_before="first")
    own.engine.add_fault(match="alpha", next=1, error_before="second")
    own.engine.add_fault(model="other", error_before="third")

    def outcome(prompt: str, model: str = "m") -> str | None:
        answer = own.ask("POST", f"/v2/models/{model}/generate_stream", generate_body(prompt))
        error: str | None = answer.events[0].get("error")
        return error

    assert [outcome("an alpha"), outcome("beta"), outcome("alpha"), outcome("alpha"), outcome("alpha")] == [
        "first", None, "first", "second", None,
    ]  # fmt: skip
    assert [outcome("beta", "other"), outcome("beta", "other")] == ["third", "third"]


def test_a_fault_fits_a_request_by_the_end_of_its_id(own: Client) -> None:
    own.engine.add_fault(request_id="-1", text=["on", "e"])

    def text(**inputs: Any) -> str:
        return own.stream("which?", **inputs).text

    assert text(id="a-1") == "one"
    assert "one" not in (text(), text(id="a-10"))


def test_integers_of_any_size_are_shown(own: Client) -> None:
    own.stream("large", {"extra_args": {"n": 10**400}})
    assert ended(own, "large")["sampling_parameters"]["extra_args"]["n"] == 10**400


def test_a_list_of_text_is_what_the_model_says_token_by_token(own: Client) -> None:
    own.engine.add_fault(text=["a", " b", "\N{EURO SIGN}"])
    events = own.stream("spell", {"max_tokens": 9}).events
    assert [event["text_output"] for event in events] == ["a", " b", "\N{EURO SIGN}", ""]
    assert events[-1]["finish_reason"] == "stop"


def test_what_is_forgotten_is_taken_but_not_obeyed(own: Client) -> None:
    own.engine.add_fault(match="drop", forget=["max_tokens", "return_finish_reason"])
    kept, dropped = (own.stream(f"{what} it", {"max_tokens": 2, "ignore_eos": True}) for what in ("keep", "drop"))
    assert (len(kept.events), len(dropped.events)) == (2, 16)
    assert "finish_reason" in kept.events[-1]
    assert "finish_reason" not in dropped.events[-1]
    assert own.engine.requests()[-1]["sampling_parameters"]["max_tokens"] == 2


def test_an_error_after_tokens_leaves_what_was_produced(own: Client) -> None:
    own.engine.add_fault(error_after={"tokens": 5, "error": "INTERNAL: died"}, merge=3)
    *responses, last = own.stream(sampling=LONG, send_admission=True).events
    assert [response["num_output_tokens"] for response in responses] == [0, 3, 2]
    assert last == {"error": "INTERNAL: died"}
    assert own.engine.requests()[-1]["error"] == "INTERNAL: died"


def test_stall_before_holds_the_admission_back(own: Client) -> None:
    own.engine.add_fault(match="stall", stall_before=True)
    connection = own.send("POST", STREAM, generate_body("stall", send_admission=True))
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    own.engine.clear_faults()
    connection.settimeout(10)
    assert read_answer(connection).events[0]["num_output_tokens"] == 0


def test_a_stall_goes_on_where_it_was_when_faults_are_deleted(own: Client) -> None:
    whole = own.stream("hold on")
    own.engine.add_fault(match="hold on", stall_after=4)
    connection = own.send("POST", STREAM, generate_body("hold on"))
    time.sleep(0.1)
    assert own.engine.requests("hold on")[-1]["tokens"] == 4
    own.engine.clear_faults()
    assert read_answer(connection).body == whole.body


@pytest.mark.parametrize("events", [0, 1, 3])
def test_the_connection_is_dropped_after_events(own: Client, events: int) -> None:
    own.engine.add_fault(close_after={"events": events})
    with own.send("POST", STREAM, generate_body("x", LONG)) as connection:
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.count(b"data: ") == events
    assert not received.endswith(b"0\r\n\r\n")
    assert ended(own, "x")["ended"] == "dropped"


@pytest.mark.parametrize("count", [0, 10, 100, 200])
def test_the_connection_is_dropped_after_bytes(own: Client, count: int) -> None:
    own.engine.add_fault(close_after={"bytes": count})
    with own.send("POST", STREAM, generate_body("x", LONG)) as connection:
        received = b""
        while part := connection.recv(65536):
            received += part
    assert len(received) == count


def test_a_stream_interval_merges_tokens_too(own: Client) -> None:
    events = own.stream(sampling={"max_tokens": 10, "ignore_eos": True, "stream_interval": 4}).events
    assert [event["num_output_tokens"] for event in events] == [4, 4, 2]


def test_merged_tokens_are_the_same_answer(either: Client) -> None:
    single = either.stream(sampling={"max_tokens": 50, "logprobs": 1}, return_logprobs=True)
    either.engine.add_fault(merge=7)
    merged = either.stream(sampling={"max_tokens": 50, "logprobs": 1}, return_logprobs=True)
    assert [event["num_output_tokens"] for event in merged.events] == [7] * 7 + [1]
    assert merged.text == single.text

    def logprobs(answer: Answer) -> list[Any]:
        return [position for event in answer.events for position in json.loads(event["logprobs"])]

    assert logprobs(merged) == logprobs(single)


def test_responses_have_the_sizes_that_a_test_asks_for(own: Client) -> None:
    own.engine.add_fault(merge=[2, 5])
    events = own.stream(sampling={"max_tokens": 10, "ignore_eos": True}).events
    assert [event["num_output_tokens"] for event in events] == [2, 5, 2, 1]


def test_tokens_come_at_their_pace(own: Client) -> None:
    own.engine.add_fault(token_interval_ms=20)
    began = time.monotonic()
    own.stream(sampling={"max_tokens": 10})
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("split_writes", [[1], [3, 50, 7], [100_000], 42])
def test_cut_bytes_are_the_same_bytes(own: Client, split_writes: Any) -> None:
    sampling = {"max_tokens": 3}
    whole = own.stream(sampling=sampling)
    own.engine.add_fault(split_writes=split_writes)
    assert own.stream(sampling=sampling) == whole


def test_cut_bytes_come_in_pieces(own: Client) -> None:
    own.engine.add_fault(split_writes=[40])
    with own.send("POST", STREAM, generate_body("x", {"max_tokens": 2})) as connection:
        sizes = []
        while part := connection.recv(65536):
            sizes.append(len(part))
    # A slow reader may find several pieces at once.
    assert len(sizes) > 1
    assert all(size % 40 == 0 for size in sizes[:-1])


def test_finish_reason_error(own: Client, stock: Client) -> None:
    for client in (own, stock):
        client.engine.add_fault(finish_reason_error=True)
    constraint = {"json": {"type": "object"}}
    admission, error = own.stream(sampling={"structured_outputs": constraint}, send_admission=True).events
    assert admission["num_output_tokens"] == 0
    assert error["error"].startswith("INTERNAL: ")
    assert "structured_outputs.json" in error["error"]
    (last,) = stock.stream(sampling={"structured_outputs": json.dumps(constraint)}).events
    assert (last["finish_reason"], last["text_output"], last["num_output_tokens"]) == ("error", "", 0)


def test_the_model_says_what_it_is_told(own: Client) -> None:
    own.engine.add_fault(text="not JSON at all")
    answer = own.stream(sampling={"structured_outputs": {"json": {"type": "object"}}})
    assert answer.text == "not JSON at all"
    assert answer.events[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ({"unknown": 1}, "unknown"),
        ({"next": 0}, "next"),
        ({"close_after": {}}, "close_after"),
        ({"close_after": {"events": 1, "bytes": 1}}, "close_after"),
        ({"split_writes": []}, "split_writes"),
        ({"error_after": {"tokens": 1}}, "error_after.error"),
        ({"model": "nope"}, "model"),
        ({"text": ["more"]}, "text"),
    ],
)
def test_a_wrong_fault_is_refused(own: Client, fault: dict[str, Any], place: str) -> None:
    with pytest.raises(MockEngineError, match=place):
        own.engine.add_fault(**fault)


# Requests and states


def test_requests_are_remembered(own: Client) -> None:
    own.stream("remember me", {"max_tokens": 3, "stop": ["x"]}, id="abc")
    (request,) = own.engine.requests("remember")
    assert request["sampling_parameters"] == {"max_tokens": 3, "stop": ["x"]}
    assert request["inputs"]["text_input"] == "remember me"
    assert request["inputs"]["stream"] is True
    assert (request["model"], request["endpoint"]) == ("m", "generate_stream")
    assert (request["admitted"], request["tokens"], request["responses"], request["ended"]) == (True, 3, 3, "finished")
    own.engine.forget_requests()
    assert own.engine.requests() == []


async def test_waiting_for_requests(own: Client) -> None:
    own.stream("wait for me", {"max_tokens": 3})
    (request,) = await own.engine.requests_ended(1, "wait for me")
    assert request["ended"] == "finished"
    with pytest.raises(MockEngineError, match="not 2 requests have ended"):
        await own.engine.requests_ended(2, "wait for me", within=0.05)


def test_refused_requests_are_remembered(own: Client) -> None:
    own.stream("bad", {"nope": 1})
    (request,) = own.engine.requests("bad")
    assert (request["admitted"], request["ended"]) == (False, "error")
    assert request["error"].startswith("INVALID_ARG sampling_parameters.nope: ")
    own.ask("POST", STREAM, b"no JSON")
    assert own.engine.requests()[-1]["error"].startswith("failed to parse the request JSON buffer")


def test_states(own: Client) -> None:
    def status(path: str) -> int:
        return own.ask("GET", path).status

    own.engine.set_state(ready=False)
    assert (status("/v2/health/live"), status("/v2/health/ready"), status("/v2/models/m/ready")) == (200, 400, 200)
    own.engine.set_state(ready=True, models={"m": {"ready": False}})
    assert (status("/v2/health/ready"), status("/v2/models/m/ready"), status("/v2/models/other/ready")) == (
        400,
        400,
        200,
    )
    assert own.stream().status == 404
    own.engine.set_state(live=False, models={"m": {"ready": True}})
    assert (status("/v2/health/live"), status("/v2/health/ready"), own.stream().status) == (400, 400, 200)
    with pytest.raises(MockEngineError, match="nope"):
        own.engine.set_state(models={"nope": {"ready": True}})


def test_many_requests_at_once_do_not_disturb_each_other(own: Client) -> None:
    own.engine.add_fault(match="odd", error_after={"tokens": 2, "error": "INTERNAL: odd"})
    connections = [
        own.send("POST", STREAM, generate_body(f"{'odd' if number % 2 else 'even'} {number}", {"max_tokens": 20}))
        for number in range(60)
    ]
    for number, connection in enumerate(connections):
        events = read_answer(connection).events
        assert (events[-1] == {"error": "INTERNAL: odd"}) == bool(number % 2)


def test_a_port_that_is_taken(own: Client, capfd: pytest.CaptureFixture[str]) -> None:
    port = own.engine.url.rsplit(":", 1)[1]
    with pytest.raises(MockEngineError, match="exit code 1"), running_mock_engine(port=port):
        pass
    assert capfd.readouterr().err == f"cannot listen on 127.0.0.1:{port}: Address already in use.\n"
