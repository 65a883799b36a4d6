"""Starts the mock engine in the foreground: `python -m bench.mock_engine --port P`.

It speaks Triton's HTTP API (health, metadata, config, statistics, model repository, generate, generate_stream;
/metrics on the same port) for models that generate plain words, or valid instances of a structured output. An
answer is a pure function of the prompt and the sampling parameters. With --model-repository a model's length and
tokenizer.json are those of its model.json when it is loaded; otherwise the context is 4096 tokens and a token is a
piece of a word of at most three bytes. `constraints` are taken, with one catalogue, `words`.

Control for tests, all JSON:
  POST   /mock/faults    add a fault; the oldest fault that fits a request is used
    which requests:  "model": name, "match": substring of text_input, "request_id": end of Triton's id,
                     "next": how many requests (null: all)
    what happens:    "forget": [names]                sampling parameters and inputs that are taken, but not obeyed
                     "error_before": text             an error before the first response
                     "error_after": {"tokens": k, "error": text}
                     "finish_reason_error": true      vLLM ends the request with finish_reason error
                     "stall_before": true             nothing comes, no admission either
                     "stall_after": k                 the engine stops after k tokens
                     "close_after": {"events": k} or {"bytes": k}   the connection is dropped
                     "merge": k or [sizes]            so many tokens in each response
                     "token_interval_ms": f
                     "split_writes": [sizes] or seed  the response's bytes leave in pieces
                     "text": what the model says instead, a list: token by token
  DELETE /mock/faults    remove all faults; stalled requests go on
  GET    /mock/requests  the requests received: inputs, decoded sampling_parameters, parameters (what the backend
                         ignores), Triton's request_id, admitted, tokens, how each ended
  DELETE /mock/requests  forget them
  GET    /mock/state     live, ready, in_flight, models
  POST   /mock/state     {"live": bool, "ready": bool, "models": {"NAME": {"ready": bool}}}

SIGTERM and SIGINT end it at once.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import get_args

from bench.mock_engine.models import RepositoryError
from bench.mock_engine.own import SchedulingPolicy
from bench.mock_engine.reasoning import ReasoningParser
from bench.mock_engine.server import MockServer, ModelControlMode, Options


def _options(arguments: list[str] | None = None) -> Options:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m bench.mock_engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default=defaults.host, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=defaults.port, help="port to listen on (%(default)s: a free one)")
    parser.add_argument("--stock", action="store_true", help="behave as NVIDIA's stock vLLM backend, with its faults")
    parser.add_argument(
        "--scheduling-policy",
        choices=get_args(SchedulingPolicy),
        default=defaults.scheduling_policy,
        help="the engine's scheduling_policy (%(default)s): a request may have a priority only with priority",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="a model to load, may be given several times (all of the repository, or one named mock)",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="a sampling parameter or an input that this project's backend is too old to have",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=get_args(ReasoningParser),
        help="the engine's reasoning parser: constraints begin behind the reasoning (none)",
    )
    parser.add_argument(
        "--model-repository",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="Triton model repository to read, may be given several times",
    )
    parser.add_argument(
        "--model-control-mode",
        choices=get_args(ModelControlMode),
        default=defaults.model_control_mode,
        help="Triton's; without explicit no model can be loaded or unloaded (%(default)s)",
    )
    parser.add_argument("--server-version", default=defaults.server_version, help="Triton's version (%(default)s)")
    parser.add_argument(
        "--token-interval-ms", type=float, default=defaults.token_interval_ms, help="time per token (%(default)s)"
    )
    parser.add_argument(
        "--load-seconds", type=float, default=defaults.load_seconds, help="how long loading a model takes (%(default)s)"
    )
    given = parser.parse_args(arguments)
    if given.token_interval_ms < 0 or given.load_seconds < 0:
        parser.error("--token-interval-ms and --load-seconds must not be negative")
    return Options(
        host=given.host,
        port=given.port,
        stock=given.stock,
        scheduling_policy=given.scheduling_policy,
        without=tuple(given.without),
        reasoning_parser=given.reasoning_parser,
        models=tuple(given.model),
        model_repository=tuple(given.model_repository),
        model_control_mode=given.model_control_mode,
        server_version=given.server_version,
        token_interval_ms=given.token_interval_ms,
        load_seconds=given.load_seconds,
    )


async def _run(options: Options) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _, url = await MockServer(options).listen()
    print(f"mock engine ready at {url}", flush=True)
    await stop.wait()


def main() -> int:
    options = _options()
    try:
        asyncio.run(_run(options))
    except RepositoryError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port}: {os.strerror(error.errno or 0)}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
