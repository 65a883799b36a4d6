# Triton with vLLM on the CPU, from the packages that the tests use: docker build -f docker/triton-cpu.Dockerfile .
ARG BASE=python:3.11-slim

FROM ${BASE} AS engine
# libnuma: vLLM's C++ for CPUs is linked to it.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 stack && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp stack \
    && install -d -o stack -g stack -m 2770 /run/vllm-metrics && install -d -o stack -g stack /models /repository \
    && install -d /opt/empty /deployments
WORKDIR /opt/making
COPY locks/torch.txt locks/engine.txt locks/artifacts.txt locks/
# Only what makes them, so that they are not made anew with every change of other tools.
COPY devtools/__init__.py devtools/cache.py devtools/engine.py devtools/environments.py devtools/errors.py \
    devtools/guard.py devtools/paths.py devtools/processes.py devtools/progress.py devtools/pythons.py \
    devtools/triton.py devtools/
COPY docker/triton/make_engine.py docker/triton/
# With bytecode: without, each process of an engine would compile torch and vLLM for itself at each start. pip's own
# configuration (torch's CPU build is in no common index): --secret id=pip,src=pip.conf.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    TVS_HOME=/opt/stack PIP_NO_CACHE_DIR=1 python3 docker/triton/make_engine.py

FROM ${BASE} AS processors
# The constraint processor's C++ is compiled for this Python, and its compiler stays behind.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY locks/build.txt /build/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/builder \
    && /opt/builder/bin/python3 -m pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
        -r /build/build.txt
COPY logits_processors /build/logits_processors
RUN PATH="/opt/builder/bin:$PATH" python3 -m pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation \
        --wheel-dir /build/wheels /build/logits_processors

# Not copied into a stage of its own: it is nearly all there is.
FROM engine
COPY --from=processors /build/wheels /opt/wheels
COPY vllm_backend /opt/backends/vllm/vllm_backend
COPY docker/triton/triton_entrypoint.py docker/triton/triton_keeper.py /opt/entrypoint/docker/triton/
COPY devtools/__init__.py devtools/guard.py devtools/stub.py devtools/errors.py /opt/entrypoint/devtools/
COPY metrics_proxy /opt/entrypoint/metrics_proxy
COPY vllm_backend /opt/entrypoint/vllm_backend
# The version trap: what does not import is no image.
RUN python3 -m pip --python /opt/stack/engine/bin/python3 install --no-cache-dir --no-compile --no-deps --no-index \
        /opt/wheels/*.whl \
    && ln -s /opt/stack/tritonserver/backends/python /opt/backends/python \
    && ln -s vllm_backend/model.py /opt/backends/vllm/model.py \
    && LD_LIBRARY_PATH=/opt/stack/engine/loader PYTHONDONTWRITEBYTECODE=1 \
        /opt/stack/engine/bin/python3 /opt/entrypoint/docker/triton/triton_entrypoint.py --check \
    && /opt/stack/engine/bin/python3 -c "import logits_processors, torch, vllm._C"
# The stub puts its working directory on sys.path, where a module of the wrong name would be found.
WORKDIR /opt/empty
# The stub's embedded Python finds its packages through the python3 on PATH. Threads that wait sleep instead of spinning,
# and nothing is compiled at the first request.
ENV PATH=/opt/stack/tritonserver/bin:/opt/stack/engine/bin:$PATH LD_LIBRARY_PATH=/opt/stack/engine/loader \
    LC_ALL=C.UTF-8 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 TORCHDYNAMO_DISABLE=1 \
    VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=1 \
    PROMETHEUS_MULTIPROC_DIR=/run/vllm-metrics
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 8000 8001 8002
# Alive, not ready: a Triton without a model, or whose engine has died, is not the container's fault.
HEALTHCHECK --interval=5s --timeout=5s --start-period=2m --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
ENTRYPOINT ["python3", "/opt/entrypoint/docker/triton/triton_entrypoint.py"]
CMD ["tritonserver", "--backend-directory=/opt/backends", "--model-repository=/deployments", "--model-repository=/repository", \
     "--model-control-mode=explicit", "--disable-auto-complete-config", "--allow-gpu-metrics=false", \
     "--backend-config=python,stub-timeout-seconds=600"]
