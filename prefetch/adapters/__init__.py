"""From a webhook request to an announcement: which sender it is, whether it is authentic, what it says.

One sender a file, all pure. A request that carries a sender's own headers is judged by that sender's rules alone; any
other needs a bearer token.
"""

from collections.abc import Awaitable, Callable

from prefetch.adapters import bearer, eventbridge, huggingface, mlflow, own, sns
from prefetch.adapters.outcome import Announced, Confirm, Ignored, Outcome, Refused, Trust, parse
from prefetch.adapters.outcome import Request as Request
from prefetch.source import Source, allowing

# Fetches an https URL that is allowed; raises OSError.
Fetch = Callable[[str], Awaitable[bytes]]


def sender(request: Request) -> str:
    """A label of few values."""
    if any(header in request.headers for header in mlflow.HEADERS):
        return "mlflow"
    if huggingface.HEADER in request.headers:
        return "huggingface"
    if sns.HEADER in request.headers:
        return "sns"
    return "eventbridge" if eventbridge.is_event(request.body) else "own"


async def read(request: Request, trust: Trust, now: float, fetch: Fetch) -> Outcome:
    """`now` is Unix time. Raises Refused."""
    match sender(request):
        case "mlflow":
            mlflow.authenticate(request, trust.mlflow_secret, now)
            outcome = mlflow.read(request, trust.source_template)
        case "huggingface":
            huggingface.authenticate(request, trust.huggingface_secret)
            outcome = huggingface.read(request, trust.source_template)
        case "sns":
            outcome = await _read_sns(request, trust, now, fetch)
        case "eventbridge":
            bearer.authenticate(request, trust.tokens)
            outcome = eventbridge.read(request.body, trust.marker_names, trust.allow)
        case _:
            bearer.authenticate(request, trust.tokens)
            outcome = own.read(request.body)
    if isinstance(outcome, Announced):
        check_allowed(outcome.announcement.source, trust.allow)
    return outcome


def check_allowed(source: str, allow: tuple[Source, ...]) -> None:
    """Raises Refused."""
    if allowing(Source.parse(source), allow) is None:
        raise Refused(422, f"The source {source} is not allowed; 'allow' lists what is.", "source")


async def _read_sns(request: Request, trust: Trust, now: float, fetch: Fetch) -> Outcome:
    message = parse(sns.Message, request.body)
    sns.check_topic(message, trust.sns_topics)
    url = sns.check_url(message.SigningCertURL, "SigningCertURL", trust.sns_topics, trust.sns_cert_hosts)
    try:
        certificate = await fetch(url)
    except OSError as error:
        # SNS delivers again after 5xx.
        raise Refused(503, f"The certificate at {url} cannot be fetched: {error}.") from None
    sns.check_signature(message, certificate, now)
    if message.Type == "SubscriptionConfirmation":
        return Confirm(sns.check_url(message.SubscribeURL, "SubscribeURL", trust.sns_topics, trust.sns_cert_hosts))
    if message.Type != "Notification":
        return Ignored(f"{message.Type} announces no weights.")
    if eventbridge.is_event(message.Message):
        outcome = eventbridge.read(message.Message, trust.marker_names, trust.allow)
    else:
        outcome = own.read(message.Message)
    return Announced(outcome.announcement, f"sns:{message.MessageId}") if isinstance(outcome, Announced) else outcome
