"""NVIDIA's own client, for Triton's control plane: how one is opened for a base URL."""

from urllib.parse import urlsplit

from tritonclient.http.aio import InferenceServerClient


def triton_client(url: str, timeout: float) -> InferenceServerClient:
    """An async context manager; `timeout` is what each of its requests may take in all, in seconds."""
    return InferenceServerClient(
        url=url.partition("://")[2].rstrip("/"), ssl=urlsplit(url).scheme == "https", conn_timeout=timeout
    )
