"""The whole way of a model: announced by a webhook, seen being copied from a real S3 server, published, loaded in a
real Triton, and a chat completion answered from the published folder."""

import base64
import hashlib
import hmac
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from boto3.s3.transfer import TransferConfig

from bench.s3_server import S3Server
from devtools import models
from devtools.repository import SHIPPED
from devtools.stack import StackConfig
from tests.real.conftest import FreshStack
from tests.support.gateway import running_gateway
from tests.support.prefetch_service import RunningService, settings

BUCKET, PREFIX = "models-prod", f"team-a/{models.SMOLLM2}/1"
SECRET = "mlflow-secret"


@pytest.fixture
def s3(tmp_path: Path, engine_platform: None) -> Iterator[S3Server]:
    """With SmolLM2 in it, uploaded as people do: in parts, with the checksum of the full object."""
    server = S3Server(tmp_path / "s3")
    server.start()
    client = server.client()
    client.create_bucket(Bucket=BUCKET)
    folder = models.folder(models.SMOLLM2, Path(sys.executable))
    # The name of the client matters: the other one ignores the endpoint.
    transfer = TransferConfig(preferred_transfer_client="classic")
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            key = f"{PREFIX}/{file.relative_to(folder)}"
            more = {"ChecksumAlgorithm": "CRC64NVME"}
            client.upload_file(str(file), BUCKET, key, Config=transfer, ExtraArgs=more)
    yield server
    server.stop()


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """The shipped deployment, with the places that prefetch fills in."""
    folder = tmp_path / "template"
    shutil.copytree(SHIPPED / models.SMOLLM2, folder)
    arguments = json.loads((folder / "1" / "model.json").read_text())
    arguments |= {"model": "${path}", "safetensors_load_strategy": "${safetensors_load_strategy}"}
    (folder / "1" / "model.json").write_text(json.dumps(arguments))
    return folder


def _webhook(service: RunningService) -> tuple[int, Any]:
    """MLflow's `model_version.created`, signed."""
    data = {"name": models.SMOLLM2, "version": "1", "source": f"s3://{BUCKET}/{PREFIX}", "run_id": "1", "tags": {}}
    body = json.dumps({"entity": "model_version", "action": "created", "data": data}).encode()
    delivery, stamp = "delivery-1", str(int(time.time()))
    digest = hmac.new(SECRET.encode(), f"{delivery}.{stamp}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": stamp,
        "X-MLflow-Signature": f"v1,{base64.b64encode(digest).decode()}",
    }
    return service.ask("POST", "/v1/announcements", body, token=None, headers=headers)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_announced_model_answers(s3: S3Server, template: Path, fresh_stack: FreshStack, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    stack = fresh_stack(StackConfig(models={}, gateway=False, engine_arguments=(f"--model-repository={repository}",)))
    service = RunningService(
        tmp_path / "prefetch",
        settings(
            tmp_path / "prefetch",
            s3.url,
            mlflow_secret=SECRET,
            part_bytes=4 * 1024 * 1024,
            # About five seconds, so that the progress can be seen.
            bytes_per_second=60_000_000,
            triton=[stack.triton_url],
            triton_repository=str(repository),
            triton_template=str(template),
        ),
    )
    service.start()
    try:
        status, job = _webhook(service)
        assert status == 202, job
        events = list(service.events(job["id"]))
        assert events[-1]["state"] == "published", events[-1]["error"]
        progress = [event["progress"] for event in events if event["state"] == "running"]
        assert any(0 < one["bytes"] < one["total_bytes"] and one["eta_seconds"] for one in progress)
        phases = [one["phase"] for one in progress]
        assert "copying" in phases
        assert "loading" in phases
        folder = service.target / models.SMOLLM2 / "1"
        ready = json.loads((folder / "READY.json").read_text())
        assert ready["files"]["model.safetensors"]["checked"] == ["size", "crc64nvme", "safetensors"]
        # The job ended when the model was ready.
        with urllib.request.urlopen(f"{stack.triton_url}/v2/models/{models.SMOLLM2}/ready") as answer:
            assert answer.status == 200
        entry = json.loads((repository / models.SMOLLM2 / "1" / "model.json").read_text())
        assert entry["model"] == str(folder)
        assert entry["safetensors_load_strategy"] == "lazy"
        versions = service.ask("GET", "/v1/models", token=None)[1]["models"]
        assert [one["kept"] for one in versions] == ["current"]
        flags = ("--triton", stack.triton_url, "--model-repository", str(repository))
        with running_gateway(*flags) as gateway:
            gateway.wait_until_ready()
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
            answered = client.chat.completions.create(
                model=models.SMOLLM2,
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                temperature=0,
                max_tokens=30,
            )
        assert "Paris" in (answered.choices[0].message.content or "")
        assert service.metric("prefetch_announced_to_ready_seconds_count") == 1
    finally:
        service.close()
