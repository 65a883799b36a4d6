"""The child of `gateway.checker_lane`: answers the requests on stdin, one at a time, on stdout.

`python -m gateway.checker_child BUDGET`. The child itself only passes messages on to a worker, a fork of
itself that does the checks. A check that uses more than BUDGET seconds of CPU time, or too much memory or
stack, ends its worker, and the next worker is forked in milliseconds, where a new process would have to
import everything first. The child ends when stdin ends, and its worker when the child does.
"""

import json
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any, BinaryIO, Final

import orjson

from gateway.checker_wire import DIED, OVERRUN, message, read
from gateway.openai.errors import ApiError
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import Constraint

MEMORY: Final = 2 * 1024**3
"""Bytes of address space. At rest the child has mapped 50 MB; no schema in our tests took over 250 MB."""
STACK: Final = 4 * 1024**2
"""Bytes, half of what a thread of the engine has: a schema whose nesting exhausts the stack ends the
worker, where it would end the engine."""


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


def work(source: BinaryIO, sink: BinaryIO, budget: float) -> None:
    """Answer until the source ends; a request that takes more than `budget` seconds of CPU ends the process."""
    while (request := read(source)) is not None:
        # Not the clock on the wall: a busy machine is not the schema's fault.
        signal.setitimer(signal.ITIMER_PROF, budget)
        try:
            answer = orjson.dumps(answer_to(json.loads(request)))
        except MemoryError:
            return
        except Exception:
            answer = orjson.dumps({"bug": traceback.format_exc()})
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(message(answer))
        sink.flush()


class _Worker:
    """A fork of this process that runs `work`."""

    def __init__(self, budget: float) -> None:
        requests, requests_in = os.pipe()
        answers_out, answers = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            # The worker holds none of the child's ends, so that each sees the other end.
            os.dup2(requests, 0)
            os.dup2(answers, 1)
            for end in (requests, requests_in, answers_out, answers):
                os.close(end)
            try:
                work(os.fdopen(0, "rb"), os.fdopen(1, "wb"), budget)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answers)
        self._requests = os.fdopen(requests_in, "wb")
        self._answers = os.fdopen(answers_out, "rb")

    def answer(self, request: bytes) -> bytes | None:
        """The answer, or None when the worker has ended."""
        try:
            self._requests.write(message(request))
            self._requests.flush()
        except BrokenPipeError:
            return None
        return read(self._answers)

    def end(self) -> bytes:
        """Forget a worker that has ended; the message that says how."""
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return OVERRUN if code == -signal.SIGPROF else DIED


def serve(source: BinaryIO, sink: BinaryIO, budget: float) -> None:
    """Pass requests to a worker and its answers back until the source ends."""
    worker = None
    while (request := read(source)) is not None:
        worker = worker or _Worker(budget)
        answer = worker.answer(request)
        if answer is None:
            answer = worker.end()
            worker = None
        sink.write(message(answer))
        sink.flush()


def _limit(what: int, wanted: int) -> None:
    _, hard = resource.getrlimit(what)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(what, (limit, limit))


def _main() -> None:
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_STACK, STACK)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # Until here the parent reads why this process cannot start; later nobody reads, and a full pipe would block.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))


if __name__ == "__main__":
    _main()
