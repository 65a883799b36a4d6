"""Faults that a test asks for, and which request gets which. Pure but for the event that ends a stall.

A fault is a JSON object, see `Fault`; `POST /mock/faults` adds one, `DELETE /mock/faults` removes all and ends the
stalls. A request gets the oldest fault that fits it; a fault that is used up is gone.
"""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from bench.mock_engine.backend import Values
from bench.mock_engine.tokens import PIECE_BYTES


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _is_piece(text: str) -> str:
    if not 0 < len(text.encode()) <= PIECE_BYTES:
        raise ValueError(f"a token is 1 to {PIECE_BYTES} bytes long")
    return text


Count = Annotated[int, Field(ge=0, strict=True)]
AtLeastOne = Annotated[int, Field(ge=1, strict=True)]
Piece = Annotated[str, AfterValidator(_is_piece)]


class ErrorAfter(_Strict):
    tokens: Count
    error: str


class CloseAfter(_Strict):
    """Exactly one of the two: SSE events (the admission counts), or bytes of the whole response with its head."""

    events: Count | None = None
    bytes: Count | None = None

    @model_validator(mode="after")
    def _one(self) -> "CloseAfter":
        if (self.events is None) == (self.bytes is None):
            raise ValueError("give exactly one of events and bytes")
        return self


class Fault(_Strict):
    """What is to go wrong, for which requests and how often. Everything may be combined."""

    model: str | None = None
    """Only requests to this model."""
    match: str | None = None
    """Only requests whose text_input contains this."""
    request_id: str | None = None
    """Only requests whose id in Triton ends with this: tells the choices of one client's request apart."""
    next: AtLeastOne | None = None
    """Only so many requests; null: all."""

    forget: list[str] = []
    """These sampling parameters and inputs are taken and then forgotten, as a backend with a bug would."""
    error_before: str | None = None
    """This error before the first response (HTTP 400), in place of the admission."""
    error_after: ErrorAfter | None = None
    """This error after so many tokens."""
    finish_reason_error: bool = False
    """vLLM ends the request with finish_reason `error` after admission: an INTERNAL error of ours, an empty last
    response of stock's."""
    stall_before: bool = False
    """Nothing comes, not even the admission, until the faults are deleted or the request is cancelled."""
    stall_after: Count | None = None
    """The engine stops after so many tokens, until the faults are deleted or the request is cancelled."""
    close_after: CloseAfter | None = None
    """The connection is dropped in the middle of the response."""
    merge: AtLeastOne | Annotated[list[AtLeastOne], Field(min_length=1)] | None = None
    """So many tokens in each response; a list: in one response after the other, over and over."""
    token_interval_ms: Annotated[float, Field(ge=0)] | None = None
    """Time between two tokens."""
    split_writes: int | Annotated[list[AtLeastOne], Field(min_length=1)] | None = None
    """The response's bytes, head included, leave in pieces of these sizes, over and over (a number: sizes of 1 to
    64 drawn with this seed), a millisecond apart, whatever the borders of events are. Bytes wait until their piece
    is full or the response ends."""
    text: str | Annotated[list[Piece], Field(min_length=1)] | None = None
    """The model says this, even where it breaks a constraint; a list gives its tokens one by one."""

    def left_of(self, values: Values) -> Values:
        """The inputs of a request without what is forgotten."""
        left = {name: value for name, value in values.items() if name not in self.forget}
        if self.forget and "sampling_parameters" in left:
            with contextlib.suppress(ValueError, AttributeError):
                parameters = json.loads(left["sampling_parameters"][0]).items()
                kept = {name: value for name, value in parameters if name not in self.forget}
                left["sampling_parameters"] = [json.dumps(kept)]
        return left

    def response_sizes(self) -> Iterator[int] | None:
        """The tokens of one response after the other, without end."""
        if self.merge is None:
            return None
        return itertools.cycle(self.merge if isinstance(self.merge, list) else [self.merge])

    def write_sizes(self) -> Iterator[int] | None:
        """The sizes of the pieces, without end."""
        if self.split_writes is None:
            return None
        return _sizes(self.split_writes)


def _sizes(split_writes: int | list[int]) -> Iterator[int]:
    if isinstance(split_writes, list):
        while True:
            yield from split_writes
    rng = random.Random(split_writes)
    while True:
        yield rng.randint(1, 64)


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        self._left: list[tuple[Fault, int | None]] = []
        self._cleared = asyncio.Event()

    def add(self, fault: Fault) -> None:
        self._left.append((fault, fault.next))

    def clear(self) -> None:
        """Removes all, and lets stalled requests go on."""
        self._left.clear()
        self._cleared.set()
        self._cleared = asyncio.Event()

    @property
    def cleared(self) -> asyncio.Event:
        """Set by the next `clear`: hold on to it before waiting."""
        return self._cleared

    def take(self, model: str, prompt: str, request_id: str) -> Fault:
        """The fault of one request; one without any effect if none fits."""
        for place, (fault, left) in enumerate(self._left):
            if fault.model not in (None, model) or (fault.match is not None and fault.match not in prompt):
                continue
            if fault.request_id is not None and not request_id.endswith(fault.request_id):
                continue
            if left == 1:
                del self._left[place]
            elif left is not None:
                self._left[place] = (fault, left - 1)
            return fault
        return Fault()
