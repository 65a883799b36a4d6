"""Parity: does the gateway answer as vLLM's own server does, on the same model with the same engine arguments?

`shapes` are the requests, `client` sends one and reads its answer, `compare` finds what differs, `explained` holds the
differences where vLLM's own answer is the wrong one. `python -m bench.parity` puts them together.
"""
