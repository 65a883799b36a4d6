"""The listening socket: any host, a free port, one sentence for one that cannot be had."""

import socket

import pytest

from service_base.errors import SettingsError
from service_base.server import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_socket_that_takes_connections(host: str) -> None:
    with listen(host, 0) as listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=30):
        pass


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^The port {port} is taken; free it or give another --port\.$"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machines(host: str) -> None:
    with pytest.raises(SettingsError, match=rf"^Cannot listen on {host}:0: .+; give another --port or --host\.$"):
        listen(host, 0)
