"""NVIDIA's own client works against the mock."""

import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from bench.mock_engine.running import running_mock_engine

from .conftest import Client


async def test_the_control_plane() -> None:
    with running_mock_engine(models=("m",), server_version="2.66.1") as engine:
        client = triton.InferenceServerClient(engine.url.removeprefix("http://"))
        try:
            assert (await client.get_server_metadata())["version"] == "2.66.1"
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("m")
            assert not await client.is_model_ready("nope")
            metadata = await client.get_model_metadata("m")
            assert "send_admission" in [tensor["name"] for tensor in metadata["inputs"]]
            config = await client.get_model_config("m")
            assert config["model_transaction_policy"] == {"decoupled": True}
            assert config["backend"] == "vllm"
            assert await client.get_model_repository_index() == [{"name": "m", "version": "1", "state": "READY"}]
            assert (await client.get_inference_statistics("m"))["model_stats"][0]["name"] == "m"
            await client.unload_model("m")
            assert not await client.is_model_ready("m")
            with pytest.raises(InferenceServerException, match="has no available versions"):
                await client.get_model_metadata("m")
            await client.load_model("m")
            assert await client.is_model_ready("m")
            with pytest.raises(InferenceServerException, match="failed to poll from model repository"):
                await client.load_model("nope")
        finally:
            await client.close()


def test_metrics(own: Client) -> None:
    own.stream()
    page = own.ask("GET", "/metrics")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    assert b'nv_inference_pending_request_count{model="m",version="1"} 0\n' in page.body
    assert b"# TYPE nv_inference_request_success counter\n" in page.body
