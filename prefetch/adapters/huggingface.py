"""Webhooks of the Hugging Face Hub (Hub documentation, "Webhooks"): the secret comes as it is in `X-Webhook-Secret`.
Pure.
"""

import hmac

from prefetch.adapters.outcome import (
    Announced,
    Event,
    Ignored,
    Outcome,
    Refused,
    Request,
    announcement,
    parse,
    source_of,
)

HEADER = "x-webhook-secret"
_MAIN = "refs/heads/main"


class _What(Event):
    action: str
    scope: str


class _Repo(Event):
    type: str
    name: str
    headSha: str | None = None


class _Ref(Event):
    ref: str
    newSha: str | None = None


class _Webhook(Event):
    event: _What
    repo: _Repo
    updatedRefs: tuple[_Ref, ...] = ()


def authenticate(request: Request, secret: str | None) -> None:
    """Raises Refused."""
    given = request.headers.get(HEADER, b"")
    if not secret:
        raise Refused(401, "Hugging Face's webhooks are not accepted: the setting 'huggingface_secret' is not set.")
    # Clients write what is not ASCII in one or the other encoding.
    spelled = [secret.encode(), secret.encode("latin-1", errors="replace")]
    found = [hmac.compare_digest(given, one) for one in spelled]
    if not any(found):
        raise Refused(401, "X-Webhook-Secret is wrong.")


def read(request: Request, template: str | None) -> Outcome:
    """A model's new contents on its main branch announce; raises Refused."""
    webhook = parse(_Webhook, request.body)
    repo, scope = webhook.repo, webhook.event.scope
    if scope not in ("repo", "repo.content") or webhook.event.action not in ("create", "update"):
        return Ignored(f"{webhook.event.action} of {scope} announces no weights.")
    if repo.type != "model":
        return Ignored(f"{repo.name} is a {repo.type}, not a model.")
    version = repo.headSha
    if webhook.updatedRefs:
        main = [ref.newSha for ref in webhook.updatedRefs if ref.ref == _MAIN]
        if not main:
            return Ignored(f"{repo.name} was changed on another branch than main.")
        version = main[-1]
    if not version:
        return Ignored(f"{repo.name} holds no commit.")
    source = source_of(template, given=None, name=repo.name, version=version)
    return Announced(announcement(model=repo.name, version=version, source=source))
