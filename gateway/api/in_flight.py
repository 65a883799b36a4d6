"""How many generations are open, per model: the limit `max_in_flight` over all routes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.models import ServedModel
from gateway.openai.errors import ApiError, bad_request


class InFlight:
    """Counts by Triton's name of a model, since two served names may share one engine."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    @contextmanager
    def admitted(self, model: ServedModel, prompts: int, choices: int = 1) -> Iterator[None]:
        """A request for so many `choices` of each of its `prompts`. Raises a 429 where there is no room for them, a 400
        where there never is."""
        generations = prompts * choices
        if generations > self._limit:
            raise bad_request(
                f"{generations} choices in one request are more than the {self._limit} that may be open "
                "(setting max_in_flight); ask for fewer.",
                "n" if choices > 1 else "prompt",
                "invalid_value",
            )
        if self._open[model.triton_model] + generations > self._limit:
            raise ApiError(
                429,
                f"{self._open[model.triton_model]} of at most {self._limit} requests for this model are open (setting "
                "max_in_flight); try again.",
                code="too_many_requests",
                headers={"retry-after": "1"},
            )
        self._open[model.triton_model] += generations
        try:
            yield
        finally:
            self._open[model.triton_model] -= generations
