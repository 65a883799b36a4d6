"""The running service: announced over HTTP, copied from the real S3 server."""

import hashlib
import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.prefetch import MODEL, PART_BYTES, Bucket, files_in
from tests.support.prefetch_service import TOKEN, StartService, command
from tests.support.waiting import wait_for


def test_announced_seen_and_published(model: Bucket, start: StartService, proxy: FaultProxy) -> None:
    """The whole way, with the progress on every channel."""
    service = start(bytes_per_second=200_000)
    status, job = service.ask("POST", "/v1/announcements", {"model": "acme/m", "version": "1", "source": model.source})
    assert status == 202
    assert job["state"] == "queued"
    seen = list(service.events(job["id"]))
    states = [event["state"] for event in seen]
    assert states[-1] == "published"
    assert sorted(set(states), key=states.index) in (["queued", "running", "published"], ["running", "published"])
    copying = [event["progress"] for event in seen if event["state"] == "running" and event["progress"]["files"]]
    amounts = [progress["bytes"] for progress in copying]
    assert amounts == sorted(amounts)
    assert any(0 < amount < copying[-1]["total_bytes"] for amount in amounts)
    assert any(progress["bytes_per_second"] > 0 and progress["eta_seconds"] > 0 for progress in copying)
    assert any(progress["files"]["model.safetensors"]["state"] == "copying" for progress in copying)
    done = service.job(job["id"])
    assert done["error"] is None
    assert done["progress"]["bytes"] == done["progress"]["total_bytes"] == sum(map(len, MODEL.values()))
    assert all(file["state"] == "done" for file in done["progress"]["files"].values())
    folder = service.target / "acme" / "m" / "1"
    assert files_in(folder) == MODEL
    assert (folder.parent / "current").resolve() == folder.resolve()
    assert not [path for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o222]
    ready = json.loads((folder / "READY.json").read_text())
    assert ready["source"] == model.source
    assert ready["load"] == {"safetensors_load_strategy": "lazy"}
    assert ready["files"]["model.safetensors"]["checked"] == ["size", "crc32", "safetensors"]
    status, jobs = service.ask("GET", "/v1/jobs", token=None)
    assert [one["id"] for one in jobs["jobs"]] == [job["id"]]
    status, versions = service.ask("GET", "/v1/models", token=None)
    assert [(one["model"], one["version"], one["kept"]) for one in versions["models"]] == [("acme/m", "1", "current")]
    status, page = service.ask("GET", "/", token=None)
    assert "v1/jobs" in page
    assert "<progress" not in page
    assert 'element("progress")' in page
    assert service.metric("prefetch_bytes_total") == proxy.downloaded() == sum(map(len, MODEL.values()))
    assert service.metric("prefetch_jobs_total") == 1
    assert service.metric("prefetch_announced_to_ready_seconds_count") == 1
    assert service.metric("prefetch_queue_wait_seconds_count") == 1
    assert service.metric("prefetch_phase_seconds_count") >= 4
    assert service.metric("prefetch_target_size_bytes") > service.metric("prefetch_target_free_bytes") > 0
    assert service.metric("prefetch_jobs_past_deadline") == 0
    assert service.stop() == 0
    log = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert TOKEN not in service.log.read_text()
    assert next(line for line in log if line["message"] == "effective settings")["settings"]["tokens"] == "(set)"


def test_the_same_content_is_one_job_and_an_older_version_can_be_current_again(
    model: Bucket, start: StartService
) -> None:
    service = start()
    first = service.announce(model.source)
    service.wait_for_job(first["id"], "published")
    second = service.announce(model.source, version="2")
    service.wait_for_job(second["id"], "published")
    link = service.target / "m" / "current"
    assert link.readlink() == Path("2")
    again = service.announce(model.source)
    assert again["id"] == first["id"]
    service.wait_for_job(first["id"], "published")
    wait_for(lambda: link.readlink() == Path("1"), "the link")
    assert len(service.ask("GET", "/v1/jobs", token=None)[1]["jobs"]) == 2


def test_a_published_version_does_not_change(model: Bucket, start: StartService) -> None:
    service = start()
    service.wait_for_job(service.announce(model.source)["id"], "published")
    model.put("config.json", b'{"changed": true}')
    job = service.wait_for_job(service.announce(model.source, priority=1)["id"], "published", "failed")
    job = service.wait_for_job(job["id"], "failed")
    assert re.search(
        r"is published with other contents \(config\.json differs\).*announce another version", job["error"]
    )
    assert files_in(service.target / "m" / "1") == MODEL


def test_a_queue_survives_kill_9(model: Bucket, start: StartService, proxy: FaultProxy) -> None:
    """One job is being copied, one waits; neither is lost, and the first does not begin anew."""
    rule = Rule(model.key("model.safetensors"), after=3, times=1, hang=True)
    proxy.rules.append(rule)
    service = start(jobs=1)
    first = service.announce(model.source)
    wait_for(lambda: rule.used, "the copy")
    second = service.announce(model.source, version="2")
    service.kill()
    service.start()
    assert service.wait_for_job(first["id"], "published")["attempts"] == 2
    assert service.wait_for_job(second["id"], "published")["attempts"] == 1
    again = proxy.downloaded() - 2 * sum(map(len, MODEL.values()))
    assert again <= 4 * PART_BYTES
    assert files_in(service.target / "m" / "1") == files_in(service.target / "m" / "2") == MODEL


def test_sigterm_interrupts_and_the_next_start_goes_on(model: Bucket, start: StartService) -> None:
    service = start(bytes_per_second=150_000)
    job = service.announce(model.source)
    wait_for(lambda: (service.job(job["id"])["progress"] or {}).get("bytes"), "the first bytes")
    assert service.stop() == 0
    assert not (service.target / "m").exists()
    other = start()
    assert other.wait_for_job(job["id"], "published")["attempts"] == 2
    assert files_in(other.target / "m" / "1") == MODEL


def test_cancel_and_retry(model: Bucket, start: StartService, proxy: FaultProxy) -> None:
    service = start(bytes_per_second=150_000, jobs=1)
    running = service.announce(model.source)
    waiting = service.announce(model.source, version="2")
    wait_for(lambda: (service.job(running["id"])["progress"] or {}).get("bytes"), "the first bytes")
    assert service.ask("POST", f"/v1/jobs/{running['id']}/cancel", b"", token=None)[0] == 401
    for job in (waiting, running):
        status, _ = service.ask("POST", f"/v1/jobs/{job['id']}/cancel", b"")
        assert status == 200
        service.wait_for_job(job["id"], "cancelled")
        assert service.ask("POST", f"/v1/jobs/{job['id']}/cancel", b"")[0] == 409
    assert not (service.target / "m").exists()
    status, _ = service.ask("POST", f"/v1/jobs/{waiting['id']}/retry", b"")
    assert status == 202
    service.wait_for_job(waiting["id"], "published")
    assert service.ask("POST", f"/v1/jobs/{waiting['id']}/retry", b"")[0] == 409
    assert service.job(running["id"])["state"] == "cancelled"
    assert service.ask("GET", "/v1/jobs/nothing", token=None)[0] == 404


@pytest.mark.long
def test_the_higher_priority_is_copied_first(model: Bucket, start: StartService, proxy: FaultProxy) -> None:
    rule = Rule(model.key("model.safetensors"), times=1, hang=True)
    proxy.rules.append(rule)
    service = start(jobs=1, read_timeout=3)
    service.announce(model.source)
    wait_for(lambda: rule.used, "the first job")
    low = service.announce(model.source, version="low")
    high = service.announce(model.source, version="high", priority=10)
    done = [service.wait_for_job(job["id"], "published") for job in (low, high)]
    assert done[1]["started"] < done[0]["started"]


def test_pins_and_leases(model: Bucket, start: StartService) -> None:
    service = start()
    for version in ("1", "2"):
        service.wait_for_job(service.announce(model.source, version=version, pin=version == "1")["id"], "published")

    def kept() -> dict[str, str | None]:
        models = service.ask("GET", "/v1/models", token=None)[1]["models"]
        return {one["version"]: one["kept"] for one in models}

    one = {"model": "m", "version": "1"}
    assert kept() == {"1": "pinned", "2": "current"}
    assert service.ask("DELETE", "/v1/pins", one) == (200, {"was_pinned": True})
    assert kept()["1"] is None
    lease = one | {"holder": "worker-7"}
    assert service.ask("PUT", "/v1/leases", lease | {"seconds": 3600})[0] == 200
    assert kept()["1"] == "leased by worker-7"
    assert service.ask("DELETE", "/v1/leases", lease) == (200, {"was_held": True})
    assert service.ask("PUT", "/v1/leases", lease | {"seconds": 0.001})[0] == 200
    wait_for(lambda: kept()["1"] is None, "the end of the lease")
    assert service.ask("PUT", "/v1/pins", one) == (200, {"pinned": True})
    assert kept()["1"] == "pinned"
    assert service.ask("PUT", "/v1/pins", one, token="wrong")[0] == 401
    assert service.ask("PUT", "/v1/pins", one | {"version": "3"})[0] == 404
    assert service.ask("PUT", "/v1/leases", lease)[1]["error"]["param"] == "seconds"
    assert service.ask("PUT", "/v1/pins", {"model": "../m", "version": "1"})[1]["error"]["param"] == "model"
    assert service.ask("PUT", "/v1/leases", lease | {"holder": "ü", "seconds": 1})[1]["error"]["param"] == "holder"


def test_what_the_webhook_refuses(model: Bucket, start: StartService) -> None:
    service = start(max_body_bytes=2000)
    assert service.ask("POST", "/v1/announcements", b"x" * 3000)[0] == 413
    status, body = service.ask("GET", "/v1/announcements")
    assert (status, body["error"]["message"]) == (
        405,
        "GET /v1/announcements: the method is not allowed; see /docs.",
    )
    assert service.ask("GET", "/nothing")[0] == 404
    deep = b'{"manifest":' + b"[" * 900 + b"]" * 900 + b"}"
    assert service.ask("POST", "/v1/announcements", deep)[0] in (400, 422)
    assert service.metric("prefetch_announcements_total") == 2


def test_a_job_fails_and_names_the_file(model: Bucket, start: StartService) -> None:
    model.put("model.safetensors", MODEL["model.safetensors"][:-5])
    service = start()
    job = service.wait_for_job(service.announce(model.source)["id"], "failed")
    assert job["error"].startswith("model.safetensors is damaged, also when fetched again: its tensors cover")
    assert service.metric("prefetch_verify_failures_total") == 2
    model.put("model.safetensors", MODEL["model.safetensors"])
    service.ask("POST", f"/v1/jobs/{job['id']}/retry", b"")
    service.wait_for_job(job["id"], "published")


def test_late_jobs_are_counted(model: Bucket, start: StartService) -> None:
    service = start(deadline=0.5, bytes_per_second=20_000)
    service.announce(model.source)
    wait_for(lambda: service.metric("prefetch_jobs_past_deadline") == 1, "the deadline")


def test_a_failed_job_is_late_until_it_is_given_up(model: Bucket, start: StartService) -> None:
    service = start(deadline=0.5)
    job = service.wait_for_job(service.announce(f"{model.source}nothing/")["id"], "failed")
    wait_for(lambda: service.metric("prefetch_jobs_past_deadline") == 1, "the deadline")
    assert service.ask("POST", f"/v1/jobs/{job['id']}/cancel", b"")[0] == 200
    assert service.job(job["id"])["state"] == "cancelled"
    assert service.metric("prefetch_jobs_past_deadline") == 0


def test_a_marker_that_is_a_manifest(model: Bucket, start: StartService) -> None:
    """EventBridge announces a folder whose manifest was uploaded last; its digests are checked."""
    files = {path: {"sha256": hashlib.sha256(body).hexdigest()} for path, body in MODEL.items()}
    model.put("manifest.json", json.dumps({"files": files}).encode())
    event = {
        "version": "0",
        "id": "1",
        "detail-type": "Object Created",
        "source": "aws.s3",
        "detail": {"bucket": {"name": "models-prod"}, "object": {"key": model.key("manifest.json"), "sequencer": "1"}},
    }
    service = start()
    status, job = service.ask("POST", "/v1/announcements", event)
    assert status == 202
    service.wait_for_job(job["id"], "published")
    folder = service.target / job["model"] / "1"
    # The marker is none of the model's files.
    assert files_in(folder) == MODEL
    assert "sha256" in json.loads((folder / "READY.json").read_text())["files"]["model.safetensors"]["checked"]


def test_announce_on_the_command_line(model: Bucket, start: StartService) -> None:
    service = start()
    env = {"PREFETCH_TOKENS": TOKEN}
    said = command("announce", model.source, "--url", service.url, "--model", "m", env=env)
    assert said.returncode == 0, said.stderr
    url, state = said.stdout.split()
    assert state == "queued"
    service.wait_for_job(url.rpartition("/")[2], "published")
    said = command("announce", "s3://other/m/1/", "--url", service.url, env=env)
    assert said.returncode == 1
    assert "The source s3://other/m/1/ is not allowed" in said.stderr
    said = command("announce", model.source, "--url", service.url, env={"PREFETCH_TOKENS": "wrong"})
    assert said.returncode == 1
    assert "Give a token" in said.stderr


def test_the_streams_of_events_end_with_the_service(model: Bucket, start: StartService) -> None:
    service = start(bytes_per_second=20_000)
    job = service.announce(model.source)
    with urllib.request.urlopen(f"{service.url}/v1/jobs/{job['id']}/events", timeout=60) as stream:
        assert stream.readline().startswith(b"data: ")
        assert service.stop() == 0
        stream.read()
