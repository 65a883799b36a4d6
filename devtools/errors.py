"""The one exception that ends a command with a sentence instead of a stack trace."""


class DevError(Exception):
    """Says in one sentence what is wrong and what to do; printed as it is, exit code 1."""
