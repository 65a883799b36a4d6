"""How the tokens of a generation come back from one Triton instance: by its own stream, or by one subscription for all.

Batched egress is used where the model's metadata offers it and its hello is understood, unless the model's settings say
otherwise; until the first hello has come, requests go the other way and have the subscription opened.
"""

import asyncio
import functools
from collections.abc import Mapping

from gateway.aside import aside
from gateway.observe import metrics
from gateway.openai.errors import unavailable
from gateway.settings import BatchedEgress
from gateway.triton import egress
from gateway.triton.batched import BatchedGeneration
from gateway.triton.contract import GenerateRequest, ModelContract, request_body
from gateway.triton.generate import Connections
from gateway.triton.generation import Counter, Generation, path_of
from gateway.triton.subscription import Subscription
from gateway.triton.upstreams import Upstreams


class Paths:
    """Of one instance; `instance` is its name. `close` it."""

    def __init__(self, instance: str, connections: Connections) -> None:
        self._instance = instance
        self._connections = connections
        self._subscriptions: dict[str, Subscription] = {}

    async def generation(
        self,
        model: str,
        contract: ModelContract,
        request: GenerateRequest,
        context_len: int | None,
        places: Mapping[str, str],
        counter: Counter,
        headers: bytes,
        batched_egress: BatchedEgress,
        buffer_bytes: int,
        size: int = 0,
    ) -> Generation:
        """`batched_egress` is the model's setting, `buffer_bytes` how much may wait for a slow client, `size` how many
        bytes the client sent; the rest as in `Generation` and `request_body`. Raises a 503 where the model must be
        asked in a way that it does not offer, a 400 as `request_body` does."""
        # A prompt's log probabilities may be megabytes, which a subscription would read at once.
        is_large = "prompt_logprobs" in request.outputs and batched_egress != "always"
        subscription = None if is_large else self._subscription(model, contract, batched_egress)
        path = "per_request" if subscription is None else "batched"
        _counter(model, self._instance, path).inc()
        where = self._instance, self._connections, model
        if subscription is None:
            body = await aside(size, functools.partial(request_body, contract.backend, request, context_len))
            return Generation(*where, contract.backend, body, request.outputs, places, counter, headers)
        number = subscription.next_number()
        request = request._replace(inputs={**request.inputs, **egress.answer_inputs(subscription.subscriber, number)})
        body = await aside(size, functools.partial(request_body, contract.backend, request, context_len))
        of_stream = subscription, number, buffer_bytes
        return BatchedGeneration(*where, contract, body, request.outputs, places, counter, headers, *of_stream)

    def by_itself(
        self,
        model: str,
        contract: ModelContract,
        body: bytes,
        places: Mapping[str, str],
        counter: Counter,
        headers: bytes,
        batched_egress: BatchedEgress,
    ) -> Generation | None:
        """One without JSON outputs whose tokens come by its own stream, of a body that `request_body` made; None where
        they are to come by the subscription. As `generation`."""
        if self._subscription(model, contract, batched_egress) is not None:
            return None
        _counter(model, self._instance, "per_request").inc()
        where = self._instance, self._connections, model
        return Generation(*where, contract.backend, body, (), places, counter, headers)

    def relayed(
        self, model: str, contract: ModelContract, batched_egress: BatchedEgress
    ) -> tuple[Upstreams, bytes] | None:
        """What the native relay asks for one that would be `by_itself`, and the first lines of its request; None where
        it cannot."""
        upstreams = self._connections.upstreams
        if upstreams is None or not upstreams.is_known():
            return None
        if self._subscription(model, contract, batched_egress) is not None:
            return None
        _counter(model, self._instance, "per_request").inc()
        return upstreams, self._connections.head(path_of(model))

    def taken_over(
        self, model: str, contract: ModelContract, places: Mapping[str, str], counter: Counter
    ) -> Generation:
        """One that the relay has asked for, and that is to `adopt` the connection."""
        where = self._instance, self._connections, model
        return Generation(*where, contract.backend, b"", (), places, counter)

    async def close(self) -> None:
        """For good: whatever is open is closed."""
        await asyncio.gather(*(subscription.close() for subscription in self._subscriptions.values()))
        self._connections.close()

    def _subscription(self, model: str, contract: ModelContract, setting: BatchedEgress) -> Subscription | None:
        """The one that the generation's tokens are to come by, if any."""
        if setting == "never":
            return None
        if not egress.is_offered(contract):
            if setting == "always":
                raise unavailable(
                    "The model can only be asked by batched egress (its setting), and its backend does not have it."
                )
            return None
        subscription = self._subscriptions.get(model)
        if subscription is None:
            subscription = self._subscriptions[model] = Subscription(self._instance, self._connections, model)
        subscription.want(contract)
        return subscription if subscription.is_usable or setting == "always" else None


# Found by its labels for every request it would cost a microsecond.
_counter = functools.cache(metrics.generations_total.labels)
