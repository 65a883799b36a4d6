"""The failure of an instance: the request may be tried on another one. What an engine answers is final."""

from gateway.openai.errors import ApiError, unavailable


class InstanceFailure(ApiError):
    """A 503 for the client, who reads `message`; `problem` says for the operator what happened, without a full stop.

    `unreachable`: there was no connection. `stalled`: the desk gave the instance up, and needs not be told.
    """

    def __init__(self, message: str, problem: str, *, unreachable: bool = False, stalled: bool = False) -> None:
        plain = unavailable(message)
        super().__init__(plain.status, plain.message, code=plain.code, headers=plain.headers)
        self.problem = problem
        self.unreachable = unreachable
        self.stalled = stalled

    def of(self, whom: str) -> "InstanceFailure":
        return InstanceFailure(
            f"{whom}: {self.message}", self.problem, unreachable=self.unreachable, stalled=self.stalled
        )
