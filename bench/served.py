"""Which models a server of OpenAI's API has, and what to do where it does not say."""

import http.client
import json
import urllib.error
import urllib.request

from devtools.errors import DevError

# Seconds without a byte from the server.
_TIMEOUT = 60
KEY = "OPENAI_API_KEY"
"""The environment variable of the key, as OpenAI's own clients have it."""


class Unreachable(DevError):
    """A server does not answer, or with something else than this API, or does not serve the model."""


def base_url(url: str) -> str:
    """Without the path of the API, which clients' base URLs have. Raises Unreachable for what is no URL."""
    if not url.startswith(("http://", "https://")):
        raise Unreachable(f"{url!r} is no URL such as http://127.0.0.1:9000.")
    return url.rstrip("/").removesuffix("/v1")


def served_models(url: str, key: str | None) -> dict[str, int | None]:
    """The models that `GET /v1/models` lists, each with the length of its context if that is said. Raises Unreachable,
    with what to do."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=_TIMEOUT
        ) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise Unreachable(
                f"{url} answered {error.code} to /v1/models; give it an API key that it takes."
            ) from error
        raise Unreachable(
            f"{url}/v1/models answered {error.code}, so this is no server of OpenAI's API; check the URL."
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise Unreachable(f"{url} does not answer: {getattr(problem, 'reason', problem)}") from problem
    try:
        return {str(model["id"]): model.get("max_model_len") for model in json.loads(text)["data"]}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise Unreachable(f"{url}/v1/models is no list of models: {text[:200]!r}") from problem


def chosen(url: str, model: str | None, key: str | None) -> str:
    """`model`, or where that is None the only one that the server has. Raises Unreachable."""
    names = served_models(url, key)
    listed = ", ".join(map(repr, sorted(names))) if names else "no model"
    if model is None:
        if len(names) != 1:
            raise Unreachable(f"{url} serves {listed}; say which is meant.")
        return next(iter(names))
    if model not in names:
        raise Unreachable(f"{url} does not serve {model!r}; it serves {listed}.")
    return model
