"""MLflow's webhooks (MLflow documentation, "Webhooks"). Pure.

`X-MLflow-Signature: v1,<base64 HMAC-SHA256>` over `{delivery id}.{timestamp}.{body}`; the timestamp may be 300 s off.
"""

import base64
import hashlib
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

HEADERS = ("x-mlflow-signature", "x-mlflow-delivery-id", "x-mlflow-timestamp")
WINDOW_SECONDS = 300


class _Data(Event):
    name: str
    version: str | None = None
    source: str | None = None
    alias: str | None = None


class _Webhook(Event):
    entity: str
    action: str


class _Model(Event):
    data: _Data


def authenticate(request: Request, secret: str | None, now: float) -> None:
    """Raises Refused."""
    signature, delivery, stamp = (request.headers.get(name, b"") for name in HEADERS)
    if not secret:
        raise Refused(401, "MLflow's webhooks are not accepted: the setting 'mlflow_secret' is not set.")
    if not (signature and delivery and stamp):
        raise Refused(401, "The webhook is not signed; give MLflow's webhook the secret of 'mlflow_secret'.")
    digest = hmac.new(secret.encode(), b".".join((delivery, stamp, request.body)), hashlib.sha256).digest()
    if not hmac.compare_digest(signature, b"v1," + base64.b64encode(digest)):
        raise Refused(401, "The signature in X-MLflow-Signature is wrong.")
    try:
        age = abs(now - float(int(stamp)))
    except (ValueError, OverflowError):
        raise Refused(401, "X-MLflow-Timestamp is no number.") from None
    if age > WINDOW_SECONDS:
        raise Refused(401, f"The delivery is {age:.0f} s off; the clocks may differ by {WINDOW_SECONDS} s.")


def read(request: Request, template: str | None) -> Outcome:
    """A new version, or an alias that is set, announces; raises Refused."""
    webhook = parse(_Webhook, request.body)
    what = f"{webhook.entity}.{webhook.action}"
    if what not in ("model_version.created", "model_version_alias.created"):
        return Ignored(f"{what} announces no weights.")
    data = parse(_Model, request.body).data
    if not data.version:
        raise Refused(422, "The event names no version.", "version")
    source = source_of(template, given=data.source, name=data.name, version=data.version, alias=data.alias)
    return Announced(
        announcement(model=data.name, version=data.version, source=source),
        f"mlflow:{request.text('x-mlflow-delivery-id')}",
    )
