"""The checker with its real child process: results, deadline, crashes, cancellation, ends."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import checker as module
from gateway.checker import Checker
from gateway.checker_child import serve
from gateway.openai.errors import ApiError
from gateway.translate.structured import Constraint

PLACE = "response_format.json_schema.schema"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "additionalProperties": False}
# Thousands of optional properties: the library needs seconds to build their grammar.
SLOW = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a{i}"} for i in range(4000)}}
# Exhausts the stack of the library, and so ends the process.
DEADLY = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} if i < 4000 else {"type": "null"} for i in range(4001)},
}


def json_constraint(schema: Any, place: str = PLACE) -> Constraint:
    return Constraint("json", schema, place)


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker()
    await checker.start()
    yield checker
    await checker.close()


def pid_of(checker: Checker) -> int:
    assert checker._child is not None
    return checker._child.pid


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def test_an_enforceable_schema_comes_back_with_its_form_for_the_engine(checker: Checker) -> None:
    checked = await checker.check(json_constraint({**SCHEMA, "$schema": "https://example.org/x"}), "guidance")
    assert checked.value["$schema"]
    assert checked.engine_value() == {"json": SCHEMA}
    choice = Constraint("choice", ["a"], "guided_choice")
    assert await checker.check(choice, "guidance") == choice


async def test_a_refusal_has_the_place_every_time(checker: Checker) -> None:
    for place in (PLACE, PLACE, "guided_json"):
        with pytest.raises(ApiError) as error:
            await checker.check(json_constraint({"properties": {"a": {"not": {}}}}, place), "guidance")
        assert (error.value.status, error.value.param) == (400, f"{place}.properties.a.not")


async def test_a_known_schema_needs_no_child(checker: Checker) -> None:
    first = await checker.check(json_constraint(SCHEMA), "guidance")
    await checker.close()
    assert await checker.check(json_constraint(SCHEMA), "guidance") == first
    assert checker._child is None
    # Another backend is another question.
    await checker.check(json_constraint(SCHEMA), "xgrammar")
    assert checker._child is not None


async def test_the_same_schema_at_once_is_checked_once(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = checker._ask

    async def counted(request: dict[str, Any], deadline: float) -> dict[str, Any]:
        asked.append(request)
        return await ask(request, deadline)

    monkeypatch.setattr(checker, "_ask", counted)
    results = await asyncio.gather(*(checker.check(json_constraint(SCHEMA), "guidance") for _ in range(20)))
    assert len(asked) == 1
    assert all(result == results[0] for result in results)


async def test_old_results_make_room(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 5_000)
    for number in range(20):
        await checker.check(json_constraint({"const": number}), "guidance")
    assert 0 < checker._results_bytes <= 5_000
    assert checker._results_bytes == sum(size for _, size in checker._results.values())
    assert len(checker._results) < 20


async def test_a_slow_schema_is_refused_and_the_next_one_is_checked() -> None:
    checker = Checker(deadline=0.3)
    await checker.start()
    child = pid_of(checker)
    started = time.monotonic()
    with pytest.raises(ApiError) as error:
        await checker.check(json_constraint(SLOW), "guidance")
    assert time.monotonic() - started < 1.5
    assert (error.value.status, error.value.param) == (400, PLACE)
    assert "too expensive" in error.value.message
    assert not lives(child)
    await checker.start()
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA
    # The verdict on the slow one is known by now.
    started = time.monotonic()
    with pytest.raises(ApiError):
        await checker.check(json_constraint(SLOW), "guidance")
    assert time.monotonic() - started < 0.1
    await checker.close()


async def test_the_loop_is_free_while_a_slow_schema_is_checked() -> None:
    checker = Checker(deadline=0.5)
    await checker.start()
    slow = asyncio.create_task(checker.check(json_constraint(SLOW), "guidance"))
    longest, before = 0.0, time.monotonic()
    while not slow.done():
        await asyncio.sleep(0.001)
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
    assert isinstance(slow.exception(), ApiError)
    assert longest < 0.25
    await checker.close()


async def test_a_schema_that_kills_the_child_is_refused(checker: Checker) -> None:
    child = pid_of(checker)
    with pytest.raises(ApiError) as error:
        await checker.check(json_constraint(DEADLY), "guidance")
    assert (error.value.status, error.value.param) == (400, PLACE)
    assert not lives(child)
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA


async def test_a_client_that_goes_away_leaves_the_pipes_in_order(checker: Checker) -> None:
    for number in range(20):
        gone = asyncio.create_task(checker.check(json_constraint({"const": f"gone {number}"}), "guidance"))
        await asyncio.sleep(number / 20_000)
        gone.cancel()
        checked = await checker.check(json_constraint({"const": f"stays {number}"}), "guidance")
        assert checked.engine_value()["json"] == {"const": f"stays {number}"}


async def test_a_child_that_was_killed_is_replaced(checker: Checker) -> None:
    os.kill(pid_of(checker), signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA


async def test_too_many_at_once_are_told_to_come_back(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    results = await asyncio.gather(
        *(checker.check(json_constraint({"const": number}), "guidance") for number in range(10)),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, ApiError)]
    assert {(error.status, error.headers["Retry-After"]) for error in refused} == {(503, "1")}
    assert 0 < len(refused) < 10
    # That is no verdict on the schema.
    for number in range(10):
        await checker.check(json_constraint({"const": number}), "guidance")


async def test_a_schema_that_is_too_large_never_reaches_the_child(checker: Checker) -> None:
    await checker.close()
    with pytest.raises(ApiError) as error:
        await checker.check(json_constraint({"description": "x" * module.MAX_BYTES}), "guidance")
    assert (error.value.status, error.value.param) == (400, PLACE)
    assert checker._child is None


async def test_violations(checker: Checker) -> None:
    constraint = await checker.check(json_constraint({"type": "string", "format": "date"}), "guidance")
    assert await checker.violation(constraint, '"2024-02-29"') is None
    assert await checker.violation(constraint, '"2023-02-29"')
    assert await checker.violation(Constraint("choice", ["a"], "guided_choice"), "b")
    assert await checker.violation(Constraint("grammar", 'root ::= "a"', "guided_grammar"), "b") is None


async def test_close_leaves_no_process(checker: Checker) -> None:
    child = pid_of(checker)
    running = asyncio.create_task(checker.check(json_constraint(SLOW), "guidance"))
    await asyncio.sleep(0.05)
    await checker.close()
    assert not lives(child)
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], BaseException)
    await checker.close()


def test_the_child_ends_with_its_parent() -> None:
    program = (
        "import asyncio\nfrom gateway.checker import Checker\n"
        "async def main():\n"
        "    checker = Checker()\n    await checker.start()\n    print(checker._child.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert lives(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while lives(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lives(child)


def test_a_bug_in_a_check_is_reported_and_the_child_goes_on() -> None:
    def message(**request: Any) -> bytes:
        body = orjson.dumps(request)
        return len(body).to_bytes(4, "big") + body

    sink = io.BytesIO()
    serve(io.BytesIO(message(do="check", kind="json") + message(do="ping")), sink, 60.0)
    out = sink.getvalue()
    first = 4 + int.from_bytes(out[:4], "big")
    assert "KeyError" in orjson.loads(out[4:first])["bug"]
    assert orjson.loads(out[first + 4 :]) == {}
