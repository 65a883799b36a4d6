"""What happens when parts die, hang, fill up or are restarted: what clients see, which alert says so, and that it ends
without a hand."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.containers.stack import NOT_ANSWERED, ContainerStack, wait_for

pytestmark = pytest.mark.containers

# Run inside prefetch's container, whose port is not published.
_GIVE_UP = """
import json, urllib.request
jobs = json.load(urllib.request.urlopen("http://127.0.0.1:9500/v1/jobs"))["jobs"]
(failed,) = [job["id"] for job in jobs if job["state"] == "failed"]
token = open("/tokens/prefetch").read().strip()
url, headers = f"http://127.0.0.1:9500/v1/jobs/{failed}/cancel", {"Authorization": f"Bearer {token}"}
urllib.request.urlopen(urllib.request.Request(url, b"", headers))
"""


@pytest.mark.parametrize("service", ["metrics-proxy", "prefetch", "prometheus", "alertmanager", "dcgm"])
def test_a_restart_beside_the_path_costs_no_request(stack: ContainerStack, service: str) -> None:
    stack.wait_until_ready()
    with stack.under_load() as statuses:
        stack.compose("restart", service)
        stack.compose("up", "-d", "--wait", "--no-deps", service)
    assert statuses == {200}


def test_a_restarted_gateway_ends_what_it_has_begun(stack: ContainerStack) -> None:
    stack.wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stack.chat, max_tokens=60, ignore_eos=True)
        stack.running(1)
        with stack.under_load() as statuses:
            stack.compose("restart", "gateway")
            wait_for(lambda: stack.ask("/health/ready")[0] == 200, "the gateway")
        status, answer = running.result()
    assert (status, answer["usage"]["completion_tokens"]) == (200, 60)
    # Whoever comes meanwhile is not taken in; whoever was taken in has an answer.
    assert statuses <= {200, 503, NOT_ANSWERED}
    stack.wait_until_ready()


def test_a_stopped_part_is_an_alert(stack: ContainerStack) -> None:
    stack.compose("stop", "prefetch")
    stack.wait_for_alert("TargetDown")
    stack.compose("start", "prefetch")
    stack.wait_for_end_of("TargetDown")


def test_a_full_file_system_is_an_alert(stack: ContainerStack) -> None:
    """A foreign file, which prefetch must not remove, beside a model that is loaded."""
    script = "import sys; open('/models/foreign', 'wb').write(bytes(int(sys.argv[1])))"
    stack.compose("exec", "-T", "prefetch", "python3", "-c", script, "110000000")
    stack.wait_for_alert("DiskWatermark")
    stack.compose("exec", "-T", "prefetch", "rm", "/models/foreign")
    stack.wait_for_end_of("DiskWatermark")
    stack.wait_until_ready()


def test_an_announcement_past_its_deadline_is_an_alert(stack: ContainerStack) -> None:
    """Of a model that nobody has uploaded; until it is given up. The deadline is ten seconds here."""
    stack.compose("exec", "-T", "prefetch", "python3", "-m", "prefetch", "announce", "s3://models/absent/1/")
    stack.wait_for_alert("AnnouncementLate")
    stack.compose("exec", "-T", "prefetch", "python3", "-c", _GIVE_UP)
    stack.wait_for_end_of("AnnouncementLate")


def test_more_than_the_engine_can_hold_is_an_alert(stack: ContainerStack) -> None:
    """The shipped deployment has a KV cache for some 11,600 tokens, which 16 of these fill. Each has a prompt of
    its own, so that nothing is found in the prefix cache."""
    stack.wait_until_ready()
    begun = [
        stack.begin(f"{number}{' apple' * 690}", max_tokens=400, ignore_eos=True) for number in range(100, 126)
    ]
    try:
        stack.wait_for_alert("QueueGrowing")
        stack.wait_for_alert("KvCacheFull")
    finally:
        for connection in begun:
            connection.close()
    # Who has gone away is not computed for.
    stack.running(0)


def test_a_hanging_engine_is_an_alert(stack: ContainerStack) -> None:
    stack.wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stack.chat, max_tokens=1000, ignore_eos=True)
        stack.running(1)
        # It is there, and does nothing.
        stack.signal_engine("SIGSTOP")
        stack.wait_for_alert("EngineWedged")
        stack.wait_for_alert("InstanceEjected")
        assert answer.result()[0] >= 500
        stack.signal_engine("SIGCONT")
    stack.wait_until_ready()
    stack.wait_for_end_of("EngineWedged")


def test_a_killed_engine_is_503_an_alert_and_comes_back(stack: ContainerStack) -> None:
    stack.wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stack.chat, max_tokens=1000, ignore_eos=True)
        stack.running(1)
        stack.signal_engine("SIGKILL")
        assert running.result()[0] >= 500
    with stack.under_load(1) as statuses:
        stack.wait_for_alert("ErrorRate")
    assert 503 in statuses
    assert statuses <= {200, 500, 503}
    stack.wait_until_ready()
    # The dead engine's gauges are gone: what the new one says is all there is.
    stack.running(0)


def test_a_stopped_triton_ends_what_it_has_begun_and_has_its_models_again(stack: ContainerStack) -> None:
    stack.wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stack.chat, max_tokens=60, ignore_eos=True)
        stack.running(1)
        with stack.under_load() as statuses:
            stack.compose("stop", "triton")
            stack.wait_for_alert("MetricsSourceDown")
        assert running.result()[0] == 200
    assert 503 in statuses
    assert statuses <= {200, 503}
    stack.compose("start", "triton")
    stack.wait_until_ready()
    stack.wait_for_end_of("MetricsSourceDown")
