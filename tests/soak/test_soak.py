"""Minutes of everything at once: streams and whole answers, clients that go away, read slowly or guess keys, engines
that fail, and one that is killed and comes back. In the end nothing is in flight anywhere, memory is flat, and no
answer was lost or silently short.

`SOAK_SECONDS` sets how long (600 unless given). What clients do is in `tests.soak.loads`.
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from devtools.paths import ROOT
from tests.soak.loads import client, prepare
from tests.soak.stage import Engine, Stage, memory, processes
from tests.support.chat import MODEL
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
_CLIENTS = 24
_ENGINES = 3
_WORKERS = 2
_SAMPLE_S = 1.0
_USUAL = ("complete", "stream ended by an error", "engine error in a stream", "went away", "within the limit",
          "status 400", "status 401", "status 404", "status 429", "status 500")  # fmt: skip
# A process may grow by so much between its third fifth and its last; a leak of 100 bytes a request is more than that.
_GROWTH_MIB = 8.0


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        started: list[Engine] = []
        for _ in range(_ENGINES):
            started.append(engine := Engine())
            stack.callback(engine.stop)
            engine.start()
        yield started


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@pytest.fixture
def keys(keys_file: Path) -> dict[str, str]:
    def new(*arguments: str) -> str:
        command = [sys.executable, "-m", "gateway", "keys", "new", *arguments, "--keys-file", str(keys_file)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return {"team": new("team"), "limited": new("limited", "--requests-per-minute", "30")}


@pytest.fixture
def gateway(engines: list[Engine], tmp_path: Path, keys_file: Path, keys: dict[str, str]) -> Iterator[Gateway]:
    template = {"chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(template))
    models = [{"triton_model": MODEL, "tokenizer": str(tmp_path)}]
    flags = ["--models", json.dumps(models), "--keys-file", str(keys_file), "--workers", str(_WORKERS)]
    for engine in engines:
        flags += ["--triton", engine.control.url]
    with running_gateway(*flags) as running:
        yield running.wait_until_ready()


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
async def test_soak(gateway: Gateway, engines: list[Engine], keys: dict[str, str]) -> None:
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        stage = Stage(gateway, engines, keys, session, MODEL)
        await prepare(stage)
        end = asyncio.get_running_loop().time() + SECONDS
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        watching = asyncio.create_task(_watch_memory(gateway.process.pid, end))
        async with asyncio.TaskGroup() as clients:
            clients.create_task(_kill_now_and_then(stage, end))
            for number in range(_CLIENTS):
                clients.create_task(client(stage, random.Random(seed + number), end))
        used = await watching
        print(dict(stage.outcomes))
        assert stage.wrong[:20] == [], f"{len(stage.wrong)} answers are wrong; seed {seed}"
        assert sum(engine.kills for engine in engines) > 0
        for outcome in _USUAL:
            assert stage.outcomes[outcome] > 0, f"the soak never saw: {outcome}"
        await asyncio.to_thread(_nothing_is_left, stage)
    _is_flat(used)


async def _kill_now_and_then(stage: Stage, end: float) -> None:
    """One engine at a time; the others are untouched."""
    loop = asyncio.get_running_loop()
    pause = max(6.0, SECONDS / 20)
    number = 0
    while loop.time() + pause < end:
        await asyncio.sleep(pause)
        engine = stage.engines[number % len(stage.engines)]
        await asyncio.to_thread(engine.kill)
        await asyncio.sleep(2)
        await asyncio.to_thread(engine.start)
        for each in stage.engines:
            # The mock keeps every request for its tests.
            each.control.forget_requests()
        number += 1


async def _watch_memory(process: int, end: float) -> dict[int, list[float]]:
    """MiB of each process of the gateway, sample by sample."""
    loop = asyncio.get_running_loop()
    used: dict[int, list[float]] = defaultdict(list)
    while loop.time() < end:
        for each in processes(process):
            used[each].append(memory(each))
        await asyncio.sleep(_SAMPLE_S)
    return used


def _nothing_is_left(stage: Stage) -> None:
    """In the gateway, at its desk and in the engines."""
    of_gateway, of_desk = "gateway_requests_in_flight", "gateway_instance_in_flight"
    wait_for(lambda: stage.gateway.metric(of_gateway) == 0, "the workers to have nothing in flight")
    wait_for(lambda: stage.gateway.metric(of_desk) == 0, "the desk to know of nothing in flight")
    wait_for(lambda: not any(engine.control.state()["in_flight"] for engine in stage.engines), "the engines to be idle")
    assert stage.gateway.metric("gateway_instance_outstanding_tokens") == 0
    assert stage.gateway.metric("gateway_queue_waiting") == 0
    # All that died were killed: no worker was started anew.
    assert not any("ended with exit code" in str(line["message"]) for line in stage.gateway.logs)


def _is_flat(used: dict[int, list[float]]) -> None:
    for process, samples in used.items():
        # One that was started late, such as a worker in place of another, has not warmed up.
        if len(samples) < SECONDS / _SAMPLE_S / 2:
            continue
        fifth = len(samples) // 5
        before, after = statistics.median(samples[2 * fifth : 3 * fifth]), statistics.median(samples[-fifth:])
        print(f"process {process}: {before:.1f} MiB, then {after:.1f} MiB")
        assert after - before < _GROWTH_MIB, f"process {process} grew from {before:.1f} to {after:.1f} MiB"
