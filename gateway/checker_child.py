"""The child of `gateway.checker`: reads requests from stdin, writes answers to stdout, one at a time.

`python -m gateway.checker_child DEADLINE`. It ends when stdin ends, when its parent kills it, or, should
the parent be gone while a check runs, by its own timer after twice the deadline.
"""

import resource
import signal
import sys
import traceback
from typing import Any, BinaryIO, Final

import orjson

from gateway.openai.errors import ApiError
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import Constraint

MEMORY: Final = 2 * 1024**3
"""Bytes of address space. At rest the child has mapped 50 MB; no schema in our tests took over 250 MB."""
STACK: Final = 4 * 1024**2
"""Bytes, half of what a thread of the engine has: a schema whose nesting exhausts the stack ends this
process, where it would end the engine."""


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request; see `gateway.checker` for both."""
    try:
        if request["do"] == "ping":
            return {}
        constraint = Constraint(request["kind"], request["value"], request.get("place", ""))
        if request["do"] == "violation":
            return {"violation": violation(constraint, request["text"])}
        return {"rewritten": check(constraint, request["backend"]).rewritten}
    except ApiError as error:
        return {"error": {"status": error.status, "message": error.message, "param": error.param, "code": error.code}}


def serve(source: BinaryIO, sink: BinaryIO, deadline: float) -> None:
    """Answer until the source ends."""
    while len(head := source.read(4)) == 4:
        request = orjson.loads(source.read(int.from_bytes(head, "big")))
        signal.setitimer(signal.ITIMER_REAL, 2 * deadline)
        try:
            answer = answer_to(request)
        except MemoryError:
            return  # the parent sees the end of the pipe and starts anew
        except Exception:
            answer = {"bug": traceback.format_exc()}
        body = orjson.dumps(answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sink.write(len(body).to_bytes(4, "big") + body)
        sink.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
