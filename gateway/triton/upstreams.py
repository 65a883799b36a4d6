"""The connections that the native relay makes to one Triton itself, for requests that it asks.

It knows addresses, not names: what a name stands for is found out by connecting the usual way, which tries all that the
name has, and again every `ADDRESS_SECONDS`.
"""

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from gateway.triton.limits import ADDRESS_SECONDS, IDLE_CONNECTIONS, IDLE_SECONDS

if TYPE_CHECKING:
    from gateway_relay import Upstreams as NativeUpstreams


class Connecting(Protocol):
    """Whoever waits for a connection."""

    @property
    def is_connecting(self) -> bool: ...

    def go_on(self) -> None:
        """It takes too long."""


class Upstreams:
    """`find` connects to `host` and returns the address, or None where that cannot be; `connect_timeout` is in
    seconds."""

    def __init__(
        self, host: str, port: int, find: Callable[[], Awaitable[str | None]], connect_timeout: float
    ) -> None:
        self._connect_timeout = connect_timeout
        self._connecting: dict[Connecting, float] = {}
        """Until when. The first one is always the next: all have the same time."""
        self._watching: asyncio.TimerHandle | None = None
        self._port = port
        self._find = find
        self.native: NativeUpstreams | None = None
        """None without the relay, and while no address is known."""
        self._address = ""
        self._found_at = -math.inf
        self._finding: asyncio.Task[None] | None = None
        self._closing_idle: asyncio.TimerHandle | None = None
        if _is_address(host):
            self._found_at = math.inf
            self._use(host)

    def is_known(self) -> bool:
        """Whether there are any to be asked, which is found out from now on where it is not known, or not any more."""
        if time.monotonic() > self._found_at + ADDRESS_SECONDS and self._finding is None:
            self._finding = asyncio.get_running_loop().create_task(self._look())
        return self.native is not None

    def lost(self) -> None:
        """The address cannot be reached: perhaps the name has another one by now."""
        if self._found_at != math.inf:
            self._found_at = -math.inf
            self._forget()

    def watch(self, one: Connecting) -> None:
        """Tell it when its time to connect is over, unless it is `let_go`."""
        self._connecting[one] = time.monotonic() + self._connect_timeout
        if self._watching is None:
            self._watch_in(self._connect_timeout)

    def let_go(self, one: Connecting) -> None:
        self._connecting.pop(one, None)

    def used(self) -> None:
        """A request is over, and its connection is kept."""
        if self._closing_idle is None:
            self._close_idle_in(IDLE_SECONDS)

    def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
        for timer in (self._closing_idle, self._watching):
            if timer is not None:
                timer.cancel()
        self._forget()

    async def _look(self) -> None:
        try:
            address = await self._find()
        finally:
            self._finding = None
        if address is not None:
            self._found_at = time.monotonic()
            self._use(address)

    def _use(self, address: str) -> None:
        try:
            from gateway_relay import Upstreams as NativeUpstreams
        except ImportError:
            return
        if address != self._address or self.native is None:
            self._forget()
            self._address = address
            self.native = NativeUpstreams(address, str(self._port), IDLE_CONNECTIONS)

    def _forget(self) -> None:
        native, self.native = self.native, None
        if native is not None:
            native.close()

    def _watch_in(self, seconds: float) -> None:
        self._watching = asyncio.get_running_loop().call_later(seconds, self._watch)

    def _watch(self) -> None:
        self._watching = None
        now = time.monotonic()
        while self._connecting:
            one, until = next(iter(self._connecting.items()))
            if one.is_connecting and until > now:
                self._watch_in(until - now)
                return
            del self._connecting[one]
            if one.is_connecting:
                one.go_on()

    def _close_idle_in(self, seconds: float) -> None:
        self._closing_idle = asyncio.get_running_loop().call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._closing_idle = None
        left = 0.0 if self.native is None else self.native.close_idle(IDLE_SECONDS)
        if left:
            self._close_idle_in(left)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
