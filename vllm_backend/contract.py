"""What this backend and its clients agree on: the tensors of a request and of its responses, and the error texts.

Only constants, small value types and the error classes belong here: no I/O, no vLLM, no Triton. The tensor tables are
the one source for `auto_complete_config`, for reading a request and for building a response."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output, in the words of `config.pbtxt`."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


TEXT_INPUT = "text_input"
INPUT_IDS = "input_ids"
STREAM = "stream"
SAMPLING_PARAMETERS = "sampling_parameters"
EXCLUDE_INPUT_IN_OUTPUT = "exclude_input_in_output"
SEND_ADMISSION = "send_admission"
ADD_SPECIAL_TOKENS = "add_special_tokens"
PRIORITY = "priority"
TRUNCATE_PROMPT_TOKENS = "truncate_prompt_tokens"
TRUNCATION_SIDE = "truncation_side"
CACHE_SALT = "cache_salt"
SESSION_ID = "session_id"
REASONING_ENDED = "reasoning_ended"
BATCHED_EGRESS = "batched_egress"
SUBSCRIBER = "subscriber"
STREAM_ID = "stream_id"
ACKNOWLEDGED = "acknowledged"
RESUME = "resume"
CANCELLED = "cancelled"
IMAGE = "image"
EMBEDDING_REQUEST = "embedding_request"

TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
CUMULATIVE_LOGPROB = "cumulative_logprob"
LOGPROBS = "logprobs"
NUM_INPUT_TOKENS = "num_input_tokens"
NUM_OUTPUT_TOKENS = "num_output_tokens"
PROMPT_LOGPROBS = "prompt_logprobs"
TOKEN_IDS = "token_ids"
PROMPT_TOKEN_IDS = "prompt_token_ids"
STOP_REASON = "stop_reason"
NUM_OUTPUT_CHARACTERS = "num_output_characters"

OUTPUTS = (
    Tensor(TEXT_OUTPUT, "TYPE_STRING", (-1,)),
    Tensor(FINISH_REASON, "TYPE_STRING", (-1,)),
    Tensor(CUMULATIVE_LOGPROB, "TYPE_FP32", (-1,)),
    Tensor(LOGPROBS, "TYPE_STRING", (-1,)),
    Tensor(NUM_INPUT_TOKENS, "TYPE_UINT32", (1,)),
    Tensor(NUM_OUTPUT_TOKENS, "TYPE_UINT32", (-1,)),
    Tensor(PROMPT_LOGPROBS, "TYPE_STRING", (-1,)),
    Tensor(TOKEN_IDS, "TYPE_STRING", (-1,)),
    Tensor(PROMPT_TOKEN_IDS, "TYPE_STRING", (-1,)),
    Tensor(STOP_REASON, "TYPE_STRING", (-1,)),
    Tensor(NUM_OUTPUT_CHARACTERS, "TYPE_UINT32", (1,)),
)

RETURN_FLAGS = {
    f"return_{output.name}": output.name
    for output in OUTPUTS
    if output.name not in (TEXT_OUTPUT, NUM_OUTPUT_CHARACTERS)
}
"""The BOOL input that asks for an output, to that output's name. `text_output` is always sent, and the number of
characters in the final response of batched egress alone."""

INPUTS = (
    Tensor(TEXT_INPUT, "TYPE_STRING", (1,), optional=True),
    Tensor(INPUT_IDS, "TYPE_INT64", (-1,), optional=True),
    Tensor(STREAM, "TYPE_BOOL", (1,), optional=True),
    Tensor(SAMPLING_PARAMETERS, "TYPE_STRING", (1,), optional=True),
    Tensor(EXCLUDE_INPUT_IN_OUTPUT, "TYPE_BOOL", (1,), optional=True),
    Tensor(SEND_ADMISSION, "TYPE_BOOL", (1,), optional=True),
    Tensor(ADD_SPECIAL_TOKENS, "TYPE_BOOL", (1,), optional=True),
    Tensor(PRIORITY, "TYPE_INT32", (1,), optional=True),
    Tensor(TRUNCATE_PROMPT_TOKENS, "TYPE_INT64", (1,), optional=True),
    Tensor(TRUNCATION_SIDE, "TYPE_STRING", (1,), optional=True),
    Tensor(CACHE_SALT, "TYPE_STRING", (1,), optional=True),
    Tensor(SESSION_ID, "TYPE_STRING", (1,), optional=True),
    Tensor(REASONING_ENDED, "TYPE_BOOL", (1,), optional=True),
    *(Tensor(flag, "TYPE_BOOL", (1,), optional=True) for flag in RETURN_FLAGS),
    Tensor(BATCHED_EGRESS, "TYPE_BOOL", (1,), optional=True),
    Tensor(SUBSCRIBER, "TYPE_STRING", (1,), optional=True),
    Tensor(STREAM_ID, "TYPE_INT64", (1,), optional=True),
    Tensor(ACKNOWLEDGED, "TYPE_INT64", (1,), optional=True),
    Tensor(RESUME, "TYPE_STRING", (1,), optional=True),
    Tensor(CANCELLED, "TYPE_STRING", (1,), optional=True),
    Tensor(IMAGE, "TYPE_STRING", (-1,), optional=True),
    Tensor(EMBEDDING_REQUEST, "TYPE_STRING", (1,), optional=True),
)

NOT_YET_SUPPORTED = (IMAGE, EMBEDDING_REQUEST)
"""Inputs of the stock contract that are declared, so that their refusal is ours and says so."""

CACHE_SALT_LENGTH = 128
CACHE_SALT_FORBIDDEN = "@/\\\0"
"""At most so many characters, and none of these: the rule of vLLM's own server, since the salt reaches the names that
stores behind the prefix cache use."""

SESSION_ID_LENGTH = 1024
"""At most so many characters; vLLM sets no limit."""

EGRESS_VERSION = 1
"""Of the protocol in EGRESS.md, as the first message of a subscription says it."""

SUBSCRIBER_PATTERN = r"[0-9a-f-]{16,64}"
"""Who knows a subscriber's name can take over its streams, so it is chosen at random."""

UNFINISHED = "None"
"""The text of `finish_reason` in every response but the last."""


class RequestError(Exception):
    """A request's failure as its client reads it. Triton's HTTP turns every error code into 400, so the text carries
    it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class InvalidArgument(RequestError):
    """The client's fault: `INVALID_ARG <place>: <sentence>`.

    `place` is an input's name, `sampling_parameters.<key>`, or `prompt` when the prompt's own length is wrong.
    """

    def __init__(self, place: str, sentence: str) -> None:
        super().__init__(f"INVALID_ARG {place}: {sentence}")
        self.place = place


class Unavailable(RequestError):
    """The engine is gone, busy or going away; the same request may succeed elsewhere or later: `UNAVAILABLE:
    <sentence>`."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"UNAVAILABLE: {sentence}")


class Internal(RequestError):
    """The engine's fault: `INTERNAL: <sentence>`."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"INTERNAL: {sentence}")


class StartError(Exception):
    """Why the model cannot be loaded, in one sentence for the operator."""
