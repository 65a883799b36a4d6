"""Diagnosis: is the frontend the bottleneck of a serving stack, or the engine, or the load tool?

`measured` holds what one step of load showed; `verdict` and `plan` conclude from it, pure. `procfs` reads the kernel's
counters, `frontend` finds whose they are, `engine_metrics` and `gpu` read the other two sources; `watch` samples all of
them while `run` sends the load with `bench.load`. `text`, `report` and `chart` show what came of it; `command` is
`python -m bench diagnose`.
"""
