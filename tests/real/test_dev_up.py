"""The main job as a newcomer does it: `./dev up`, then the printed commands, then Ctrl-C."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from devtools.stack import Ports
from tests.support.dev import running_up


def _paste(command: str) -> str:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.long
@pytest.mark.usefixtures("engine_platform")
def test_the_printed_commands_work_and_ctrl_c_leaves_nothing() -> None:
    with running_up(ports=Ports.free(), ready_within=240) as up:
        plain, streamed, schema = up.commands
        assert "Paris" in json.loads(_paste(plain))["choices"][0]["message"]["content"]
        events = [line.removeprefix("data: ") for line in _paste(streamed).splitlines() if line]
        assert events[-1] == "[DONE]"
        assert "Paris" in "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1])
        capital = json.loads(json.loads(_paste(schema))["choices"][0]["message"]["content"])
        assert capital.keys() == {"city", "country"}
        assert all(isinstance(value, str) and len(value) <= 40 for value in capital.values())

        metrics = re.search(r"metrics: (http://\S+)\)", up.text)
        assert metrics
        assert "\nvllm:kv_cache_usage_perc{" in _paste(f"curl -s {metrics[1]}/metrics")

        pids = up.pids()
        assert len(pids) >= 8  # Three guards, the gateway, the metrics proxy, tritonserver, its stub, the engine.
        assert up.end() == 0, up.text
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
