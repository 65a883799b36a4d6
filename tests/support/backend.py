"""A client of the backend's own contract: Triton's HTTP, with tensors as JSON keys, and the server's log."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

Event = dict[str, Any]


def sampling(**parameters: Any) -> str:
    """The value of the `sampling_parameters` input."""
    return json.dumps(parameters)


class Backend:
    """One model of a running Triton, and the file that its server logs to."""

    def __init__(self, triton_url: str, model: str, log: Path) -> None:
        self._client = httpx.Client(base_url=f"{triton_url}/v2", timeout=120, limits=httpx.Limits(max_connections=None))
        self._model = model
        self._log = log

    def close(self) -> None:
        self._client.close()

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get(f"/models/{self._model}").json()
        return found

    @property
    def is_ready(self) -> bool:
        return self._client.get(f"/models/{self._model}/ready").status_code == 200

    def load(self) -> None:
        """Loads the model again; returns when it is ready."""
        self._client.post(f"/repository/models/{self._model}/load").raise_for_status()

    def unload(self) -> None:
        """Triton lets the requests that are open come to their ends."""
        self._client.post(f"/repository/models/{self._model}/unload").raise_for_status()

    def generate(self, **inputs: Any) -> Event:
        """The single response of a request that is not streamed."""
        answer = self._client.post(f"/models/{self._model}/generate", json=inputs)
        assert answer.status_code == 200, answer.text
        response: Event = answer.json()
        return response

    def refusal(self, **inputs: Any) -> str:
        """The error text of a request that is refused before its first response; the same on both routes."""
        texts = set()
        for route in ("generate", "generate_stream"):
            answer = self._client.post(f"/models/{self._model}/{route}", json=inputs)
            assert answer.status_code == 400, answer.text
            # Triton frames the error of its streaming route as an event, in spite of the status.
            (error,) = json.loads(answer.text.removeprefix("data: ")).items()
            assert error[0] == "error"
            texts.add(error[1])
        (text,) = texts
        assert isinstance(text, str)
        return text

    def stream(self, **inputs: Any) -> list[Event]:
        """All responses of a streamed request, read to the end."""
        with self.open(**inputs) as events:
            return list(events)

    @contextmanager
    def open(self, **inputs: Any) -> Iterator[Iterator[Event]]:
        """A streamed request. Leaving the block closes the connection, read to its end or not."""
        body = {"stream": True, "exclude_input_in_output": True} | inputs
        with self._client.stream("POST", f"/models/{self._model}/generate_stream", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise AssertionError(answer.text)
            yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))

    @contextmanager
    def subscription(self, **inputs: Any) -> Iterator[httpx.Response]:
        """A subscription of batched egress, its body not read yet."""
        with self._client.stream("POST", f"/models/{self._model}/generate_stream", json=inputs) as answer:
            if answer.status_code != 200:
                answer.read()
                raise AssertionError(answer.text)
            yield answer

    def wait_for_log(self, text: str, timeout: float = 60) -> str:
        """The first line of the server's log with `text` in it, as soon as it is there."""
        return next(self._log_lines(lambda line: text in line, timeout))

    def _log_lines(self, wanted: Callable[[str], bool], timeout: float) -> Iterator[str]:
        give_up_at = time.monotonic() + timeout
        with self._log.open(errors="replace") as log:
            part = ""
            while True:
                part += log.readline()
                if part.endswith("\n"):
                    if wanted(part):
                        yield part
                    part = ""
                else:
                    assert time.monotonic() < give_up_at, "the line did not come into the log"
                    time.sleep(0.001)


def text_of(events: list[Event]) -> str:
    return "".join(event["text_output"] for event in events)
