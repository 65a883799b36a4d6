"""The gateway as it is, whose event loop answers datagrams: `python -m bench.large_gateway PORT FLAGS…`.

A datagram holds the CPU time that this process had taken when it was sent, and its answer what it took from then until
the loop came to it, both in seconds: how long the loop was not there, without what other processes took of the machine.
The answer ends with the process's id.
"""

import asyncio
import functools
import os
import runpy
import socket
import struct
import sys
import time

from gateway.observe import loop

QUESTION, ANSWER = struct.Struct("d"), struct.Struct("dq")


async def answering(port: int, _worker: int) -> None:
    """In place of the loop's own watch over itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("127.0.0.1", port))
        asked.setblocking(False)

        def answer() -> None:
            data, whom = asked.recvfrom(QUESTION.size)
            (before,) = QUESTION.unpack(data)
            asked.sendto(ANSWER.pack(time.process_time() - before, os.getpid()), whom)

        asyncio.get_running_loop().add_reader(asked, answer)
        await asyncio.Event().wait()


if __name__ == "__main__":
    loop.watch = functools.partial(answering, int(sys.argv.pop(1)))
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)
