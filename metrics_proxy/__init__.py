"""One /metrics that merges Triton's page with vLLM's Prometheus multiprocess files."""
