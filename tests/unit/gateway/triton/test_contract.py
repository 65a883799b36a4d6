"""Request bodies, responses and error texts of both backends."""

import json
from typing import Any

import pytest

from gateway.openai import pieces
from gateway.openai.errors import ApiError
from gateway.triton import contract
from gateway.triton.contract import (
    Backend,
    Delta,
    Encoded,
    GenerateRequest,
    ModelContract,
    UpstreamError,
    Written,
    is_text,
    request_body,
)

SCHEMA = {"json": {"type": "object", "properties": {"b": {}, "a": {"enum": [10**30]}}}}

PLACES = {"prompt": "messages", "extra_args": "vllm_xargs", "logprobs": "top_logprobs"}


def body(backend: Backend, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    context_len = changes.pop("context_len", 4096)
    options: dict[str, Any] = {
        "prompt": "p",
        "sampling": {"temperature": 0.5, "max_tokens": None},
        "request_id": "r-1",
    } | changes
    inputs = json.loads(contract.request_body(backend, GenerateRequest(**options), context_len))
    return inputs, json.loads(inputs.pop("sampling_parameters"))


def test_a_request_to_our_backend() -> None:
    inputs, sampling = body(Backend.OURS, constraint=SCHEMA)
    assert inputs == {
        "id": "r-1",
        "text_input": "p",
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "send_admission": True,
        "add_special_tokens": False,
    }
    assert sampling == {"temperature": 0.5, "max_tokens": None, "structured_outputs": SCHEMA}
    assert list(sampling["structured_outputs"]["json"]["properties"]) == ["b", "a"]


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("prompt", ['a "日本 🎉"\n\\' * 9000, "", [1, 2**31 - 1], list(range(90_000))])
def test_an_encoded_prompt_makes_the_same_body(backend: Backend, prompt: str | list[int]) -> None:
    request = GenerateRequest(prompt, {"max_tokens": 5}, request_id="x")
    encoded = Encoded.of(prompt)
    assert request_body(backend, request._replace(prompt=encoded), 9) == request_body(backend, request, 9)
    assert (len(encoded), is_text(encoded)) == (len(prompt), is_text(prompt))


@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("prompt", ["p", [1, 2]])
def test_written_parameters_make_the_same_body(backend: Backend, prompt: str | list[int]) -> None:
    sampling = {
        "max_tokens": 5,
        "logit_bias": {str(number): number / 7 for number in range(5000)},
        "bad_words": ['a "日本 🎉"\n\\' * 9000, "b"],
        "allowed_token_ids": list(range(9000)),
    }
    request = GenerateRequest(prompt, sampling, SCHEMA, request_id="x")
    written = {name: value if name == "max_tokens" else Written.of(value) for name, value in sampling.items()}
    for one in (request, request._replace(prompt=Encoded.of(prompt))):
        assert request_body(backend, one._replace(sampling=written), 9) == request_body(backend, request, 9)


def test_what_only_some_requests_send() -> None:
    inputs, _ = body(
        Backend.OURS, prompt=[1, 2], add_special_tokens=True, inputs={"priority": -1}, outputs=("logprobs", "token_ids")
    )
    assert inputs["input_ids"] == [1, 2]
    # Token ids are complete: there is nothing to add to them.
    assert not inputs.keys() & {"text_input", "add_special_tokens"}
    assert inputs["priority"] == -1
    assert inputs["return_logprobs"] is inputs["return_token_ids"] is True


def test_a_request_to_the_stock_backend_holds_nothing_that_breaks_it() -> None:
    inputs, sampling = body(Backend.STOCK, constraint=SCHEMA)
    assert not inputs.keys() & {"send_admission", "add_special_tokens"}
    # No null, an explicit limit (absent means 16), and the constraint as JSON text.
    constraint = sampling.pop("structured_outputs")
    assert isinstance(constraint, str)
    assert json.loads(constraint) == SCHEMA
    assert sampling == {"temperature": 0.5, "max_tokens": 4096}


def test_the_stock_backend_needs_a_limit() -> None:
    with pytest.raises(ApiError, match="max_model_len") as caught:
        body(Backend.STOCK, context_len=None)
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


def test_the_backend_is_told_by_its_optional_input() -> None:
    stock = {"inputs": [{"name": "text_input"}, {"name": "sampling_parameters"}]}
    assert contract.contract_of(stock) == ModelContract(
        Backend.STOCK, frozenset({"text_input", "sampling_parameters"})
    )
    assert contract.contract_of({"inputs": [*stock["inputs"], {"name": "send_admission"}]}).backend is Backend.OURS


@pytest.mark.parametrize("version", ["2.65.0", "2.73.0", "3.0.0"])
def test_stock_backends_from_26_01_are_supported(version: str) -> None:
    assert contract.stock_is_too_old(version) is None


@pytest.mark.parametrize("version", ["2.64.1", "2.51.0", "1.99.0", "", "unknown"])
def test_an_older_stock_backend_is_refused_in_one_sentence(version: str) -> None:
    reason = contract.stock_is_too_old(version)
    assert reason is not None
    assert "26.01" in reason
    assert "accept_old_triton" in reason


def test_responses() -> None:
    middle = b'{"text_output":"a","finish_reason":"None","num_input_tokens":3,"num_output_tokens":2}'
    assert contract.parse_response(middle) == Delta("a", None, 3, 2)
    last = b'{"text_output":"","finish_reason":"length","num_input_tokens":3,"num_output_tokens":1}'
    assert contract.parse_response(last) == Delta("", "length", 3, 1)
    with pytest.raises(UpstreamError, match="INTERNAL: x"):
        contract.parse_response(b'{"error":"INTERNAL: x"}')
    asked = (
        b'{"text_output":"a","logprobs":"[{\\"5\\":{\\"rank\\":1}}]","token_ids":"[5]","stop_reason":"\\"x\\""}'
    )
    outputs = contract.parse_response(asked, ("logprobs", "token_ids", "stop_reason", "prompt_token_ids")).outputs
    expected = {"logprobs": [{"5": {"rank": 1}}], "token_ids": [5], "stop_reason": "x", "prompt_token_ids": None}
    assert outputs == expected
    for wrong in (b'{"text_output":5}', b'{"text_output":"a","num_output_tokens":"1"}'):
        with pytest.raises(ValueError, match="wrong type"):
            contract.parse_response(wrong)
    with pytest.raises(ValueError, match="JSON"):
        contract.parse_response(b"<html>")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":"a"}', "a"),
        (b'data: {"error":"a"}\n\n', "a"),
        (b"<html>oh</html>", "<html>oh</html>"),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_both_forms_of_a_refusal(body: bytes, text: str) -> None:
    assert contract.refusal_text(body) == text


@pytest.mark.parametrize(
    ("text", "status", "param", "message"),
    [
        ("INVALID_ARG sampling_parameters.top_k: must be an integer", 400, "top_k", "top_k: must be an integer"),
        ("INVALID_ARG sampling_parameters.extra_args.k: bad", 400, "vllm_xargs.k", "vllm_xargs.k: bad"),
        ("INVALID_ARG sampling_parameters.logprobs: no", 400, "top_logprobs", "top_logprobs: no"),
        ("INVALID_ARG input_ids: no", 400, "messages", "messages: no"),
        ("INVALID_ARG prompt: 9 tokens are too many", 400, "messages", "messages: 9 tokens are too many"),
        ("[request id: x] INVALID_ARG prompt: too: long", 400, "messages", "messages: too: long"),
        ("UNAVAILABLE: The engine is dead.", 503, None, "The engine is dead."),
        ("Stub process 'm_0_0' is not healthy.", 503, None, "The engine is not running."),
        ("INVALID_ARG prompt: Stub process 'x' is not healthy", 400, "messages", "messages: Stub"),
        ("INTERNAL: the json constraint failed", 500, None, "The engine failed: the json constraint failed."),
        ("Traceback (most recent call last): /opt/x.py", 500, None, "The engine failed: the inference server refused"),
    ],
)
def test_our_errors_say_whose_fault_it_was(text: str, status: int, param: str | None, message: str) -> None:
    error = contract.error_from(text, Backend.OURS, PLACES)
    assert (error.status, error.param) == (status, param)
    assert error.message.startswith(message)
    assert "Traceback" not in error.message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "sampling_parameters.min_p: is not a sampling parameter of this backend.",
            "unsupported_parameter",
            "min_p: is not a sampling parameter of this backend.",
        ),
        ("priority: set scheduling_policy to priority.", "invalid_value", "priority: set scheduling_policy"),
        ("sampling_parameters.seed: seed is too large.", "invalid_value", "seed is too large."),
        ("prompt: it exceeds the context.", "context_length_exceeded", "messages: it exceeds"),
    ],
)
def test_a_refusal_of_ours_has_a_code_and_begins_with_its_place(text: str, code: str, message: str) -> None:
    error = contract.error_from(f"INVALID_ARG {text}", Backend.OURS, PLACES)
    assert error.code == code
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "status", "param"),
    [
        ("Error generating stream: Grammar error: Invalid type: nope", 400, None),
        (
            "Error generating stream: This model's maximum context length is 64 tokens. However, your prompt contains "
            "at least 65 input tokens",
            400,
            "messages",
        ),
        ("Error generating stream: EngineDeadError", 503, None),
        ("Error generating stream: 'NoneType' object has no attribute 'lora_name'", 500, None),
        ("Error generating stream: cannot connect to 10.0.0.7:5555 (/opt/x.py line 3)", 500, None),
        ("Grammar error: bad\nAt:\n  /opt/tritonserver/backends/vllm/model.py(123)", 400, None),
        ("Stub process 'm_0_0' is not healthy.", 503, None),
        # The prefix is ours alone: from another backend it proves nothing.
        ("UNAVAILABLE: x", 500, None),
    ],
)
def test_stock_errors_are_told_apart_where_they_can_be(text: str, status: int, param: str | None) -> None:
    error = contract.error_from(text, Backend.STOCK, PLACES)
    assert (error.status, error.param) == (status, param)
    assert "NoneType" not in error.message
    assert "/opt" not in error.message


def of_prompt(text: str) -> Any:
    event = json.dumps({"text_output": "a", "num_output_tokens": 1, "prompt_logprobs": text}).encode()
    return contract.parse_response(event, ("prompt_logprobs",)).outputs["prompt_logprobs"]


def test_a_long_prompts_log_probabilities_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"logprob": -0.1, "rank": 1, "decoded_token": ' "é'}
    positions = [None, *({str(token): entry for token in range(20)} for _ in range(4000))]
    text = json.dumps(positions)
    unread = of_prompt(text)
    assert isinstance(unread, contract.Unread)
    assert len(unread) == len(text)
    lengths: list[int] = []
    at_once = pieces.at_once

    def measured(piece: bytes, *, allow_inf_nan: bool) -> Any:
        lengths.append(len(piece))
        return at_once(piece, allow_inf_nan=allow_inf_nan)

    monkeypatch.setattr(pieces, "at_once", measured)
    # More lists and objects than a client may send.
    assert unread.read() == positions
    assert max(lengths) < 2 * pieces.PIECE
    assert of_prompt("[null]") == [None]


def test_log_probabilities_that_are_no_json() -> None:
    with pytest.raises(ApiError, match="its stream holds an event that is no response") as caught:
        of_prompt("[null" * 10_000).read()
    assert caught.value.status == 500
