"""Which target takes a request: a pure choice over the state table.

Another policy (aware of prefixes or of KV caches) takes the place of `choose` with the same arguments.
"""

from collections.abc import Collection, Iterable

from gateway.routing.health import State
from gateway.routing.instances import Target


def choose(
    targets: Iterable[Target], tokens: int, now: float, exclude: Collection[str] = (), *, is_retry: bool = False
) -> Target | None:
    """The target that would have the fewest outstanding tokens with the request's own `tokens`, its load divided by its
    share where it is just coming back; among equals the one chosen longest ago. `exclude` are names of instances.

    A half-open one comes first: its one request is how it comes back, and there is no other way. For a request that
    failed once (`is_retry`) it comes last.
    """
    fit = [target for target in targets if target.takes and target.instance.name not in exclude]
    if len(fit) == 1:
        return fit[0]
    return min(
        fit,
        key=lambda target: (
            (target.health.state is State.HALF_OPEN) is is_retry,
            (target.outstanding + tokens) / target.health.share(now),
            target.turn,
        ),
        default=None,
    )
