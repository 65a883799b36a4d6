"""What the gateway costs beside others, in one interleaved run on one machine: `python -m bench compare`.

Every server gets the same load in the same minute, in turns, and is judged by its processes' CPU time, which other work
on the machine changes least; what counts are the ratios. `servers` starts them, `measures` measures, `verdict` judges
(pure), `command` shows.
"""
