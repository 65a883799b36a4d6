"""What lies in a Triton's model repositories, load and unload: its model repository extension, through `tritonclient`.

What Triton answers becomes one sentence for an operator. Its statuses do not tell one failure from another, and its
texts hold the stack trace of a Python backend.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from tritonclient.http.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gateway.triton.client import triton_client

# Triton 2.51's words.
_NOT_EXPLICIT = "explicit model load / unload is not allowed"
_NOT_FOUND = "failed to poll from model repository"
_LOAD_FAILED = re.compile(r"load failed for model '[^']*': (?:version \d+ is at UNAVAILABLE state: )?(.*)", re.DOTALL)
_KIND = re.compile(r"(?:Internal|Invalid argument|Unavailable|Not found): (?:TritonModelException: )?")
_TRACE = re.compile(r"\s*\n\s*\nAt:\n.*", re.DOTALL)

# Until it shows that it is there at all.
_ALIVE_S = 5.0


class ControlError(Exception):
    """What went wrong, as the end of a sentence whose beginning names the Triton; `status` and `code` are what the
    gateway answers with."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class IndexRow:
    """One version of a model. `state` is READY, LOADING, UNLOADING, UNAVAILABLE, or empty for a model that was never
    loaded; `reason` says why it is UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


async def index(url: str, seconds: float) -> list[IndexRow]:
    """All that lies in the repositories. `seconds` is what it may take. Raises `ControlError`, as the two below."""
    async with _asking(url, seconds) as client:
        rows = await client.get_model_repository_index()
    return [
        IndexRow(row["name"], row.get("version", ""), row.get("state", ""), _plain(row.get("reason", "")))
        for row in rows
    ]


async def load(url: str, model: str, seconds: float) -> None:
    """Returns when the model is ready. One that is loaded is loaded anew if its entry has changed, and serves
    meanwhile."""
    async with _asking(url, seconds) as client:
        await client.load_model(model)


async def unload(url: str, model: str, seconds: float) -> None:
    """Returns when Triton has begun to unload it: requests that run there go on to their end."""
    async with _asking(url, seconds) as client:
        names = {row["name"] for row in await client.get_model_repository_index()}
        # Triton unloads what it does not know without a word. A loaded one without a folder is not in the index.
        if model not in names and not await client.is_model_ready(model):
            raise ControlError(404, "model_not_found", "it has no such model")
        await client.unload_model(model)


@asynccontextmanager
async def _asking(url: str, seconds: float) -> AsyncIterator[InferenceServerClient]:
    limit = _ALIVE_S
    try:
        async with triton_client(url, seconds) as client:
            async with asyncio.timeout(limit):
                await client.is_server_live()
            limit = seconds
            yield client
    except InferenceServerException as error:
        raise refused(str(error.message())) from None
    except TimeoutError:
        reason = f"it did not answer within {limit:g} s"
        raise ControlError(504, "triton_timeout", reason if limit == _ALIVE_S else f"{reason}, and goes on") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ControlError(503, "triton_unreachable", f"it cannot be asked ({type(error).__name__})") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ControlError(502, "triton_error", f"what it answered is no answer of Triton's ({error!r})") from None


def refused(text: str) -> ControlError:
    """By the text of the answer alone: the statuses are no help."""
    if text.startswith(_NOT_EXPLICIT):
        reason = "it does not let models be loaded or unloaded: start it with --model-control-mode=explicit"
        return ControlError(409, "no_model_control", reason)
    if text.endswith(_NOT_FOUND):
        reason = (
            "it finds no such model: there is no folder of this name in its repositories, or one in two of them, or a "
            "config.pbtxt that cannot be read (its log says which)"
        )
        return ControlError(404, "model_not_found", reason)
    if found := _LOAD_FAILED.match(text):
        return ControlError(502, "model_load_failed", f"it cannot load the model: {_plain(found[1])}")
    return ControlError(502, "triton_error", f"it refused: {_plain(text)}")


def _plain(text: str) -> str:
    return " ".join(_KIND.sub("", _TRACE.sub("", text), count=1).split()).removesuffix(";").removesuffix(".")
