"""The checker with its real child processes: results, deadline, crashes, floods, cancellation, limits, ends."""

import asyncio
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from gateway import checker as module
from gateway import checker_lane
from gateway.checker import Checker, NotValidated
from gateway.checker_child import work
from gateway.checker_lane import CannotStart, Lane
from gateway.checker_wire import message
from gateway.openai.errors import ApiError
from gateway.translate.schema_keywords import TYPE_OF_ASSERTION
from gateway.translate.structured import MAX_BYTES, Constraint

ROOT = Path(__file__).parents[3]
PLACE = "response_format.json_schema.schema"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "additionalProperties": False}
# Thousands of optional properties: the library needs seconds to build their grammar.
SLOW = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a{i}"} for i in range(4000)}}
# Takes some tenths of a second: too much for the quick lane, and well within the deadline.
LARGE = {**SLOW, "required": list(SLOW["properties"])}
# Exhausts the stack of the library, and so ends the worker.
DEADLY = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} if i < 4000 else {"type": "null"} for i in range(4001)},
}


def json_constraint(schema: Any, place: str = PLACE) -> Constraint:
    return Constraint("json", schema, place)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Checker]:
    checker = Checker()
    await checker.start()
    yield checker
    await checker.close()


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker()
    await checker.start()
    yield checker
    await checker.close()


def child_of(lane: Lane) -> int:
    assert lane._child is not None
    return lane._child.pid


def workers_of(lane: Lane) -> list[int]:
    child = child_of(lane)
    try:
        return [int(pid) for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
    except FileNotFoundError:
        return []


def worker_of(lane: Lane) -> int:
    return workers_of(lane)[0]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def until_busy(lane: Lane) -> None:
    """Until a worker of the lane is in the middle of a check; there is no event for that."""
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if lane._exchange and not lane._exchange.done() and lane._child and any(map(lives, workers_of(lane))):
            await asyncio.sleep(0.05)
            return
    raise AssertionError("the lane has nothing to do")


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
    assert checker._quick._child is None
    # Another backend is another question.
    await checker.check(json_constraint(SCHEMA), "xgrammar")
    assert checker._quick._child is not None


async def test_the_same_schema_at_once_is_checked_once(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = checker._quick.ask

    async def counted(request: bytes) -> bytes:
        asked.append(request)
        return await ask(request)

    monkeypatch.setattr(checker._quick, "ask", counted)
    results = await asyncio.gather(*(checker.check(json_constraint(SCHEMA), "guidance") for _ in range(20)))
    assert len(asked) == 1
    assert all(result == results[0] for result in results)


async def test_old_results_make_room(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 5_000)
    for number in range(20):
        await checker.check(json_constraint({"const": number}), "guidance")
    assert 0 < checker._remembered_bytes <= 5_000
    assert 0 < len(checker._remembered) < 20
    for key in list(checker._remembered):
        checker._forget(key)
    assert checker._remembered_bytes == 0


async def test_the_bound_on_what_is_remembered_counts_real_memory(checker: Checker) -> None:
    names = [f"a property {i}" for i in range(100)]
    schema = {"properties": {name: {"type": "integer", "minimum": 1000 + i} for i, name in enumerate(names)}}
    tracemalloc.start()
    try:
        await checker.check(json_constraint({"const": "warm"}), "xgrammar")
        before, counted = tracemalloc.get_traced_memory()[0], checker._remembered_bytes
        for number in range(100):
            await checker.check(json_constraint({"const": number}), "xgrammar")
            await checker.check(json_constraint(schema, f"place {number}"), "guidance")
        taken, counted = tracemalloc.get_traced_memory()[0] - before, checker._remembered_bytes - counted
    finally:
        tracemalloc.stop()
    assert counted > 100_000
    assert taken < 1.3 * counted


async def test_a_slow_schema_is_refused_and_the_next_one_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERRUN_KEPT", 1.0)
    checker = Checker(deadline=0.3)
    await checker.start()
    for _ in range(2):
        with pytest.raises(ApiError) as error:
            await checker.check(json_constraint(SLOW), "guidance")
        assert (error.value.status, error.value.param) == (400, PLACE)
        assert "too expensive" in error.value.message
        assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA
        # The verdict on the slow one is known by now, and known only for a while.
        await checker._slow.close()
        with pytest.raises(ApiError):
            await checker.check(json_constraint(SLOW), "guidance")
        assert checker._slow._child is None
        await asyncio.sleep(1.1)
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


async def test_a_schema_that_kills_its_worker_is_refused_each_time_anew(checker: Checker) -> None:
    for _ in range(2):
        with pytest.raises(ApiError) as error:
            await checker.check(json_constraint(DEADLY), "guidance")
        assert (error.value.status, error.value.param) == (400, PLACE)
        assert not checker._remembered
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA


@pytest.mark.parametrize("of", [child_of, worker_of])
async def test_a_process_that_was_killed_is_no_verdict_on_the_schema(checker: Checker, of: Any) -> None:
    # While it waits:
    os.kill(of(checker._quick), signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA
    # While it works:
    await checker._slow.start()
    running = asyncio.create_task(checker.check(json_constraint(LARGE), "guidance"))
    await until_busy(checker._slow)
    os.kill(of(checker._slow), signal.SIGKILL)
    assert (await running).value == LARGE


@pytest.mark.parametrize(("of", "status"), [(child_of, 503), (worker_of, 400)])
async def test_a_process_that_is_killed_again_and_again(checker: Checker, of: Any, status: int) -> None:
    await checker._slow.start()
    running = asyncio.create_task(checker.check(json_constraint(LARGE), "guidance"))
    for _ in range(2):
        assert not running.done()
        await until_busy(checker._slow)
        os.kill(of(checker._slow), signal.SIGKILL)
        await asyncio.sleep(0.2)
    with pytest.raises(ApiError) as error:
        await running
    assert error.value.status == status
    # Nothing of that is remembered.
    assert (await checker.check(json_constraint(LARGE), "guidance")).value == LARGE


async def test_the_deadline_is_time_of_the_check_and_not_of_a_busy_machine() -> None:
    # Nothing is started yet, and a start takes more than the whole time of a quick check.
    checker = Checker(deadline=1.0)
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA
    assert checker._slow._child is None
    await checker._slow.start()
    running = asyncio.create_task(checker.check(json_constraint(LARGE), "guidance"))
    await until_busy(checker._slow)
    os.killpg(child_of(checker._slow), signal.SIGSTOP)
    await asyncio.sleep(2)
    os.killpg(child_of(checker._slow), signal.SIGCONT)
    assert (await running).value == LARGE
    await checker.close()


@pytest.mark.long
async def test_a_machine_that_never_answers_is_no_verdict_either(checker: Checker) -> None:
    stuck = child_of(checker._quick)
    os.killpg(stuck, signal.SIGSTOP)
    with pytest.raises(ApiError) as error:
        await checker.check(json_constraint(SCHEMA), "guidance")
    assert error.value.status == 503
    assert not lives(stuck)
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA


@pytest.mark.long
async def test_costly_checks_delay_neither_cheap_ones_nor_answers(checker: Checker) -> None:
    numbers = itertools.count()
    statuses: list[int] = []

    async def hostile() -> None:
        while True:
            try:
                await checker.check(json_constraint({**SLOW, "title": str(next(numbers))}), "guidance")
            except ApiError as error:
                statuses.append(error.status)

    checked = await checker.check(json_constraint(SCHEMA), "guidance")
    flood = [asyncio.create_task(hostile()) for _ in range(12)]
    times: list[float] = []
    unjudged = 0
    end = time.monotonic() + 8
    while time.monotonic() < end:
        started = time.monotonic()
        await checker.check(json_constraint({"const": next(numbers)}), "guidance")
        times.append(time.monotonic() - started)
        started = time.monotonic()
        try:
            assert await checker.violation(checked, '{"a": -1}')
        except NotValidated:
            unjudged += 1
        times.append(time.monotonic() - started)
        await asyncio.sleep(0.05)
    for task in flood:
        task.cancel()
    assert {400, 503} >= set(statuses) >= {400}
    # Well below a second on a machine with nothing else to do; any single one may meet a pause of the machine.
    assert sorted(times)[-2] < 3
    assert unjudged <= 1


async def test_an_answer_that_takes_too_long_is_not_validated_and_the_next_one_is(checker: Checker) -> None:
    costly = Constraint("regex", "(a|b)+c?", "guided_regex")
    started = time.monotonic()
    with pytest.raises(NotValidated):
        await checker.violation(costly, "ab" * 1_000_000)
    assert time.monotonic() - started < 20
    assert await checker.violation(costly, "abd")
    # Behind others of its kind an answer waits a second at most, and its place in the queue is free again.
    started = time.monotonic()
    answers = (checker.violation(costly, "ab" * 1_000_000) for _ in range(10))
    assert {type(found) for found in await asyncio.gather(*answers, return_exceptions=True)} == {NotValidated}
    # One after the other they would take half a second each, and none would be given up.
    assert time.monotonic() - started < 20
    await asyncio.sleep(1)
    assert checker._answers._waiting == 0
    assert await checker.violation(costly, "ab") is None


async def test_an_answer_whose_validator_ends_or_fails_is_not_validated(checker: Checker) -> None:
    with pytest.raises(NotValidated, match="failed"):
        await checker.violation(json_constraint({}), "[" * 100_000)
    running = asyncio.create_task(checker.violation(Constraint("regex", "(a|b)+", "guided_regex"), "ab" * 1_000_000))
    for _ in range(2):
        await until_busy(checker._answers)
        os.kill(worker_of(checker._answers), signal.SIGKILL)
        await asyncio.sleep(0.1)
    with pytest.raises(NotValidated):
        await running
    assert await checker.violation(json_constraint(SCHEMA), "1")
    os.kill(worker_of(checker._answers), signal.SIGKILL)
    assert await checker.violation(json_constraint(SCHEMA), "1")


async def test_without_file_descriptors_there_is_no_verdict() -> None:
    checker = Checker()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(ApiError) as refused:
            await checker.check(json_constraint(SCHEMA), "guidance")
        with pytest.raises(NotValidated):
            await checker.violation(json_constraint(SCHEMA), "1")
        with pytest.raises(CannotStart, match="Too many open files"):
            await checker.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused.value.status == 503
    assert (await checker.check(json_constraint(SCHEMA), "guidance")).value == SCHEMA
    assert await checker.violation(json_constraint(SCHEMA), "1")
    await checker.close()


HUGE = 10**30
PRECISE = 2**64 + 1


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        *(({"type": "object", "properties": {"a": {"type": TYPE_OF_ASSERTION.get(key, "number"), key: HUGE}}},
           f".properties.a.{key}")
          for key in ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "const", "multipleOf", "minItems",
                      "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")),
        ({"enum": [1, PRECISE]}, ".enum"), ({"const": {"a": [-HUGE]}}, ".const"),
        ({"maximum": -(2**63) - 1}, ".maximum"),
        *(({"type": "integer", key: value}, None)
          for key in ("default", "examples", "x-note")
          for value in (2**64, -PRECISE, 10**300, {"a": [2**63]})),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["guidance", "xgrammar", "auto"])
@pytest.mark.parametrize("as_tag", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_integers_of_any_size(
    shared: Checker, schema: dict[str, Any], where: str | None, backend: str, as_tag: bool
) -> None:
    if "examples" in schema:
        schema = {**schema, "examples": [schema["examples"]]}
    constraint = json_constraint(schema)
    if as_tag:
        backend = "xgrammar"
        tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
        constraint = Constraint("structural_tag", json.dumps(tag), "tag")
    if where is None:
        checked = await shared.check(constraint, backend)
        orjson.dumps(checked.engine_value())  # holds no integer beyond 64 bits
        if not as_tag:
            assert await shared.violation(checked, "3") is None
        return
    with pytest.raises(ApiError) as error:
        await shared.check(constraint, backend)
    assert error.value.status == 400
    assert error.value.param == ("tag.format.json_schema" if as_tag else PLACE) + where


async def test_a_client_that_goes_away_leaves_the_pipes_in_order(checker: Checker) -> None:
    for number in range(20):
        gone = asyncio.create_task(checker.check(json_constraint({"const": f"gone {number}"}), "guidance"))
        await asyncio.sleep(number / 20_000)
        gone.cancel()
        checked = await checker.check(json_constraint({"const": f"stays {number}"}), "guidance")
        assert checked.engine_value()["json"] == {"const": f"stays {number}"}


async def test_too_many_at_once_are_told_to_come_back(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker_lane, "MAX_WAITING", 3)
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
        await checker.check(json_constraint({"description": "x" * MAX_BYTES}), "guidance")
    assert (error.value.status, error.value.param) == (400, PLACE)
    assert checker._quick._child is None


async def test_violations(checker: Checker) -> None:
    constraint = await checker.check(json_constraint({"type": "string", "format": "date"}), "guidance")
    assert await checker.violation(constraint, '"2024-02-29"') is None
    assert await checker.violation(constraint, '"2023-02-29"')
    assert await checker.violation(Constraint("choice", ["a"], "guided_choice"), "b")
    assert await checker.violation(Constraint("grammar", 'root ::= "a"', "guided_grammar"), "b") is None


async def test_close_leaves_no_process(checker: Checker) -> None:
    running = asyncio.create_task(checker.check(json_constraint(SLOW), "guidance"))
    await until_busy(checker._slow)
    lanes = (checker._quick, checker._slow, checker._answers)
    processes = [pid for lane in lanes for pid in (child_of(lane), *workers_of(lane))]
    assert len(processes) == 5  # the worker of the quick lane gave up on it
    await checker.close()
    await asyncio.sleep(0.1)
    assert not any(lives(pid) for pid in processes)
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], BaseException)
    await checker.close()


def test_children_and_workers_end_with_the_gateway() -> None:
    program = (
        "import asyncio\nfrom gateway.checker import Checker\nfrom gateway.translate.structured import Constraint\n"
        "async def main():\n"
        "    checker = Checker()\n    await checker.start()\n    print(checker._quick._child.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    worker = int(Path(f"/proc/{child}/task/{child}/children").read_text())
    assert lives(child)
    assert lives(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while (lives(child) or lives(worker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lives(child)
    assert not lives(worker)


async def test_a_worker_ends_with_its_child(checker: Checker) -> None:
    worker = worker_of(checker._quick)
    os.kill(child_of(checker._quick), signal.SIGKILL)
    await asyncio.sleep(0.2)
    assert not lives(worker)


@pytest.mark.parametrize("limit", ["--as=1500000000:1500000000", "--stack=2000000:2000000"])
def test_limits_of_the_system_below_the_own_ones(limit: str) -> None:
    program = (
        "import asyncio\nfrom gateway.checker import Checker\nfrom gateway.translate.structured import Constraint\n"
        "async def main():\n"
        "    checker = Checker()\n    await checker.start()\n"
        "    print(await checker.check(Constraint('json', {'const': 1}, 'p'), 'guidance'))\n"
        "    await checker.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        ["prlimit", limit, sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "rewritten={'const': 1}" in done.stdout, done.stderr


async def test_a_child_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker, real = Checker(), sys.executable
    for text, why in (
        ("import sys; sys.exit('the library is of another machine')", "the library is of another machine"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os; os._exit(1)", "it ended at once"),
        ("import os; os.write(1, (4).to_bytes(4, 'big') + b'died')", "its worker ended at once"),
    ):
        python = tmp_path / "python"
        python.write_text(f"#!{real}\n{text}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        with pytest.raises(CannotStart) as error:
            await checker.start()
        assert str(error.value) == f"The schema checker cannot start: {why}."
        with pytest.raises(ApiError) as refused:
            await checker.check(json_constraint(SCHEMA), "guidance")
        assert refused.value.status == 503
        with pytest.raises(NotValidated):
            await checker.violation(json_constraint(SCHEMA), "1")
    monkeypatch.undo()
    await checker.start()
    await checker.close()


def test_a_bug_in_a_check_is_reported_and_the_worker_goes_on() -> None:
    requests = [{"do": "check", "kind": "json"}, {"do": "ping"}]
    sink = io.BytesIO()
    work(io.BytesIO(b"".join(message(orjson.dumps(request)) for request in requests)), sink, 60.0)
    out = sink.getvalue()
    first = 4 + int.from_bytes(out[:4], "big")
    assert "KeyError" in orjson.loads(out[4:first])["bug"]
    assert orjson.loads(out[first + 4 :]) == {}
