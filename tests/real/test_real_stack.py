"""The real stack as the dev tool starts and stops it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from devtools import guard, models
from devtools.errors import DevError
from devtools.stack import Stack, StackConfig
from tests.support.processes import commands

FreshStack = Callable[[StackConfig], Stack]


def _shared_memory(stack: Stack) -> list[Path]:
    return list(Path("/dev/shm").glob(f"triton_vllm_stack_{os.getpid()}_{stack.config.ports.triton_http}_*"))


def test_both_models_are_served_by_our_backend(stack: Stack) -> None:
    for model in (models.TINY, models.SMOLLM2):
        assert httpx.get(f"{stack.triton_url}/v2/models/{model}/ready").status_code == 200
        inputs = {one["name"] for one in httpx.get(f"{stack.triton_url}/v2/models/{model}").json()["inputs"]}
        assert {"text_input", "send_admission", "input_ids"} <= inputs


def test_vllm_writes_its_metrics_where_the_stack_says(stack: Stack) -> None:
    written = sorted(path.name.split("_")[0] for path in (stack.state / "metrics").glob("*.db"))
    # One process each per model.
    assert written == sorted(["counter", "gauge", "histogram"] * 2)


def test_smollm2_knows_its_capitals(stack: Stack) -> None:
    body = {
        "model": models.SMOLLM2,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 20,
    }
    answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=60)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"], answer.text


def test_the_tiny_tokenizer_and_template_both_write_a_bos(stack: Stack) -> None:
    # What the counting test of the gateway relies on.
    code = (
        "import sys; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]);"
        "r = t.apply_chat_template([{'role': 'user', 'content': 'hi'}], tokenize=False, add_generation_prompt=True);"
        "counts = [t(text).input_ids.count(t.bos_token_id) for text in ('hi', r)];"
        "print(r.startswith(t.bos_token), *counts)"
    )
    folder = models.tiny(Path(sys.executable))
    said = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "1", "2"]


@pytest.mark.long
def test_a_killed_server_leaves_no_process_and_no_shared_memory(fresh_stack: FreshStack) -> None:
    own = fresh_stack(StackConfig(gateway=False))
    triton = own.service("triton")
    pids = triton.pids()
    running = commands(pids)
    (server,) = [pid for pid, command in running.items() if "bin/tritonserver" in command]
    assert any("triton_python_backend_stub" in command for command in running.values())
    assert any("VLLM::EngineCore" in command for command in running.values())
    assert _shared_memory(own)

    os.kill(server, signal.SIGKILL)
    assert triton.wait() == 128 + signal.SIGKILL
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not _shared_memory(own)


@pytest.mark.long
def test_a_stub_that_is_late_on_a_busy_machine_is_started_again(fresh_stack: FreshStack, tmp_path: Path) -> None:
    # tritonserver waits one second for a stub's sign of life, then for ever for its end.
    stopped: list[int] = []

    def stubs() -> set[int]:
        running = commands(guard.descendants(os.getpid()))
        return {pid for pid, command in running.items() if "python_backend_stub" in command.partition(" ")[0]}

    # The shared stack may be running beside this one.
    others = stubs()

    def stop_one() -> None:
        while not stopped:
            time.sleep(0.2)
            stopped.extend(stubs() - others)
        time.sleep(3)
        os.kill(stopped[0], signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(stopped[0], signal.SIGCONT)

    busy = threading.Thread(target=stop_one)
    busy.start()
    own = fresh_stack(StackConfig(gateway=False))
    busy.join()
    assert httpx.get(f"{own.triton_url}/v2/health/ready").status_code == 200
    assert stopped[0] not in own.service("triton").pids()
    assert not Path(f"/proc/{stopped[0]}").exists()


@pytest.mark.long
def test_a_model_that_cannot_load_ends_the_start_with_its_reason(fresh_stack: FreshStack) -> None:
    with pytest.raises(DevError, match="unknown_argument"):
        fresh_stack(StackConfig(models={models.TINY: {"unknown_argument": 1}}, gateway=False))
