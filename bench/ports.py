"""Free ports for servers that cannot be told to take one."""

import random
import socket


def free_port(and_above: int = 0) -> int:
    """A port of the loopback address that nothing listens on, and the one `and_above` above it."""
    while True:
        # Below those that Linux gives to outgoing connections.
        port = random.randrange(20000, 32000)
        try:
            for probed in {port, port + and_above}:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", probed))
        except OSError:
            continue
        return port
