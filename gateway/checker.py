"""The edge between the event loop and `gateway.translate.schema_check`: a child process with a deadline.

Checking a schema takes a fraction of a millisecond as a rule, and as long as its author likes at worst
(expressions and grammars are hostile input). So it is done in one long-lived child process per gateway
worker, one check at a time; a check that overruns its deadline is killed with the child, a new child is
started, and the request is refused. Results are remembered, so a schema is checked once.

Over the child's pipes go messages of four bytes of length (big-endian) and that many bytes of JSON;
`gateway.checker_child` is the other end.
"""

import asyncio
import logging
import sys
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import orjson

from gateway.openai.errors import ApiError, bad_request
from gateway.translate.structured import Constraint

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 512 * 1024
"""Of one constraint as JSON. The largest schemas in public collections have 200 to 400 KB."""
DEADLINE: Final = 2.0
"""Seconds for one check. The largest schemas of public collections take about a tenth of it."""
MAX_WAITING: Final = 64
"""Checks that wait for the child; one more is refused with 503."""
MAX_WAIT: Final = 5.0
"""Seconds that a check may wait for its turn."""
CACHE_BYTES: Final = 32 * 1024 * 1024
"""Of remembered results, as JSON."""

_JUDGED = frozenset({"json", "json_object", "choice", "regex"})


class _ChildGone(Exception):
    """The child died or was killed while it worked on the request."""


class Checker:
    """Checks constraints and answers in a child process; one per event loop.

    `start` before the first use, `close` at the end; both may be called again after each other.
    """

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._running: dict[bytes, asyncio.Task[Constraint]] = {}
        self._results: OrderedDict[bytes, tuple[Constraint | ApiError, int]] = OrderedDict()
        self._results_bytes = 0

    async def start(self) -> None:
        """Start the child (a quarter of a second) and wait until it answers."""
        async with self._turn:
            await self._ask({"do": "ping"}, self._deadline + 30)

    async def close(self) -> None:
        """End the child; checks that still run are refused."""
        for task in list(self._running.values()):
            task.cancel()
        await self._stop_child()

    async def check(self, constraint: Constraint, backend: str) -> Constraint:
        """`schema_check.check` in the child: the constraint with its form for the engine.

        Raises `ApiError`: 400 with the place for what the backend does not enforce and for what is too
        large or too expensive to check, 503 when too many checks wait.
        """
        body = orjson.dumps(constraint.value)
        if len(body) > MAX_BYTES:
            raise bad_request(
                f"{constraint.place} has {len(body)} bytes; at most {MAX_BYTES} are checked.", constraint.place
            )
        key = _key(body, constraint, backend)
        known = self._results.get(key)
        if known is not None:
            self._results.move_to_end(key)
            return _given(known[0])
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._check(key, constraint, backend))
            self._running[key] = task
            task.add_done_callback(lambda task: self._done(key, task))
        # Shielded: a client that goes away must not leave half an exchange on the pipes.
        return await asyncio.shield(task)

    async def violation(self, constraint: Constraint, text: str) -> str | None:
        """`schema_check.violation` in the child: None, or what a finished answer does wrong.

        An answer that cannot be judged in time counts as obeying, and is logged.
        """
        if constraint.kind not in _JUDGED:
            return None
        request = {"do": "violation", "kind": constraint.kind, "value": constraint.value, "text": text}
        try:
            answer = await asyncio.shield(asyncio.create_task(self._take_turn(request)))
        except (_ChildGone, TimeoutError, ApiError) as error:
            _log.warning("an answer could not be validated against %s: %r", constraint.place, error)
            return None
        found = answer["violation"]
        return None if found is None else str(found)

    async def _check(self, key: bytes, constraint: Constraint, backend: str) -> Constraint:
        request = {
            "do": "check", "kind": constraint.kind, "value": constraint.value, "place": constraint.place,
            "backend": backend,
        }  # fmt: skip
        result: Constraint | ApiError
        try:
            answer = await self._take_turn(request)
        except (TimeoutError, _ChildGone):
            result = bad_request(
                f"{constraint.place} is too expensive to check (over {self._deadline:g} seconds or too much memory); "
                "simplify it.",
                constraint.place,
            )
        else:
            if "error" in answer:
                error = answer["error"]
                result = ApiError(error["status"], error["message"], param=error["param"], code=error["code"])
            else:
                result = replace(constraint, rewritten=answer["rewritten"])
        self._remember(key, result)
        return _given(result)

    def _done(self, key: bytes, task: asyncio.Task[Constraint]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # seen, also when every client that waited for it is gone

    def _remember(self, key: bytes, result: Constraint | ApiError) -> None:
        size = 500 if isinstance(result, ApiError) else 500 + 2 * len(orjson.dumps(result.value))
        self._results[key] = (result, size)
        self._results_bytes += size
        while self._results_bytes > CACHE_BYTES:
            _, (_, oldest) = self._results.popitem(last=False)
            self._results_bytes -= oldest

    async def _take_turn(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._waiting >= MAX_WAITING:
            raise _busy()
        self._waiting += 1
        try:
            await asyncio.wait_for(self._turn.acquire(), MAX_WAIT)
        except TimeoutError:
            raise _busy() from None
        finally:
            self._waiting -= 1
        try:
            answer = await self._ask(request, self._deadline)
        finally:
            self._turn.release()
        if "bug" in answer:
            _log.error("the schema checker failed: %s", answer["bug"])
            raise ApiError(500, "The constraint on the answer could not be checked; the cause is in the gateway's log.")
        return answer

    async def _ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """One exchange with the child; whatever goes wrong, the next exchange gets a fresh child."""
        if self._child is None or self._child.returncode is not None:
            await self._start_child()
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        body = orjson.dumps(request)
        try:
            async with asyncio.timeout(deadline):
                child.stdin.write(len(body).to_bytes(4, "big") + body)
                await child.stdin.drain()
                size = int.from_bytes(await child.stdout.readexactly(4), "big")
                answer: dict[str, Any] = orjson.loads(await child.stdout.readexactly(size))
                return answer
        except (asyncio.IncompleteReadError, ConnectionError):
            with suppress(TimeoutError):  # it is about to be reaped; a signal to it would disturb that
                await asyncio.wait_for(child.wait(), 1)
            await self._stop_child()
            raise _ChildGone from None
        except BaseException:  # a deadline or a cancellation leaves the answer on the pipe
            await self._stop_child()
            raise

    async def _start_child(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.checker_child", str(self._deadline),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the gateway, which ends the child
        )  # fmt: skip

    async def _stop_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        await child.wait()


def _given(result: Constraint | ApiError) -> Constraint:
    """A remembered result as the outcome of a call."""
    if isinstance(result, ApiError):
        # A fresh one: a raised exception keeps the frames that it passed.
        raise ApiError(result.status, result.message, param=result.param, code=result.code)
    return result


def _key(body: bytes, constraint: Constraint, backend: str) -> bytes:
    digest = blake2b(body, digest_size=20)
    digest.update(f"{constraint.kind}\n{backend}\n{constraint.place}".encode())
    return digest.digest()


def _busy() -> ApiError:
    return ApiError(
        503,
        "Too many schemas are being checked; try again in a moment.",
        code="schema_checker_busy",
        headers={"Retry-After": "1"},
    )
