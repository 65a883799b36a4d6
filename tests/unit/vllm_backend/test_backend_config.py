"""What a deployment says: its `model.json`, and the tensors in the `config.pbtxt` of the shipped ones."""

import re
from pathlib import Path

import pytest

from vllm_backend import contract
from vllm_backend.contract import StartError, Tensor
from vllm_backend.model_json import read_model_json

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"


def test_the_arguments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"model": "someone/model", "max_model_len": 512}')
    assert read_model_json(path) == {"model": "someone/model", "max_model_len": 512}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", " is not valid JSON: "),
        ("[]", " must hold a JSON object of vLLM's engine arguments."),
        ("{}", ' must name the model: "model" is a folder, or a name on the Hugging Face Hub.'),
        ('{"model": 5}', " must name the model: "),
        ('{"model": "/nowhere/model"}', ": the model folder /nowhere/model does not exist."),
        ('{"model": "./nowhere"}', ": the model folder ./nowhere does not exist."),
        (None, " is missing: it holds vLLM's engine arguments as a JSON object."),
    ],
)
def test_a_slip_is_one_sentence_with_the_file(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "model.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartError) as caught:
        read_model_json(path)
    assert str(caught.value).startswith(f"{path}{reason}")
    assert "\n" not in str(caught.value)


def tensors(section: str, text: str) -> list[Tensor]:
    (block,) = re.findall(rf"^{section} \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    pattern = r'\{ name: "(\w+)", data_type: (\w+), dims: \[ (-?\d+) \](, optional: true)? \}'
    return [Tensor(name, kind, (int(dim),), bool(optional)) for name, kind, dim, optional in re.findall(pattern, block)]


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("*/config.pbtxt")), ids=lambda path: path.parent.name)
def test_the_shipped_deployments_declare_the_contract(path: Path) -> None:
    """They are complete, so that Triton need not ask the backend; a tensor is still described in one place."""
    text = path.read_text()
    assert tensors("input", text) == list(contract.INPUTS)
    assert tensors("output", text) == list(contract.OUTPUTS)
