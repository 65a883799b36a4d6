"""How long large requests keep the gateway's event loop from its other work: `python -m bench large`.

While a body of megabytes is read, checked, rendered and sent to the byte source, the loop is sent datagrams, two in a
millisecond: how long the slowest had to wait for it, in CPU time of the gateway's process, is how long it was not there
for others, such as streams that have got a token. Exit code 1 if that is more than is promised.
"""

import argparse
import http.client
import json
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.compare import screen, tables
from bench.compare.servers import GATEWAY, running_service
from bench.compare.verdict import Judged, Spread
from bench.flags import positive
from bench.large_gateway import ANSWER, QUESTION
from bench.load.workloads import Format
from bench.ports import free_port
from bench.upstream.running import running_upstream
from bench.upstream.script import Model
from devtools import models
from devtools.errors import DevError
from devtools.progress import step

TARGET_MS = 5
BYTES = 4_000_000
"""Of a body, about; the gateway takes 4 MiB unless told otherwise."""

_PAUSE_SECONDS = 0.0005
_PATIENCE_SECONDS = 120
_SECTION = "large"
_TEMPLATE = """{# <tool_call>{"name": … } #}{%- for tool in tools or [] %}{{ tool | tojson }}
{%- endfor %}
{%- for message in messages %}<|start|>{{ message.role }}
{% if message.content is string %}{{ message.content | trim }}{% else %}
{%- for part in message.content %}{{ part.text }}{% endfor %}{% endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""
_MODEL = Model("bench", 2048, 5)
_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"


def chat(*contents: Any, **fields: Any) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return _dumps({"model": _MODEL.name, "messages": messages, "max_tokens": 1, "stream": True, **fields})


def completion(prompt: Any) -> bytes:
    return _dumps({"model": _MODEL.name, "prompt": prompt, "max_tokens": 1, "stream": True})


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _tool(number: int, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{number}", "parameters": parameters}}


def _nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


_PROPERTIES = {f"property_{number}": {"type": "string", "description": "x" * 40} for number in range(50)}
_UNKNOWN = {f"unknown_{number}": "x" * 24 for number in range(79_000)}

CASES: dict[str, tuple[str, int, Callable[[], bytes]]] = {
    "9,999 messages": (_CHAT, 200, lambda: chat(*["word " * 75] * 9999)),
    "9,999 messages in parts": (_CHAT, 200, lambda: chat(*[[{"type": "text", "text": "word " * 66}]] * 9999)),
    "one message": (_CHAT, 200, lambda: chat("word " * (BYTES // 5))),
    "one message, with escapes": (_CHAT, 200, lambda: chat('a\n"é\\ ' * (BYTES // 10))),
    "token ids": (_COMPLETION, 200, lambda: completion([100_000 + n % 28_000 for n in range(BYTES // 7)])),
    "token ids of two digits": (_COMPLETION, 200, lambda: completion([10 + n % 90 for n in range(BYTES // 3)])),
    "60 prompts of token ids": (_COMPLETION, 200, lambda: completion([list(range(1000, 9000))] * 60)),
    "60 prompts of text": (_COMPLETION, 200, lambda: completion(["word " * (BYTES // 300)] * 60)),
    "500 tools": (_CHAT, 200, lambda: chat("x", tools=[_tool(number, _PROPERTIES) for number in range(500)])),
    "one tool with 400,000 numbers": (_CHAT, 200, lambda: chat("x", tools=[_tool(0, {"enum": list(range(400_000))})])),
    "documents, nested 150 deep": (_CHAT, 200, lambda: chat("x", documents=[{"a": [_nested(150, "x" * 9000)] * 390}])),
    "40 objects of 10,000 members": (
        _CHAT,
        200,
        lambda: chat("x", documents=[{str(n): 1 for n in range(10_000)}] * 40),
    ),
    "a bias for 79,000 tokens": (_CHAT, 200, lambda: chat("x", logit_bias={str(n): 1 for n in range(79_000)})),
    "600,000 allowed tokens": (_CHAT, 200, lambda: chat("x", allowed_token_ids=list(range(600_000)))),
    "a schema with 400,000 numbers": (_CHAT, 400, lambda: chat("x", guided_json={"enum": list(range(400_000))})),
    "79,000 unknown members": (_CHAT, 400, lambda: chat("x", **_UNKNOWN)),
    "a message with 79,000 unknown members": (
        _CHAT,
        400,
        lambda: _dumps({"model": _MODEL.name, "messages": [{"role": "user", "content": "x", **_UNKNOWN}]}),
    ),
    "a name of 4 MB": (_CHAT, 400, lambda: chat("x", **{"x" * BYTES: 1})),
    "1,300,000 empty messages": (_CHAT, 400, lambda: chat()[:-1] + b',"x":[' + b"{}," * (BYTES // 3) + b"{}]}"),
    "no JSON, at its end": (_CHAT, 400, lambda: chat(*["word " * 75] * 9999)[:-1]),
    "no JSON, without a comma": (_CHAT, 400, lambda: b'{"a":' + b'"' * BYTES),
}


@contextmanager
def running(upstream: str, folder: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """The gateway's URL, and what asks its loop how long it took to answer."""
    tokenizer = folder / "tokenizer"
    shutil.copytree(models.tiny(Path(sys.executable)), tokenizer)
    (tokenizer / "chat_template.jinja").write_text(_TEMPLATE)
    known = [{"triton_model": _MODEL.name, "tokenizer": str(tokenizer), "max_model_len": 8192, "tool_parser": "hermes"}]
    port, probe = free_port(), free_port()
    command = [sys.executable, "-m", "bench.large_gateway", str(probe)]
    command += ["--triton", upstream, "--models", json.dumps(known), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (
        running_service(GATEWAY, command, url, "/health/ready", Format.CHAT, folder),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loop,
    ):
        loop.connect(("127.0.0.1", probe))
        loop.settimeout(_PATIENCE_SECONDS)

        def wait(clock: int) -> tuple[float, int]:
            loop.send(QUESTION.pack(time.clock_gettime(clock)))
            seconds, pid = ANSWER.unpack(loop.recv(ANSWER.size))
            return seconds, pid

        _, pid = wait(time.CLOCK_PROCESS_CPUTIME_ID)
        # As clock_getcpuclockid has it.
        clock = (~pid << 3) | 2
        yield url, lambda: wait(clock)[0]


def longest_wait(url: str, wait: Callable[[], float], path: str, body: bytes, status: int) -> float:
    """In seconds, for the loop, until a request is answered and let go of. Raises DevError where the answer is not as
    expected."""
    address = urlsplit(url)
    answered: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_PATIENCE_SECONDS)
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        answered.append(answer.status)
        connection.close()

    asking = threading.Thread(target=ask)
    asking.start()
    longest, more = 0.0, 40
    while more:
        longest = max(longest, wait())
        time.sleep(_PAUSE_SECONDS)
        more -= not asking.is_alive()
    if answered != [status]:
        raise DevError(f"The gateway answered {answered} where {status} was expected.")
    return longest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench large", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=positive, default=5, metavar="COUNT", help="of every body (%(default)s)")
    parser.add_argument("--only", action="append", metavar="WORD", help="bodies with this in their name")
    screen.add_into(parser, _SECTION)
    arguments = parser.parse_args()
    for word in arguments.only or ():
        if not any(word in name for name in CASES):
            parser.error(f"argument --only: no body has {word!r} in its name; there are: {'; '.join(CASES)}")
    cases = {
        name: (path, status, make())
        for name, (path, status, make) in CASES.items()
        if not arguments.only or any(word in name for word in arguments.only)
    }
    waits: dict[str, list[float]] = {name: [] for name in cases}
    with (
        tempfile.TemporaryDirectory(prefix="bench-large-") as folder,
        running_upstream([_MODEL]) as upstream,
        running(upstream.url, Path(folder)) as (url, wait),
        step("Asking"),
    ):
        for _ in range(arguments.rounds):
            for name, (path, status, body) in cases.items():
                try:
                    waits[name].append(1000 * longest_wait(url, wait, path, body, status))
                except DevError as error:
                    raise DevError(f"{name}: {error}") from None
    judged = [
        Judged(f"{name} ({len(cases[name][2]) / 1e6:.1f} MB)", Spread.of(found), "ms", TARGET_MS)
        for name, found in waits.items()
    ]
    about = f"{screen.machine()}; {arguments.rounds} rounds."
    table = tables.ratios(judged)
    screen.show(about, [tables.Table("The longest wait for the event loop", table.header, table.rows)])
    if arguments.into:
        screen.write_into(arguments.into, about, [table], _SECTION)
    return 1 if any(one.is_met is False for one in judged) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DevError as error:
        sys.exit(f"bench large: {error}")
