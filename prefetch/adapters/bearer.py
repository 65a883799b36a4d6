"""`Authorization: Bearer …`: who sends our own announcements and EventBridge's events. Pure."""

import hmac

from prefetch.adapters.outcome import Refused, Request


def authenticate(request: Request, tokens: tuple[str, ...]) -> None:
    """Raises Refused."""
    scheme, _, given = request.headers.get("authorization", b"").partition(b" ")
    # Every token is compared, so that the time says nothing of which one came close.
    found = [hmac.compare_digest(given.strip(), token.encode()) for token in tokens if token]
    if scheme.lower() != b"bearer" or not any(found):
        raise Refused(401, "Give a token of the setting 'tokens' as 'Authorization: Bearer …'.")
