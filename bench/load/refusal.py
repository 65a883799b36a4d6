"""What is said where a server refuses everything: a load that goes on would measure nothing."""

from bench.load.check import Outcome
from bench.load.run import Target
from bench.served import KEY, Unreachable, served_models


def refused(outcome: Outcome, target: Target, model: str, key: str | None) -> Unreachable:
    """One sentence: the status, the server's message, and what to do. `outcome` is one of the refusals."""
    why = outcome.error.rstrip(".")
    return Unreachable(f"{target.url} refuses every request, {why}; {_advice(outcome.status, target, model, key)}.")


def _advice(status: int, target: Target, model: str, key: str | None) -> str:
    if status in (401, 403):
        return f"give it a key that it takes, by --api-key or {KEY}"
    if status in (400, 404) and (listed := _others(target, model, key)):
        return f"it does not serve {model!r} but {listed}: give another --model"
    if status in (400, 413, 422):
        return "give fewer --prompt-bytes or --answer-tokens, or another --workload"
    if status == 404:
        return "check --url and --model"
    if status in (429, 503):
        return "wait until it has room, or give a lower --concurrency or --rate"
    return "its own log should say why"


def _others(target: Target, model: str, key: str | None) -> str:
    """The models that it serves, where it says so and `model` is none of them."""
    if target.unix_socket is not None:
        return ""
    try:
        names = served_models(target.url, key)
    except Unreachable:
        return ""
    return "" if model in names else ", ".join(map(repr, sorted(names)))
