"""Parity: do two servers of OpenAI's API answer alike, on the same model with the same engine arguments?

`shape` says what a request is; `chat_shapes`, `text_shapes` and `tool_shapes` are the requests, with values from the
`sample` of what the model says. `client` sends one and reads its answer, a stream by `fold`; `compare` finds what
differs, `explained` holds the differences where one answer is known to be the wrong one. `run` puts them together,
`report` words what came of it, `command` is `python -m bench parity`.
"""
