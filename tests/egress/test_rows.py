"""Rows that do not come as they were sent, and a subscription that is cut again and again: each answer is whole all the
same, as far as its own final says, or says that it is not."""

import itertools
from collections.abc import Callable

import pytest

from devtools.stack import Stack
from tests.egress.conftest import gateway_before
from tests.support.egress_proxy import EgressProxy, Message
from tests.support.streams import asking, chats, silently_wrong, until, until_batched, wrong

_DROPS = 20


class Fault:
    """Spoils each so-many-th message; `done` counts."""

    def __init__(self, spoil: Callable[[Message, "Fault"], list[Message]], every: int = 25) -> None:
        self.done = 0
        self.held: list[Message] = []
        self._spoil = spoil
        self._numbers = itertools.count(1)
        self._every = every

    def __call__(self, message: Message) -> list[Message]:
        if next(self._numbers) % self._every == 0:
            self.done += 1
            return self._spoil(message, self)
        held, self.held = self.held, []
        return [message, *held]


def _lose(message: Message, fault: Fault) -> list[Message]:
    return []


def _lose_a_row(message: Message, fault: Fault) -> list[Message]:
    return [message | {"rows": message["rows"][1:]}]


def _double(message: Message, fault: Fault) -> list[Message]:
    return [message, message]


def _double_a_row(message: Message, fault: Fault) -> list[Message]:
    return [message | {"rows": [*message["rows"], message["rows"][0]]}]


def _reorder(message: Message, fault: Fault) -> list[Message]:
    """It comes behind the next one."""
    fault.held = [message]
    return []


def _reorder_a_row(message: Message, fault: Fault) -> list[Message]:
    """It comes behind the stream's next row, which by then has begun to be missed."""
    fault.held = [message | {"rows": message["rows"][:1]}]
    return [message | {"rows": message["rows"][1:]}]


@pytest.mark.parametrize("spoil", [_lose, _lose_a_row, _double, _double_a_row, _reorder, _reorder_a_row])
async def test_rows_that_come_wrong(
    spoil: Callable[[Message, Fault], list[Message]], triton: Stack, proxy: EgressProxy
) -> None:
    fault = Fault(spoil)
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        proxy.change = fault
        async with asking(gateway.url, chats(16, 200)) as outcomes:
            assert wrong(await outcomes) == []
        assert fault.done
        if spoil in (_lose, _lose_a_row):
            assert gateway.metric("gateway_egress_repairs_total") > 0


async def test_a_subscription_that_is_cut_twenty_times(triton: Stack, proxy: EgressProxy) -> None:
    requests = chats(64, 2000)
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        begun = len(proxy.seen.own)
        async with asking(gateway.url, requests) as outcomes:
            await until(lambda: proxy.seen.answered(begun) == 64, "the streams")
            for _ in range(_DROPS):
                await until(proxy.drop_subscriptions, "a subscription to cut")
            ended = await outcomes
        # The answers are over with their rows; the finals come behind.
        await until(lambda: proxy.seen.finished(begun) == 64, "the finals")
        assert silently_wrong(ended) == []
        assert wrong(ended) == []
        assert gateway.metric("gateway_egress_reconnects_total") >= _DROPS
    finals = [(own.tokens, own.characters) for own in proxy.seen.own[begun:]]
    assert len(finals) == 64
    texts = [request.expected.text or "" for request in requests]
    assert sorted(finals) == sorted((2000, len(text)) for text in texts)
