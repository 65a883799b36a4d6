"""Batched generations and their subscription, against a Triton whose every word a test chooses."""

import asyncio
import json
import logging
from typing import Any

import pytest

from gateway.observe import metrics
from gateway.openai.errors import ApiError
from gateway.triton import batched, subscription
from gateway.triton.contract import Backend, ModelContract
from gateway.triton.failure import InstanceFailure
from gateway.triton.generation import Generation
from tests.unit.gateway.triton.egress_server import CONTRACT, Client, until, world


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given up because the machine has paused."""
    monkeypatch.setattr(batched, "REPAIR_S", 60.0)
    monkeypatch.setattr(batched, "_LAST_RESPONSE_S", 60.0)
    monkeypatch.setattr(subscription, "_ANSWER_S", 60.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for elsewhere, or asked for again, is so soon."""
    monkeypatch.setattr(batched, "_OTHER_WAY_S", 0.1)
    monkeypatch.setattr(subscription, "_ASK_AGAIN_S", 0.1)


def count(metric: Any, *labels: str) -> float:
    """So far; of labels that were never counted, nothing."""
    return next(
        (
            sample.value
            for family in metric.collect()
            for sample in family.samples
            if tuple(sample.labels.values()) == ("m", "t", *labels) and not sample.name.endswith("_created")
        ),
        0.0,
    )


class Gone(Exception):
    pass


def error_of(client: Client) -> ApiError:
    assert isinstance(client.failure, ApiError)
    return client.failure


# The ordinary course


async def test_rows_of_many_streams_go_each_to_its_own() -> None:
    async with world() as the:
        clients = [await the.admitted() for _ in range(5)]
        triton = the.triton
        for step in range(3):
            triton.subscription.message(step + 1, *([own.number, step, step, 1, "abc"[step]] for _, own in clients))
        await until(lambda: all(client.text == "abc" for client, _ in clients))
        triton.subscription.message(4, *([own.number, 3, 3, 0, "", "stop"] for _, own in clients))
        for client, own in clients:
            await client.ended()
            assert (client.text, client.reason, client.is_over) == ("abc", "stop", True)
            assert client.counter.tokens == 3
            assert client.deltas[0].prompt_tokens == 3
            own.final(3, 3)
        await until(lambda: triton.acknowledged[-1:] == [4])
        assert len(triton.subscriptions) == 1
        # The connections are kept for others.
        await until(lambda: len(the.connections._idle) >= 5)
        assert not any(own.is_closed for _, own in clients)


async def test_a_request_and_what_it_says_of_itself() -> None:
    async with world() as the:
        _, own = await the.admitted(outputs=("logprobs",))
        inputs = own.inputs
        assert inputs["batched_egress"] is inputs["stream"] is inputs["send_admission"] is True
        assert inputs["return_logprobs"] is True
        subscribed = the.triton.subscription.inputs
        assert subscribed == {"batched_egress": True, "subscriber": inputs["subscriber"]}
        assert len(inputs["subscriber"]) in range(16, 65)


async def test_outputs_of_rows_are_the_deltas() -> None:
    async with world() as the:
        client, own = await the.admitted(outputs=("logprobs", "stop_reason"))
        outputs = {"logprobs": [{"5": {"logprob": -1.0, "rank": 1, "decoded_token": "a"}}], "stop_reason": "x"}
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a", "stop", outputs])
        await client.ended()
        assert client.deltas[-1].outputs == outputs
        own.final(1, 1)


async def test_the_first_request_goes_its_own_way_and_opens_the_other() -> None:
    batched_before = count(metrics.generations_total, "batched")
    async with world() as the:
        first = await the.client("auto")
        assert type(first.generation) is Generation
        await until(lambda: count(metrics.egress_subscriptions) == 1)
        second, own = await the.admitted(setting="auto")
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a", "stop"])
        await second.ended()
        own.final(1, 1)
        # Nothing more is open at the backend, which ends it; the next one has it opened again, and is batched.
        the.triton.subscription.finish("idle")
        await until(lambda: count(metrics.egress_subscriptions) == 0)
        the.triton.following = 2
        third, own = await the.admitted(setting="auto")
        await until(lambda: len(the.triton.subscriptions) == 2)
        the.triton.subscription.message(2, [own.number, 0, 0, 1, "b", "stop"])
        await third.ended()
        assert third.text == "b"
        own.final(1, 1)
    assert count(metrics.generations_total, "batched") == batched_before + 2
    assert count(metrics.egress_subscriptions) == 0


async def test_never_and_a_backend_without_it() -> None:
    async with world() as the:
        assert type((await the.client("never")).generation) is Generation
        plain = ModelContract(Backend.OURS, frozenset({"send_admission"}))
        assert type((await the.client("auto", contract=plain)).generation) is Generation
        with pytest.raises(ApiError, match="can only be asked by batched egress") as caught:
            await the.client("always", contract=plain)
        assert caught.value.status == 503
        assert the.triton.subscriptions == []


async def test_a_request_that_must_be_batched_waits_for_the_hello() -> None:
    async with world() as the:
        the.triton.says_hello = False
        client = (await the.client()).start()
        await until(lambda: the.triton.subscriptions)
        assert the.triton.own == {}
        the.triton.subscription.hello()
        await until(lambda: the.triton.own)
        client.generation.close()
        await client.ended()


# The order of things


async def test_rows_before_the_admission_wait_for_it() -> None:
    async with world() as the:
        client = (await the.client()).start()
        await until(lambda: the.triton.own and the.triton.subscriptions)
        own = the.triton.own[1]
        the.triton.subscription.message(1, [1, 0, 0, 1, "a"])
        the.triton.subscription.message(2, [1, 1, 1, 1, "b", "stop"])
        await until(lambda: the.triton.acknowledged[-1:] == [2])
        assert client.counter.tokens == 0
        own.admit()
        await client.ended()
        assert (client.text, client.reason, client.counter.tokens) == ("ab", "stop", 2)
        own.final(2, 2)


@pytest.mark.parametrize("has_end", [True, False])
async def test_a_final_before_its_rows_waits_for_them(has_end: bool) -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a"])
        own.final(2, 2)
        await until(lambda: client.text == "a")
        assert not client.is_over
        row = [own.number, 1, 1, 1, "b"]
        if has_end:
            the.triton.subscription.message(2, [*row, "stop"])
        else:
            the.triton.subscription.message(2, row)
            the.triton.subscription.message(3, [own.number, 2, 2, 0, "", "stop"])
        await client.ended()
        assert (client.text, client.reason, client.failure) == ("ab", "stop", None)


async def test_rows_by_the_own_stream_and_by_both() -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 2, "ab"])
        await until(lambda: client.text == "ab")
        # From what was acknowledged on, which is less than what has come.
        own.rows([own.number, 1, 1, 2, "bc"])
        await until(lambda: client.text == "abc")
        the.triton.subscription.message(2, [own.number, 2, 2, 1, "c"])
        own.rows([own.number, 3, 3, 1, "d", "length"])
        own.final(4, 4, "length")
        await client.ended()
        assert (client.text, client.reason, client.counter.tokens) == ("abcd", "length", 4)


async def test_doubled_messages_and_rows_add_nothing() -> None:
    async with world() as the:
        client, own = await the.admitted()
        say = the.triton.subscription
        row = [own.number, 0, 0, 1, "a"]
        say.message(1, row, row)
        say.message(1, row)
        say.message(2, [own.number, 1, 1, 1, "b", "stop"], [own.number, 1, 1, 1, "b", "stop"])
        await client.ended()
        assert (client.text, client.counter.tokens) == ("ab", 2)
        own.final(2, 2)
        await until(lambda: the.triton.acknowledged[-1:] == [2])
        assert the.triton.resumes == []


async def test_rows_for_nobody_are_nobody_s() -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [999, 0, 0, 1, "x"], [own.number, 0, 0, 1, "a", "stop"])
        assert (await client.ended()).text == "a"
        own.final(1, 1)


# Loss and repair


async def test_a_row_that_is_missing_is_asked_for_again(quick: None) -> None:
    repairs = count(metrics.egress_repairs_total, "row")
    async with world() as the:
        client, own = await the.admitted()
        other, others = await the.admitted()
        say = the.triton.subscription
        say.message(1, [own.number, 0, 0, 1, "a"], [others.number, 0, 0, 1, "x"])
        say.message(2, [others.number, 1, 1, 1, "y"])
        say.message(3, [own.number, 2, 2, 1, "c"], [others.number, 2, 2, 1, "z"])
        await until(lambda: the.triton.resumes)
        assert the.triton.resumes[0] == [[own.number, 1, 1]]
        await until(lambda: other.text == "xyz")
        assert client.text == "a"
        # As long as it is missing, nothing that came after it is acknowledged.
        assert max(the.triton.acknowledged) == 2
        say.message(4, [own.number, 1, 1, 2, "bc"])
        await until(lambda: the.triton.acknowledged[-1:] == [4])
        say.message(5, [own.number, 3, 3, 0, "", "stop"], [others.number, 3, 3, 0, "", "stop"])
        for one, its, text in ((client, own, "abc"), (other, others, "xyz")):
            assert (await one.ended()).text == text
            its.final(3, 3)
    assert count(metrics.egress_repairs_total, "row") == repairs + 1


async def test_a_repair_that_is_lost_too_is_asked_for_once_more(quick: None) -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 1, 1, 1, "b"])
        await until(lambda: len(the.triton.resumes) >= 3)
        the.triton.subscription.message(2, [own.number, 0, 0, 2, "ab", "stop"])
        assert (await client.ended()).text == "ab"
        own.final(2, 2)


async def test_a_message_that_is_missing_may_have_been_everybody_s(quick: None) -> None:
    repairs = count(metrics.egress_repairs_total, "message")
    async with world() as the:
        client, own = await the.admitted()
        other, others = await the.admitted()
        say = the.triton.subscription
        say.message(1, [own.number, 0, 0, 1, "a"])
        say.message(3, [others.number, 0, 0, 1, "x"])
        await until(lambda: the.triton.resumes)
        assert the.triton.resumes[0] == [[own.number, 1, 1], [others.number, 1, 1]]
        say.message(4, [own.number, 1, 1, 1, "b", "stop"], [others.number, 1, 1, 0, "", "stop"])
        assert (await client.ended()).text == "ab"
        assert (await other.ended()).text == "x"
        await until(lambda: the.triton.acknowledged[-1:] == [4])
        own.final(2, 2)
        others.final(1, 1)
    assert count(metrics.egress_repairs_total, "message") == repairs + 1


async def test_a_final_that_is_ahead_has_the_end_asked_for_again(quick: None) -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a"])
        own.final(1, 1)
        await until(lambda: the.triton.resumes)
        assert the.triton.resumes[0] == [[own.number, 1, 1]]
        the.triton.subscription.message(2, [own.number, 1, 1, 0, "", "stop"])
        assert (await client.ended()).text == "a"


@pytest.mark.parametrize("how", ["row", "end", "lost"])
async def test_what_cannot_be_repaired_is_an_error_of_that_stream_alone(
    quick: None, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "REPAIR_S", 0.5)
    cut = count(metrics.egress_cut_streams_total, "lost")
    async with world() as the:
        client, own = await the.admitted()
        other, others = await the.admitted()
        say = the.triton.subscription
        say.message(1, [own.number, 0, 0, 1, "a"], [others.number, 0, 0, 1, "x"])
        if how == "row":
            say.message(2, [own.number, 2, 2, 1, "c", "stop"])
        elif how == "end":
            own.final(3, 3)
        else:
            say.message(2, [own.number, 0, 0, 0, "", "lost"])
        await client.ended()
        assert client.text == "a"
        assert error_of(client).status == 503
        assert "lost" in error_of(client).message
        if how != "end":
            await until(lambda: own.is_closed, "the engine is told")
        say.message(3, [others.number, 1, 1, 1, "y", "stop"])
        assert (await other.ended()).text == "xy"
        others.final(2, 2)
        await until(lambda: the.triton.acknowledged[-1:] == [3])
    assert count(metrics.egress_cut_streams_total, "lost") == cut + 1


async def test_nonsense_in_a_row_is_its_stream_s_alone() -> None:
    async with world() as the:
        client, own = await the.admitted()
        other, others = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 1, 5], [others.number, 0, 0, 1, "x", "stop"])
        assert (await other.ended()).text == "x"
        assert error_of(await client.ended()).status == 500
        others.final(1, 1)


# Subscriptions that break


@pytest.mark.parametrize("how", ["broken", "replaced", "error", "nonsense"])
async def test_a_subscription_that_ends_is_opened_again_from_where_each_stream_is(how: str) -> None:
    reconnects = count(metrics.egress_reconnects_total)
    async with world() as the:
        client, own = await the.admitted()
        unadmitted = (await the.client()).start()
        await until(lambda: len(the.triton.own) == 2)
        the.triton.subscription.message(1, [own.number, 0, 0, 2, "日a"])
        await until(lambda: client.text == "日a")
        the.triton.following = 7
        first = the.triton.subscription
        if how == "broken":
            first.break_off()
        elif how == "replaced":
            first.finish("replaced")
        elif how == "error":
            first.event(error="UNAVAILABLE: The engine is dead.")
        else:
            first.event(text_output="<html>")
        await until(lambda: len(the.triton.subscriptions) == 2)
        # One that is not admitted may not be known to the backend yet.
        assert the.triton.subscription.resume == [[own.number, 2, 2]]
        assert the.triton.subscription.inputs["subscriber"] == first.inputs["subscriber"]
        the.triton.subscription.message(7, [own.number, 2, 2, 1, "b", "stop"])
        assert (await client.ended()).text == "日ab"
        own.final(3, 3)
        unadmitted.generation.cancel(RuntimeError("enough"))
        await unadmitted.ended()
        await until(lambda: the.triton.acknowledged[-1:] == [7])
        assert the.triton.resumes == []
    assert count(metrics.egress_reconnects_total) == reconnects + (how != "replaced")


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_an_acknowledgement_that_fails_has_the_subscription_closed_and_opened_again(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_ANSWER_S", 0.5)
    async with world() as the:
        client, own = await the.admitted()
        if how == "refused":
            the.triton.refuses_acknowledgements = "UNAVAILABLE: the subscriber is not known; subscribe again."
        else:
            the.triton.silent_acknowledgements = True
        first = the.triton.subscription
        first.message(1, [own.number, 0, 0, 1, "a"])
        await until(lambda: len(the.triton.subscriptions) > 1)
        assert first.is_closed
        assert the.triton.subscription.resume == [[own.number, 1, 1]]
        the.triton.refuses_acknowledgements, the.triton.silent_acknowledgements = "", False
        # Meanwhile the rest may come by the own stream.
        own.rows([own.number, 1, 1, 1, "b", "stop"])
        own.final(2, 2)
        assert (await client.ended()).text == "ab"


@pytest.mark.parametrize("how", ["version", "refused"])
async def test_a_backend_that_speaks_otherwise_is_asked_the_other_way(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as the:
        the.triton.says_hello = False
        first = await the.client("auto")
        await until(lambda: the.triton.subscriptions)
        if how == "version":
            the.triton.subscription.hello(version=2)
        else:
            the.triton.subscription.refuse(400, "INVALID_ARG text_input: is missing.")
        await until(lambda: "no batched egress" in caplog.text)
        for _ in range(3):
            assert type((await the.client("auto")).generation) is Generation
        await asyncio.sleep(0)
        assert type(first.generation) is Generation
        assert len(the.triton.subscriptions) == 1
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        must = await (await the.client("always")).start().ended()
        assert error_of(must).status == 503
        assert not isinstance(must.failure, InstanceFailure)
        # Another contract is another backend, perhaps.
        other = ModelContract(Backend.OURS, CONTRACT.inputs | {"new"})
        the.triton.says_hello = True
        await the.paths._subscriptions["m"].known(other)
        assert the.paths._subscriptions["m"].is_usable


async def test_an_instance_that_cannot_be_reached_is_its_own_failure() -> None:
    async with world() as the:
        the.triton.says_hello = False
        client = (await the.client()).start()
        await until(lambda: the.triton.subscriptions)
        the.triton.subscription.refuse(503, "The model is loading.")
        for subscribed in the.triton.subscriptions:
            await until(lambda one=subscribed: one.over.is_set())  # type: ignore[misc]
        the.triton.says_hello = True
        await until(lambda: the.triton.own, "it is tried again")
        client.generation.cancel(RuntimeError("enough"))
        await client.ended()


# Failures by the own stream


async def test_a_refusal_before_the_admission() -> None:
    async with world() as the:
        client = (await the.client()).start()
        await until(lambda: the.triton.own)
        the.triton.own[1].refuse(400, "INVALID_ARG prompt: 9 tokens are too many for the context.")
        await client.ended()
        assert (error_of(client).status, error_of(client).code) == (400, "context_length_exceeded")


async def test_an_error_row_ends_the_answer_behind_what_came_before_it() -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a"])
        own.error("INTERNAL: it broke.")
        outputs = {"error": "INTERNAL: it broke."}
        the.triton.subscription.message(2, [own.number, 1, 1, 1, "b", "error", outputs])
        await client.ended()
        assert client.text == "ab"
        assert "it broke" in error_of(client).message


async def test_an_error_of_the_own_stream_counts_where_no_row_says_it(quick: None) -> None:
    async with world() as the:
        client, own = await the.admitted()
        own.error("UNAVAILABLE: The engine is dead.")
        await client.ended()
        assert isinstance(client.failure, InstanceFailure)
        assert client.failure.message.startswith("The engine is dead.")


async def test_the_engine_s_own_reason_error_is_a_reason() -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 0, "", "error"])
        await client.ended()
        assert (client.reason, client.failure) == ("error", None)
        own.final(0, 0, "error")


@pytest.mark.parametrize("admitted", [True, False])
async def test_an_own_stream_that_breaks_off_is_the_instance_s_failure(quick: None, admitted: bool) -> None:
    async with world() as the:
        client = (await the.client()).start()
        await until(lambda: the.triton.own)
        if admitted:
            the.triton.own[1].admit()
            await until(lambda: client.is_open)
        the.triton.own[1].break_off()
        await client.ended()
        assert isinstance(client.failure, InstanceFailure)
        assert client.counter.tokens == 0


# Clients


async def test_a_slow_client_is_cut_and_nobody_else_notices() -> None:
    cut = count(metrics.egress_cut_streams_total, "slow_client")
    async with world() as the:
        slow, slows = await the.admitted(buffer_bytes=100)
        other, others = await the.admitted(buffer_bytes=100)
        say = the.triton.subscription
        slow.is_slow = True
        for step in range(40):
            rows = ([own.number, step, 10 * step, 1, "0123456789"] for own in (slows, others))
            say.message(step + 1, *rows)
            await until(lambda size=10 * step + 10: len(other.text) == size)  # type: ignore[misc]
        say.message(41, [others.number, 40, 400, 0, "", "stop"])
        await other.ended()
        assert other.text == "0123456789" * 40
        others.final(40, 400)
        await until(lambda: slows.is_closed, "its request is cancelled")
        slow.reads_on.set()
        await slow.ended()
        assert error_of(slow).code == "client_too_slow"
        assert ("0123456789" * 40).startswith(slow.text)
    assert count(metrics.egress_cut_streams_total, "slow_client") == cut + 1


async def test_a_client_that_is_slow_within_its_buffer_loses_nothing() -> None:
    async with world() as the:
        client, own = await the.admitted(buffer_bytes=1000)
        client.is_slow = True
        for step in range(50):
            the.triton.subscription.message(step + 1, [own.number, step, step, 1, "a"])
        the.triton.subscription.message(51, [own.number, 50, 50, 0, "", "stop"])
        await until(lambda: the.triton.acknowledged[-1:] == [51])
        assert not client.is_over
        client.is_slow = False
        client.reads_on.set()
        await client.ended()
        assert (client.text, client.reason) == ("a" * 50, "stop")
        own.final(50, 50)


async def test_a_deadline_ends_a_client_that_has_not_taken_an_answer_which_has_come() -> None:
    async with world() as the:
        client, own = await the.admitted()
        client.is_slow = True
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a"])
        await until(lambda: client.text == "a")
        the.triton.subscription.message(2, [own.number, 1, 1, 1, "b", "stop"])
        await until(lambda: the.triton.acknowledged[-1:] == [2])
        client.generation.cancel(Gone())
        client.reads_on.set()
        await client.ended()
        assert isinstance(client.failure, Gone)
        assert client.text == "a"
        own.final(2, 2)
        await until(lambda: the.connections._idle, "the connection to be kept")


async def test_the_desk_sees_who_waits_for_whom() -> None:
    async with world() as the:
        client, own = await the.admitted()
        await until(lambda: client.generation.waits)
        client.is_slow = True
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a"])
        await until(lambda: client.text == "a")
        await until(lambda: not client.generation.waits)
        client.is_slow = False
        client.reads_on.set()
        await until(lambda: client.generation.waits)
        the.triton.subscription.message(2, [own.number, 1, 1, 0, "", "stop"])
        await client.ended()
        assert not client.generation.waits
        own.final(1, 1)


async def test_what_is_cancelled_is_named_at_once() -> None:
    """An answer that has come is not."""
    async with world() as the:
        (client, own), (other, others) = await the.admitted(), await the.admitted()
        the.triton.subscription.message(1, [others.number, 0, 0, 1, "a", "stop"])
        await other.ended()
        other.generation.cancel(Gone())
        client.generation.cancel(Gone())
        await until(lambda: any("cancelled" in inputs for inputs in the.triton.acknowledgements))
    named = [json.loads(inputs["cancelled"]) for inputs in the.triton.acknowledgements if "cancelled" in inputs]
    assert named == [[own.number]]


@pytest.mark.parametrize("when", ["before open", "before admission", "before a row", "in mid-stream", "after the end"])
async def test_a_cancel_closes_the_request_s_own_connection_and_nothing_else(when: str) -> None:
    async with world() as the:
        client = await the.client()
        if when == "before open":
            client.generation.cancel(Gone())
            await client.start().ended()
            assert isinstance(client.failure, Gone)
            assert the.triton.own == {}
            return
        client.start()
        await until(lambda: the.triton.own)
        own = the.triton.own[1]
        if when != "before admission":
            own.admit()
            await until(lambda: client.is_open)
        if when in ("in mid-stream", "after the end"):
            the.triton.subscription.message(1, [1, 0, 0, 1, "a"])
            await until(lambda: client.text == "a")
        if when == "after the end":
            the.triton.subscription.message(2, [1, 1, 1, 0, "", "stop"])
            await client.ended()
            client.generation.cancel(Gone())
            own.final(1, 1)
            await until(lambda: the.connections._idle)
            assert not own.is_closed
            return
        client.generation.cancel(Gone())
        await client.ended()
        assert isinstance(client.failure, Gone)
        await until(lambda: own.is_closed)
        # What comes for it is nobody's, and the subscription goes on.
        other, others = await the.admitted()
        the.triton.subscription.message(2, [1, 1, 1, 1, "b"], [others.number, 0, 0, 1, "x", "stop"])
        assert (await other.ended()).text == "x"
        others.final(1, 1)
        assert len(the.triton.subscriptions) == 1


async def test_a_final_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "_LAST_RESPONSE_S", 0.1)
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a", "stop"])
        await client.ended()
        await until(lambda: own.is_closed)


async def test_a_final_that_says_otherwise_is_told_to_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as the:
        client, own = await the.admitted()
        the.triton.subscription.message(1, [own.number, 0, 0, 1, "a", "stop"])
        await client.ended()
        own.final(2, 5)
        await until(lambda: "had 2 tokens and 5 characters, but 1 and 1 came" in caplog.text)


async def test_closing_leaves_nothing_open() -> None:
    """What `world` checks of each test, with everything there is."""
    async with world() as the:
        client, own = await the.admitted()
        lingering, its = await the.admitted()
        the.triton.subscription.message(1, [its.number, 0, 0, 1, "a", "stop"])
        await lingering.ended()
        subscribed = the.triton.subscription
        await the.paths.close()
        await until(lambda: subscribed.is_closed and its.is_closed)
        own.rows([own.number, 0, 0, 1, "a", "stop"])
        own.final(1, 1)
        assert (await client.ended()).text == "a"
