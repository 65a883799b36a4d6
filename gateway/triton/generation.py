"""One generation on one Triton instance: the bytes of `generate` with the meaning of `contract`.

Turns what goes wrong on the way into the error that the client should see. Holds the instance's count
of open requests while it is open.
"""

import logging
from collections.abc import Mapping, Sequence

from gateway.openai.errors import ApiError, internal_error, unavailable
from gateway.routing.instances import Instance
from gateway.triton.contract import Delta, UpstreamError, error_from, parse_response, refusal_text
from gateway.triton.generate import BrokenConnection, ConnectError

_log = logging.getLogger(__name__)


class Generation:
    """`open()`, then `deltas()` until None, and `close()` always.

    `model` is Triton's name; `outputs` are the JSON outputs that `body` asks for; `places` maps the contract's
    names to the client's (`contract.error_from`); `headers` are further lines of the request's head.
    """

    def __init__(
        self,
        instance: Instance,
        model: str,
        body: bytes,
        outputs: Sequence[str],
        places: Mapping[str, str],
        headers: bytes = b"",
    ) -> None:
        self._instance = instance
        self._model = model
        self._backend = instance.models[model].backend
        self._outputs = outputs
        self._places = places
        self._call = instance.connections.call(f"/v2/models/{model}/generate_stream", body, headers)
        self._failure: ApiError | None = None
        self._first: list[Delta] | None = None
        instance.in_flight += 1

    @property
    def connect_seconds(self) -> float:
        return self._call.connect_seconds

    async def open(self) -> None:
        """Send the request and wait for the first response. Until then a refusal is a real status."""
        try:
            status = await self._call.head()
            refusal = await self._call.error_body() if status != 200 else b""
        except ConnectError:
            self._instance.take_out("the Triton server cannot be reached")
            raise unavailable("The inference server cannot be reached.") from None
        except BrokenConnection:
            raise unavailable("The inference server closed the connection before it answered.") from None
        if status != 200:
            raise self._refusal(status, refusal)
        self._first = await self.deltas()

    async def deltas(self) -> list[Delta] | None:
        """What came since the last call, at least one; None at the end.

        An error event is raised on the call after the deltas that came before it, so that a client
        sees the same for every cut of the upstream's bytes.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._failure is not None:
            raise self._failure
        try:
            payloads = await self._call.next()
        except BrokenConnection:
            raise unavailable("The inference server died in the middle of the answer.") from None
        if payloads is None:
            return None
        deltas: list[Delta] = []
        for payload in payloads:
            try:
                deltas.append(parse_response(payload, self._outputs))
            except UpstreamError as error:
                self._failure = self._understood("failed a request", str(error))
                break
            except (ValueError, TypeError, AttributeError):
                self._failure = internal_error("its stream holds an event that is no response")
                break
        if not deltas and self._failure is not None:
            raise self._failure
        return deltas

    def cancel(self, reason: Exception) -> None:
        """Stop the engine's work; whoever waits in `open` or `deltas` gets `reason`."""
        self._call.cancel(reason)

    def close(self) -> None:
        """Let go of the instance; a generation that is not at its end is cancelled."""
        self._call.cancel(RuntimeError("the generation was closed"))
        self._instance.in_flight -= 1

    def _refusal(self, status: int, body: bytes) -> ApiError:
        text = refusal_text(body)
        if status in (404, 503):
            _log.warning("%s answered %d for model %s: %s", self._instance.name, status, self._model, text)
            return unavailable("The model is not ready.")
        return self._understood(f"answered {status}", text)

    def _understood(self, what: str, text: str) -> ApiError:
        error = error_from(text, self._backend, self._places)
        # A client's mistake is its own business; the operator is told of the rest.
        level = logging.INFO if error.status < 500 else logging.WARNING
        _log.log(level, "%s %s for model %s: %s", self._instance.name, what, self._model, text)
        return error
