"""Starts the byte source in the foreground: `python -m bench.upstream --port P`."""

import argparse
import signal
import sys
from types import FrameType

from bench.flags import positive
from bench.upstream.running import running_upstream
from bench.upstream.script import Model
from devtools.errors import DevError


def main() -> int:
    given = _parser().parse_args()
    model = Model(given.model, given.tokens, given.text_bytes, given.tokens_per_second)
    signal.signal(signal.SIGTERM, _stop)
    try:
        with running_upstream([model], given.host, given.port) as upstream:
            print(f"byte source ready at {upstream.url}", flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                stats = upstream.stats()
                print(
                    f"{stats.requests} requests, {stats.tokens} tokens, "
                    f"{stats.cpu_microseconds_per_token:.2f} µs of CPU per token, {stats.late_tokens} late"
                )
    except DevError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.upstream",
        description="A fast source of tokens without meaning, to measure the server in front of it: Triton's "
        "generate_stream for a gateway of this project (--triton), OpenAI's chat completions (POST "
        "/v1/chat/completions, always a stream) for any other. An answer has as many tokens as max_tokens asks for. "
        "GET /upstream/stats tells what it costs.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (%(default)s: a free one)")
    parser.add_argument("--model", default="bench", metavar="NAME", help="the model's name (%(default)s)")
    parser.add_argument("--tokens", type=positive, default=1024, help="the longest answer in tokens (%(default)s)")
    parser.add_argument("--text-bytes", type=_text_bytes, default=5, help="text of each token in bytes (%(default)s)")
    parser.add_argument(
        "--tokens-per-second", type=float, default=0.0, help="for each stream (%(default)s: an answer leaves at once)"
    )
    return parser


def _text_bytes(text: str) -> int:
    if (number := int(text)) < 2:
        raise argparse.ArgumentTypeError("must be 2 at least: a blank and a digit")
    return number


if __name__ == "__main__":
    sys.exit(main())
