"""Errors in OpenAI's shape, made in one place. Pure: no I/O, nothing about HTTP servers.

Every refusal inside the gateway is an `ApiError`; the edge turns it into a response (`body`) or,
after the head of a stream has left, into an SSE event (`gateway.openai.sse`).
"""

from collections.abc import Mapping
from typing import Any

import orjson

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "unavailable_error",
    504: "timeout_error",
}


# Of a message and of a place: both may hold a name that a client made up, which may be as long as its body.
_MAX_MESSAGE = 4000
_MAX_PARAM = 500

# A model that was lost is loaded again in some tens of seconds; a client that asks every five is no burden.
_RETRY_AFTER_S = "5"


class ApiError(Exception):
    """A refusal or failure as the client sees it.

    `param` names the place in the request, such as `response_format.json_schema.schema.properties.a.not`;
    `message` says what is wrong and what to do, and holds no internal address.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def of(self, whom: str) -> "ApiError":
        """The same error, which says whom of several it met."""
        message = f"{whom}: {self.message}"
        return ApiError(self.status, message, param=self.param, code=self.code, headers=self.headers)

    def as_dict(self) -> dict[str, Any]:
        return {
            "error": {
                "message": _shortened(self.message, _MAX_MESSAGE),
                "type": _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "internal_error"),
                "param": None if self.param is None else _shortened(self.param, _MAX_PARAM),
                "code": self.code,
            }
        }

    def body(self) -> bytes:
        return orjson.dumps(self.as_dict())


def _shortened(text: str, limit: int) -> str:
    """The beginning and the end, where what to do stands."""
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The client's mistake; `code` is a stable word for programs."""
    return ApiError(400, message, param=param, code=code)


def not_supported_yet(what: str, param: str | None = None) -> ApiError:
    """Something known whose feature is still to come: refused, never dropped. `param` is `what` unless given."""
    return bad_request(f"{what} is not supported yet; remove it.", param or what, "unsupported_parameter")


def unavailable(message: str) -> ApiError:
    """No engine can answer now; the same request may succeed in a moment."""
    return ApiError(503, message, code="engine_unavailable", headers={"retry-after": _RETRY_AFTER_S})


def internal_error(reason: str) -> ApiError:
    """The engine's fault; `reason` continues the sentence."""
    return ApiError(500, f"The engine failed: {reason.removesuffix('.')}.", code="engine_error")


def forget_where(error: BaseException) -> None:
    """It ends a request: where it was raised, and whatever else was raised on the way.

    All that the request had is known there, and what it had knows the error, so that only the garbage collector would
    find that it is over, and free megabytes at once.
    """
    at: BaseException | None = error
    while at is not None:
        at.__traceback__ = None
        at = at.__cause__ or at.__context__
    error.__cause__ = error.__context__ = None
