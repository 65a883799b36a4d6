"""What a Triton answers to load and unload, as an operator reads it. The texts are those of tritonserver 2.51."""

import pytest

from gateway.triton.model_control import refused

_TRACE = "\n\nAt:\n  /backends/vllm/model.py(101): initialize\n;\n"


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: TritonModelException: vLLM's "
            f"engine did not start: max_model_len: it must be at least -1. (the cause is in the log above){_TRACE}",
            "model_load_failed",
            "it cannot load the model: vLLM's engine did not start: max_model_len: it must be at least -1. "
            "(the cause is in the log above)",
        ),
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend "
            "library for backend 'nosuch', try specifying runtime on the model configuration.;\n",
            "model_load_failed",
            "it cannot load the model: unable to find backend library for backend 'nosuch', try specifying runtime on "
            "the model configuration",
        ),
        (
            "load failed for model 'm': at least one version must be available under the version policy of model 'm'\n",
            "model_load_failed",
            "it cannot load the model: at least one version must be available under the version policy of model 'm'",
        ),
        (
            "explicit model load / unload is not allowed if polling is enabled",
            "no_model_control",
            "it does not let models be loaded or unloaded: start it with --model-control-mode=explicit",
        ),
        ("something\nelse.", "triton_error", "it refused: something else"),
    ],
)
def test_a_refusal_is_one_sentence_without_a_trace(text: str, code: str, reason: str) -> None:
    error = refused(text)
    assert (error.code, error.reason) == (code, reason)
