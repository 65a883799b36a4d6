"""Answers as each family of models writes them: content, calls and reasoning → raw text."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
WrittenCall = tuple[str, Arguments]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hermes(calls: Sequence[WrittenCall]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {_json(arguments)}}}\n</tool_call>' for name, arguments in calls
    )


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _qwen3_coder(calls: Sequence[WrittenCall]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def _llama3_json(calls: Sequence[WrittenCall]) -> str:
    return "; ".join(f'{{"name": "{name}", "parameters": {_json(arguments)}}}' for name, arguments in calls)


def _llama4_pythonic(calls: Sequence[WrittenCall]) -> str:
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls
    )
    return f"[{', '.join(written)}]"


def _mistral_list(calls: Sequence[WrittenCall]) -> str:
    return "[TOOL_CALLS]" + _json([{"name": name, "arguments": arguments} for name, arguments in calls])


def _mistral_named(calls: Sequence[WrittenCall]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in calls)


def _deepseek_v3(calls: Sequence[WrittenCall]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: Sequence[WrittenCall]) -> str:
    written = (
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "".join(written) + "<｜tool▁calls▁end｜>"


def _glm(separator: str) -> Callable[[Sequence[WrittenCall]], str]:
    def write(calls: Sequence[WrittenCall]) -> str:
        return separator.join(
            f"<tool_call>{name}{separator}"
            + "".join(
                f"<arg_key>{key}</arg_key>{separator}<arg_value>{_bare(value)}</arg_value>{separator}"
                for key, value in arguments.items()
            )
            + "</tool_call>"
            for name, arguments in calls
        )

    return write


def _kimi(calls: Sequence[WrittenCall]) -> str:
    written = (
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return "<|tool_calls_section_begin|>" + "".join(written) + "<|tool_calls_section_end|>"


def _gpt_oss(calls: Sequence[WrittenCall]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
        for name, arguments in calls
    )


@dataclass(frozen=True)
class Family:
    """One way in which one family writes. `end_token` may be left at the end of the text. `bare`: the calls must begin
    a line. `id_pattern` is the form of its ids."""

    parser: str
    write: Callable[[Sequence[WrittenCall]], str]
    end_token: str
    bare: bool = False
    id_pattern: str = r"call_[A-Za-z0-9]{24}"


FAMILIES = {
    "hermes": Family("hermes", _hermes, "<|im_end|>"),
    "qwen3_coder": Family("qwen3_coder", _qwen3_coder, "<|im_end|>"),
    "llama3_json": Family("llama3_json", _llama3_json, "<|eot_id|>", bare=True),
    "llama4_pythonic": Family("llama4_pythonic", _llama4_pythonic, "<|eot|>", bare=True),
    "mistral_list": Family("mistral", _mistral_list, "</s>", id_pattern=r"[A-Za-z0-9]{9}"),
    "mistral_named": Family("mistral", _mistral_named, "</s>", id_pattern=r"[A-Za-z0-9]{9}"),
    "deepseek_v3": Family("deepseek_v3", _deepseek_v3, "<｜end▁of▁sentence｜>"),
    "deepseek_v31": Family("deepseek_v31", _deepseek_v31, "<｜end▁of▁sentence｜>"),
    "glm45": Family("glm45", _glm("\n"), "<|user|>"),
    "glm47": Family("glm45", _glm(""), "<|observation|>"),
    "kimi_k2": Family("kimi_k2", _kimi, "<|im_end|>", id_pattern=r"functions\.[\w.-]+:\d+"),
    "gpt_oss": Family("gpt_oss", _gpt_oss, ""),
}


def written(family: Family, content: str, calls: Sequence[WrittenCall]) -> str:
    """An answer with content ahead of its calls."""
    if family.parser != "gpt_oss":
        return content + ("\n" if family.bare and content and calls else "") + (family.write(calls) if calls else "")
    if not content:
        return family.write(calls)
    preamble = f"<|channel|>{'commentary' if calls else 'final'}<|message|>{content}<|end|>"
    return preamble + ("<|start|>assistant" + family.write(calls) if calls else "")
