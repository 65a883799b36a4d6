"""What is said between a worker and the desk. Values only."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gateway.desk.rates import UNLIMITED, Limits
from gateway.openai.errors import ApiError

State = Mapping[str, Any]
"""JSON values: `instances` (`Table.snapshot`), `weights` (the versions' weights by served name), and `listing` (which
models there are, as JSON text of `model_list.Listing`)."""


class Ask(NamedTuple):
    """What the desk must know of a request.

    `name` is the model that the client asked for, `model` Triton's name of the version that it was translated for;
    `key` the name of its key, "" without keys, with its `limits`. `prompt_tokens` is an estimate for all prompts,
    `max_tokens` what one generation may come to at most; `priority`: smaller is earlier.
    """

    name: str
    model: str
    generations: int
    prompt_tokens: int
    max_tokens: int
    key: str = ""
    limits: Limits = UNLIMITED
    priority: int = 0


class Owner(Protocol):
    """Whoever asks the desk, with numbers of its own for its requests: a worker. Called by the desk, at any time."""

    def granted(self, number: int, instance: str, model: str) -> None:
        """The request may go to this instance, for this version of the model."""

    def refused(self, number: int, error: ApiError) -> None:
        """It may not; the desk knows nothing of it any more, unless it was to be moved."""

    def lost(self, numbers: list[int], problem: str) -> None:
        """These wait for an instance that makes no progress."""

    def changed(self, state: State) -> None:
        """What all workers know has changed."""
