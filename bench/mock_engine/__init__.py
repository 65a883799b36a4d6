"""A semantic mock of Triton's HTTP API with a vLLM model behind it, for tests and for `./dev up --engine mock`.

It answers as the real pair would, deterministically and without a model; what each module holds is in its first
lines. How to start it and how a test controls it is in `__main__.py` (`python -m bench.mock_engine --help`); from
Python: `running.py`.
"""
