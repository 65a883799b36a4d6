"""A load for OpenAI-compatible servers, and what came of it: `python -m bench load`.

`workloads` says what is asked, `client` asks and times, `stream` and `check` read the answers, `run` keeps a load going
(closed or open loop, in one process or several), `report` makes distributions of it, `refusal` says what to do where
everything is refused. `stream`, `check`, `workloads` and `report` are pure.
"""
