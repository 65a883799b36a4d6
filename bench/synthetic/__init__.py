"""A model for the real tritonserver without vLLM: the backend as it is, with an engine that only counts tokens.

`script` says what a request's prompt can ask of it, and what its answer's text must then be; `engine` is the engine,
`model` what Triton loads, `running` starts a server with it. What a token costs beside the engine's own work, and what
becomes of streams when something breaks, is seen with this one within seconds.
"""
