"""What an operator sees: metrics, a log line for each request, spans. Nothing of it changes an answer."""
