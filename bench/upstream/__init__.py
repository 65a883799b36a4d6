"""A fast byte source in place of an engine: so cheap that what is measured is the server in front of it.

It speaks Triton's `generate_stream` as this project's backend answers it, and OpenAI's chat completions, so that nginx
and other gateways can be measured with the same load. It has no semantics: the prompt is not looked at, and every
answer consists of the same numbered tokens (`bench.mock_engine` is the mock with meaning). `upstream.cpp` sends bytes,
`script.py` says which.
"""
