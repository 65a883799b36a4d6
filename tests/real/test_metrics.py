"""The metrics proxy on the real stack: all that Triton and vLLM have to say, under load, over reloads and deaths."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from devtools.models import TINY
from devtools.stack import HOST, Stack, StackConfig
from tests.metrics.conftest import FORMATS, prometheus, promtool  # noqa: F401 - fixtures
from tests.metrics.test_prometheus import check
from tests.real.conftest import FreshStack
from tests.support.backend import Backend, sampling
from tests.support.metrics import Proxy, Samples, running_proxy
from tests.support.processes import engine_of
from tests.support.waiting import wait_for

TRITON = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "nv_pinned_memory_pool_total_bytes",
    "nv_pinned_memory_pool_used_bytes",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
}
VLLM = {
    # Token throughput.
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:prompt_tokens_cached_by_source_total",
    "vllm:iteration_tokens_total",
    # Caches.
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:mm_cache_hits_total",
    "vllm:mm_cache_queries_total",
    # Latencies.
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    # Requests.
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:admission_rejections_total",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:request_num_preemptions",
    "vllm:request_prefill_kv_computed_tokens",
    # The engine.
    "vllm:engine_sleep_state",
    "vllm:estimated_flops_per_gpu_total",
    "vllm:estimated_read_bytes_per_gpu_total",
    "vllm:estimated_write_bytes_per_gpu_total",
}

GENERATED = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
COUNTS = ("_total", "_bucket", "_sum", "_count")


@contextmanager
def proxy_of(stack: Stack) -> Iterator[Proxy]:
    triton = f"triton=http://{HOST}:{stack.config.ports.triton_metrics}/metrics"
    with running_proxy("--source", triton, "--source", f"directory={stack.metrics_directory}") as proxy:
        yield proxy


def total(page: Samples, name: str) -> float:
    return sum(page.named(name).values())


class Load:
    """Requests without end, in threads; `tokens` is what their finished ones were given. An error ends a thread's turn
    only."""

    def __init__(self, backend: Backend, streams: int = 3) -> None:
        self.tokens = 0
        self._backend = backend
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(streams)]

    def _run(self, seed: int) -> None:
        while not self._stop.is_set():
            try:
                events = self._backend.stream(
                    text_input=f"Hello {seed} " * 20,
                    sampling_parameters=sampling(max_tokens=40, ignore_eos=True),
                    return_num_output_tokens=True,
                )
            except (AssertionError, httpx.HTTPError):
                time.sleep(0.05)
                continue
            with self._lock:
                self.tokens += sum(event.get("num_output_tokens", 0) for event in events)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Watch:
    """Scrapes all the time; `fell` names every count that was lower than before."""

    def __init__(self, proxy: Proxy) -> None:
        self.scrapes = 0
        self.fell: list[str] = []
        self._proxy = proxy
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        last: dict[Any, float] = {}
        while not self._stop.is_set():
            page = self._proxy.page()
            now = {
                key: values[0]
                for key, values in page.values.items()
                if key[0].startswith("vllm:") and key[0].endswith(COUNTS)
            }
            self.fell += [f"{key}: {value} to {now.get(key)}" for key, value in last.items() if now.get(key, 0) < value]
            last = now
            self.scrapes += 1
            # Loading a model needs the processor more.
            self._stop.wait(0.1)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_one_page_has_all_of_triton_and_all_of_vllm(stack: Stack, backend: Backend, promtool: str) -> None:  # noqa: F811
    with proxy_of(stack) as proxy:
        before = total(proxy.page(), GENERATED)
        with Load(backend) as load, Watch(proxy) as watch:
            wait_for(lambda: total(proxy.page(), RUNNING) >= 2)
            wait_for(lambda: load.tokens > 500)
        assert watch.scrapes > 3
        assert watch.fell == []
        page = proxy.page()
        assert total(page, GENERATED) - before == load.tokens
        families = page.types().keys()
        assert (TRITON - families, VLLM - families) == (set(), set())
        reasons = {dict(labels)["finished_reason"] for labels in page.named("vllm:request_success_total")}
        assert reasons >= {"stop", "length", "abort", "error"}
        assert page['metrics_proxy_directory_processes{source="directory",state="live"}'] == 2
        assert page['metrics_proxy_directory_processes{source="directory",state="unknown"}'] == 0
        # The engines are idle: nothing changes between two looks at the same files.
        wait_for(lambda: total(proxy.page(), RUNNING) == 0)
        wait_for(lambda: _vllms(proxy.page()) == _vllms(_reference(stack)))
    ended = check(promtool, page.text)
    assert ended.returncode in (0, 3), ended.stderr
    assert "error while linting" not in ended.stderr


def _vllms(page: Samples) -> dict[Any, Any]:
    return {key: values for key, values in page.values.items() if key[0].startswith("vllm:")}


def _reference(stack: Stack) -> Samples:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(stack.metrics_directory))  # type: ignore[no-untyped-call]
    return Samples(generate_latest(registry).decode())


def test_prometheus_scrapes_it_under_load(
    stack: Stack,
    backend: Backend,
    prometheus: Callable[[str], Any],  # noqa: F811
) -> None:
    with proxy_of(stack) as proxy, prometheus(proxy.url) as running, Load(backend):
        running.wait_for_scrapes()
        page = proxy.page()
        for job in FORMATS:
            assert set(page.without_own()) <= set(running.values(job)), job


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_reload_and_a_killed_engine_under_load(fresh_stack: FreshStack) -> None:
    stack = fresh_stack(StackConfig(models={TINY: {}}, gateway=False))
    backend = Backend(stack.triton_url, TINY, stack.service("triton").log)
    repository = f"{stack.triton_url}/v2/repository/models/{TINY}"
    with contextlib.closing(backend), proxy_of(stack) as proxy:
        with Load(backend) as load, Watch(proxy) as watch:
            wait_for(lambda: load.tokens > 200)
            before = total(proxy.page(), GENERATED)
            httpx.post(f"{repository}/unload", timeout=120).raise_for_status()
            wait_for(lambda: RUNNING not in proxy.page().names())
            # The queue of an engine that is gone is nobody's; what it has done stays.
            gone = proxy.page()
            assert total(gone, GENERATED) >= before
            assert "vllm:kv_cache_usage_perc" not in gone.names()
            assert gone['metrics_proxy_directory_processes{source="directory",state="live"}'] == 0
            backend.load()
            now = load.tokens
            wait_for(lambda: load.tokens > now + 200)
            wait_for(lambda: total(proxy.page(), RUNNING) > 0)
            os.kill(engine_of(stack.service("triton")), signal.SIGKILL)
            # Our backend's process lives, and says that its engine has stopped.
            backend.wait_for_log("has stopped")
            httpx.post(f"{repository}/unload", timeout=120).raise_for_status()
            wait_for(lambda: RUNNING not in proxy.page().names())
            backend.load()
            now = load.tokens
            wait_for(lambda: load.tokens > now + 200)
        assert watch.fell == []
        assert watch.scrapes > 20
        page = proxy.page()
        # Tokens of requests that the kill cut off were counted by vLLM, but reached no client in full.
        assert total(page, GENERATED) >= load.tokens
        assert page['metrics_proxy_directory_processes{source="directory",state="live"}'] == 1
        assert len(list(stack.metrics_directory.glob("*_ended-*.db"))) == 4
        assert len(list(stack.metrics_directory.glob("*.alive"))) == 1
