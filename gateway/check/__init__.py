"""The start-up self-check, `python -m gateway check`: what works at a live Triton, seen through the gateway itself."""
