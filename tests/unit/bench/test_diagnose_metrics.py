"""What two readings of a metrics page say of the engine, of one model among others."""

import pytest

from bench.diagnose.engine_metrics import between, fetch, read
from bench.diagnose.measured import Engine
from devtools.errors import DevError

PAGE = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_running{{engine="1",model_name="m"}} 1.0
vllm:num_requests_running{{engine="0",model_name="other"}} 50.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 9.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.5
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_bucket{{engine="0",le="0.01",model_name="m"}} 3.0
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {seconds}
vllm:request_queue_time_seconds_count{{engine="0",model_name="m"}} {requests}
vllm:request_queue_time_seconds_sum{{engine="0",model_name="m"}} {queued}
vllm:request_prefill_time_seconds_count{{engine="0",model_name="m"}} {requests}
vllm:request_prefill_time_seconds_sum{{engine="0",model_name="m"}} {prefilled}
nv_inference_count{{model="m"}} 5
"""


def page(**values: float) -> str:
    return PAGE.format(**values)


FIRST = page(running=3.0, tokens=100, seconds=5.0, requests=10, queued=1.0, prefilled=2.0)
LAST = page(running=7.0, tokens=1100, seconds=25.0, requests=30, queued=2.0, prefilled=12.0)


def test_gauges_are_averaged_and_counters_are_what_they_gained() -> None:
    found = between([read(FIRST, "m", 10.0), read(LAST, "m", 15.0)])
    assert found == Engine(running=6.0, waiting=2.0, kv_usage=0.5, itl=0.02, ttft=0.55, tokens_per_second=200.0)
    assert found.requests == 8.0


def test_where_no_sample_has_the_models_name_all_models_count() -> None:
    assert read(FIRST, "served-under-another-name", 0.0).values["vllm:num_requests_running"] == 54.0


def test_what_a_page_has_not_is_none() -> None:
    assert between([read("", "m", 0.0), read("nv_inference_count 5\n", "m", 1.0)]) is None
    assert between([read(FIRST, "m", 0.0)]) is None
    # Gauges that appear with the first request, and an engine that was started again.
    first = between([read("", "m", 0.0), read(FIRST, "m", 1.0)])
    assert first is not None
    assert (first.running, first.tokens_per_second) == (4.0, 100.0)
    again = between([read(LAST, "m", 0.0), read(FIRST, "m", 1.0)])
    assert again is not None
    assert (again.itl, again.ttft, again.tokens_per_second) == (None, None, None)


def test_a_page_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(DevError, match=r"--metrics http://127\.0\.0\.1:1/metrics does not answer: "):
        fetch("http://127.0.0.1:1/metrics")
