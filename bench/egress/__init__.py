"""What batched egress saves: `python -m bench egress`.

The same streams with and without it, on one real tritonserver, in turns: what a token takes of the CPU of tritonserver
and of the backend's process, how soon tokens come, what the gateway takes; and what a request takes that is nearly all
prompt. `servers` starts them, `client` asks Triton and speaks the protocol, `measures` measures, `rounds` takes turns,
`verdict` judges (pure), `command` shows.
"""
