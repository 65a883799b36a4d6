"""The state table of routing: which Triton instances there are, what each serves, how busy it is.

Values only; they are filled by `gateway.triton.control` and read by `gateway.routing.policy`.
"""

from dataclasses import dataclass, field

from gateway.triton.contract import ModelContract
from gateway.triton.generate import Connections


@dataclass(slots=True)
class Instance:
    """One Triton server. `models` holds what is ready on it, by Triton's name;
    `reasons` says in a sentence why a model is not among them."""

    name: str
    connections: Connections
    models: dict[str, ModelContract] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    in_flight: int = 0

    def take_out(self, reason: str) -> None:
        """It cannot be reached: no request goes there until a probe finds it again."""
        self.reasons |= dict.fromkeys(self.models, reason)
        self.models = {}
