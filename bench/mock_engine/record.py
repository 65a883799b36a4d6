"""What the mock remembers of the requests it received, for tests to look at. Pure."""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.mock_engine.backend import Tensor
from bench.mock_engine.inputs import Body

_KEPT = 10_000
_SHOWN_PROMPT_IDS = 32

End = Literal["finished", "cancelled", "error", "dropped"]
"""`error`: the request was refused or failed. `dropped`: a fault closed the connection."""


@dataclass(slots=True)
class Record:
    """One generate request as `GET /mock/requests` shows it."""

    id: int
    model: str
    endpoint: Literal["generate", "generate_stream"]
    headers: dict[str, str]
    inputs: dict[str, Any]
    """The input tensors by name: a value for one of shape [1], else a list."""
    request_id: str | None = None
    """Triton's id of the request, as its client gave it."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Keys of the body that are no input of the model, so that its backend ignores them."""
    sampling_parameters: Any = None
    """The decoded text; null if it is absent or no JSON."""
    num_input_tokens: int | None = None
    first_prompt_token_ids: list[int] = field(default_factory=list)
    admitted: bool = False
    """The request was valid and reached the engine."""
    responses: int = 0
    tokens: int = 0
    ended: End | None = None
    """null: it is still in flight."""
    error: str | None = None
    seconds_from_close_to_cancel: float | None = None
    """From the moment the client's connection was gone to the end of the work for it."""

    def read(self, body: Body, tensors: tuple[Tensor, ...]) -> None:
        single = {tensor.name for tensor in tensors if tensor.dims == (1,)}
        self.inputs = {name: value[0] if name in single else value for name, value in body.values.items()}
        self.request_id, self.parameters = body.request_id, body.parameters
        with suppress(KeyError, ValueError):
            self.sampling_parameters = json.loads(self.inputs["sampling_parameters"])

    def admit(self, ids: list[int]) -> None:
        self.admitted = True
        self.num_input_tokens = len(ids)
        self.first_prompt_token_ids = ids[:_SHOWN_PROMPT_IDS]


class Records:
    """The newest requests, oldest first."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=_KEPT)
        self._next_id = 1

    def open(self, model: str, endpoint: Literal["generate", "generate_stream"], headers: dict[str, str]) -> Record:
        record = Record(self._next_id, model, endpoint, headers, {})
        self._next_id += 1
        self._records.append(record)
        return record

    def clear(self) -> None:
        self._records.clear()

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)
