"""The edge between the event loop and `gateway.translate.schema_check`: child processes and what is remembered.

Checking a schema takes a fraction of a millisecond as a rule, and as long as its author likes at worst
(expressions and grammars are hostile input). So it is done in child processes, each with a queue of its
own (`gateway.checker_lane`): every check first gets a short time in the quick lane; what needs more goes
to the slow lane, where costly checks wait for each other and for nobody else. Answers are validated in a
third, for they must not wait for checks either. What a check found is remembered.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import orjson

from gateway.aside import aside
from gateway.checker_lane import Busy, Died, Lane, Overrun, Unavailable
from gateway.openai.errors import ApiError, bad_request
from gateway.openai.json_text import dumps
from gateway.openai.schema import LARGE_BODY
from gateway.openai.writing import text as written
from gateway.translate.structured import MAX_BYTES, Constraint

_log = logging.getLogger(__name__)

QUICK_BUDGET: Final = 0.02
"""Seconds of CPU time in the quick lane, where a usual schema takes a millisecond or two: so little that a
dozen costly ones ahead of it do not matter."""
DEADLINE: Final = 2.0
"""Seconds of CPU time for one check."""
MAX_WAIT: Final = 5.0
"""Seconds that a check may wait for its turn in a lane."""
ANSWER_BUDGET: Final = 0.5
"""Seconds of CPU time to validate one answer; against a regex 600 kB are validated in that."""
ANSWER_WAIT: Final = 1.0
"""Seconds that the validation of an answer may take in all; the client waits for it."""
OVERRUN_KEPT: Final = 30.0
"""Seconds that a schema is refused unseen after it used up its time, so that asking again costs nothing."""
CACHE_BYTES: Final = 32 * 1024 * 1024
"""Of remembered outcomes, which are kept as the JSON that the child answered."""
_ENTRY_BYTES: Final = 400
"""Of memory beside the JSON of a remembered outcome."""

_JUDGED = frozenset({"json", "json_object", "choice", "regex"})


class NotValidated(Exception):
    """An answer could not be validated; the text says why."""


class Checker:
    """Checks constraints and answers in child processes; one per event loop.

    `start` before the first use, `close` at the end; both may be called again after each other.
    `deadline` is in seconds of CPU time for one check.
    """

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._quick = Lane(QUICK_BUDGET, MAX_WAIT)
        self._slow = Lane(deadline, MAX_WAIT)
        self._answers = Lane(ANSWER_BUDGET, ANSWER_WAIT)
        self._running: dict[bytes, asyncio.Task[bytes]] = {}
        self._remembered: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._remembered_bytes = 0

    async def start(self) -> None:
        """Start the children (a quarter of a second) but the slow lane's, which starts when it is needed.

        Raises `gateway.checker_lane.CannotStart`, one sentence with the reason.
        """
        await self._quick.start()
        await self._answers.start()

    async def close(self) -> None:
        """End the children; checks that still run are cancelled."""
        for task in list(self._running.values()):
            task.cancel()
        for lane in (self._quick, self._slow, self._answers):
            await lane.close()

    async def check(self, constraint: Constraint, backend: str, size: int = 0) -> Constraint:
        """`schema_check.check` in a child: the constraint with its form for the engine. `size` is that of the
        request's body, in bytes.

        Raises `ApiError`: 400 with the place for what the backend does not enforce and for what is too
        large or too expensive to check, 503 when there is no verdict, as when too many checks wait.
        """
        value = await _json(constraint, size)
        if len(value) > MAX_BYTES:
            raise bad_request(
                f"{constraint.place} has {len(value)} bytes; at most {MAX_BYTES} are checked.", constraint.place
            )
        key = _key(value, constraint, backend)
        outcome = self._recall(key)
        if outcome is None:
            task = self._running.get(key)
            if task is None:
                task = asyncio.create_task(self._check(key, constraint, value, backend))
                self._running[key] = task
                task.add_done_callback(lambda task: self._done(key, task))
            # Shielded: other clients may wait for the same outcome.
            outcome = await asyncio.shield(task)
        answer = orjson.loads(outcome)
        if "error" in answer:
            error = answer["error"]
            message, param = constraint.clients(error["message"]), constraint.clients(error["param"] or "") or None
            raise ApiError(error["status"], message, param=param, code=error["code"])
        return replace(constraint, rewritten=answer["rewritten"])

    async def violation(self, constraint: Constraint, text: str, size: int = 0) -> str | None:
        """`schema_check.violation` in a child: None, or what a finished answer does wrong. `size` as in `check`.

        Raises `NotValidated`, and nothing else, when there is no verdict within `ANSWER_WAIT` seconds.
        """
        if constraint.kind not in _JUDGED:
            return None
        value = orjson.Fragment(await _json(constraint, size))
        request = orjson.dumps({"do": "violation", "kind": constraint.kind, "value": value, "text": text})
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                answer = orjson.loads(await self._answers.ask(request))
        except (TimeoutError, Overrun):
            raise NotValidated("it took too long") from None
        except Died:
            raise NotValidated("the validator does not survive it") from None
        except Unavailable as error:
            raise NotValidated(str(error)) from None
        if "bug" in answer:
            _log.error("the validator failed: %s", answer["bug"])
            raise NotValidated("the validator failed")
        found = answer["violation"]
        return None if found is None else str(found)

    async def _check(self, key: bytes, constraint: Constraint, value: bytes, backend: str) -> bytes:
        """The child's answer, `{"rewritten": …}` or `{"error": …}`."""
        place = constraint.place
        request = orjson.dumps(
            {
                "do": "check", "kind": constraint.kind, "value": orjson.Fragment(value), "place": place,
                "backend": backend,
            }
        )  # fmt: skip
        try:
            try:
                outcome = await self._quick.ask(request)
            except Overrun:
                outcome = await self._slow.ask(request)
        except Overrun:
            outcome = _too_expensive(place, self._slow.budget)
            self._remember(key, outcome, asyncio.get_running_loop().time() + OVERRUN_KEPT)
            return outcome
        except Died:
            raise bad_request(
                f"{place} cannot be checked: it needs too much memory, or is nested too deeply; simplify it.", place
            ) from None
        except Unavailable as error:
            if not isinstance(error, Busy):
                _log.error("a constraint could not be checked: %s", error)
            raise _try_again() from None
        if bug := orjson.loads(outcome).get("bug"):
            _log.error("the schema checker failed: %s", bug)
            raise ApiError(500, "The constraint on the answer could not be checked; the cause is in the gateway's log.")
        self._remember(key, outcome, math.inf)
        return outcome

    def _done(self, key: bytes, task: asyncio.Task[bytes]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # seen, also when every client that waited for it is gone

    def _recall(self, key: bytes) -> bytes | None:
        outcome, until = self._remembered.get(key, (None, math.inf))
        if outcome is None:
            return None
        if until < asyncio.get_running_loop().time():
            self._forget(key)
            return None
        self._remembered.move_to_end(key)
        return outcome

    def _remember(self, key: bytes, outcome: bytes, until: float) -> None:
        self._remembered[key] = (outcome, until)
        self._remembered_bytes += len(outcome) + _ENTRY_BYTES
        while self._remembered_bytes > CACHE_BYTES:
            self._forget(next(iter(self._remembered)))

    def _forget(self, key: bytes) -> None:
        outcome, _ = self._remembered.pop(key)
        self._remembered_bytes -= len(outcome) + _ENTRY_BYTES


async def _json(constraint: Constraint, size: int) -> bytes:
    """In one call where the body is small: in pieces it takes many times as long."""
    return await aside(size, partial(dumps if size < LARGE_BODY else written, constraint.value))


def _key(value: bytes, constraint: Constraint, backend: str) -> bytes:
    digest = blake2b(value, digest_size=20)
    digest.update(f"{constraint.kind}\n{backend}\n{constraint.place}".encode())
    return digest.digest()


def _too_expensive(place: str, seconds: float) -> bytes:
    error: dict[str, Any] = {
        "status": 400,
        "message": f"{place} is too expensive to check (over {seconds:g} seconds); simplify it.",
        "param": place,
        "code": None,
    }
    return orjson.dumps({"error": error})


def _try_again() -> ApiError:
    return ApiError(
        503,
        "The constraint on the answer cannot be checked now, as when too many are; try again in a moment.",
        code="schema_checker_busy",
        headers={"Retry-After": "1"},
    )
