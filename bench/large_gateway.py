"""The gateway as it is, whose event loop answers datagrams: `python -m bench.large_gateway PORT FLAGS…`.

A datagram holds the time at which it was sent, and its answer how long it had to wait for the loop, both in seconds and
by the clock that all processes share.
"""

import asyncio
import functools
import runpy
import socket
import struct
import sys
import time

from gateway.observe import loop

TIME = struct.Struct("d")


async def answering(port: int, _worker: int) -> None:
    """In place of the loop's own watch over itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("127.0.0.1", port))
        asked.setblocking(False)

        def answer() -> None:
            sent, whom = asked.recvfrom(TIME.size)
            asked.sendto(TIME.pack(time.monotonic() - TIME.unpack(sent)[0]), whom)

        asyncio.get_running_loop().add_reader(asked, answer)
        await asyncio.Event().wait()


if __name__ == "__main__":
    loop.watch = functools.partial(answering, int(sys.argv.pop(1)))
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)
