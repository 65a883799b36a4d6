"""Clients that ask without a pause, half of them for streams, and note what they get: the load under which a test
breaks things."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.waiting import wait_for


@dataclass
class Outcome:
    """Of one request. `text` is what came of the answer; `ended`: the answer came to its proper end; `error` is the
    error's object, in a body or in an event; `broken` says how the connection failed, which it never should."""

    stream: bool
    began: float
    status: int = 0
    text: str = ""
    ended: bool = False
    error: dict[str, Any] | None = None
    broken: str = ""

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.ended and not self.error and not self.broken


@dataclass
class Load:
    outcomes: list[Outcome] = field(default_factory=list)

    def wait_for_more(self, count: int) -> list[Outcome]:
        """So many requests that begin from now on have ended."""
        now = time.monotonic()
        return wait_for(
            lambda: found if len(found := [o for o in list(self.outcomes) if o.began > now]) >= count else None,
            f"{count} more answers",
        )


@contextmanager
def load(url: str, body: dict[str, Any], clients: int, headers: dict[str, str] | None = None) -> Iterator[Load]:
    """`body` is a request for completions. At the end the clients finish what they have begun."""
    running = Load()
    stop = threading.Event()

    def work(number: int) -> None:
        with httpx.Client(base_url=url, timeout=60, verify=False, headers=headers) as client:
            while not stop.is_set():
                outcome = Outcome(number % 2 == 0, time.monotonic())
                try:
                    _ask(client, body, outcome)
                except httpx.HTTPError as error:
                    outcome.broken = repr(error)
                running.outcomes.append(outcome)
                if outcome.status != 200:
                    # Refused clients do not hammer.
                    stop.wait(0.2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def judge(outcomes: list[Outcome], expected: str | None = None) -> list[Outcome]:
    """Every request is answered whole, or had said something and ended with an explicit error: these are returned.
    `expected` is what each answer says."""
    ended_by_error = []
    for outcome in outcomes:
        if outcome.is_whole:
            assert expected is None or outcome.text == expected
            continue
        assert not outcome.broken, outcome
        assert outcome.stream, outcome
        assert outcome.status == 200, outcome
        assert outcome.text, outcome
        assert expected is None or expected.startswith(outcome.text)
        assert outcome.error is not None, outcome
        assert outcome.error["code"] == "engine_unavailable"
        assert outcome.ended, outcome
        ended_by_error.append(outcome)
    return ended_by_error


def _ask(client: httpx.Client, body: dict[str, Any], outcome: Outcome) -> None:
    if not outcome.stream:
        answer = client.post("/v1/completions", json=body)
        outcome.status = answer.status_code
        if answer.status_code == 200:
            outcome.text, outcome.ended = answer.json()["choices"][0]["text"], True
        else:
            outcome.error = answer.json()["error"]
        return
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        outcome.status = answer.status_code
        if answer.status_code != 200:
            outcome.error = json.loads(answer.read())["error"]
            return
        for line in answer.iter_lines():
            if not line:
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                outcome.ended = True
                continue
            event = json.loads(data)
            if "error" in event:
                outcome.error = event["error"]
            else:
                outcome.text += "".join(choice["text"] for choice in event["choices"])
