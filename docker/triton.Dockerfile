# Triton with vLLM for GPUs: docker build -f docker/triton.Dockerfile .
# NVIDIA's plain image, with the Python backend and without an engine of its own.
ARG BASE=nvcr.io/nvidia/tritonserver:26.01-py3

FROM ${BASE} AS build
COPY locks/engine-gpu.txt /build/
# The vLLM that is tested, and nothing else: a newer one does not import in an older backend, and the other way round.
# With bytecode: without, each process of an engine would compile torch and vLLM for itself at each start.
# pip's own configuration, where packages come from an index of your own: --secret id=pip,src=pip.conf.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/engine \
    && python3 -m pip --python /opt/engine/bin/python3 install --no-cache-dir --no-deps \
        --require-hashes --only-binary :all: -r /build/engine-gpu.txt
# The stub's embedded interpreter stays in the C locale, where reading any non-ASCII file fails.
RUN echo "import locale; locale.setlocale(locale.LC_CTYPE, '')" \
        > "$(/opt/engine/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stub_locale.pth"

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

FROM ${BASE}
USER 0
# numactl: `numa_bind` of the deployments starts it.
RUN apt-get update && apt-get install -y --no-install-recommends numactl && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 stack && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp stack \
    && install -d -o stack -g stack -m 2770 /run/vllm-metrics && install -d -o stack -g stack /cache \
    && install -d -o stack -g stack /models /repository && install -d /opt/empty /deployments
COPY --from=build /opt/engine /opt/engine
COPY --from=processors /build/wheels /opt/wheels
COPY vllm_backend /opt/backends/vllm/vllm_backend
COPY docker/triton/triton_entrypoint.py docker/triton/triton_keeper.py /opt/entrypoint/docker/triton/
COPY devtools/__init__.py devtools/guard.py devtools/stub.py devtools/errors.py /opt/entrypoint/devtools/
COPY metrics_proxy /opt/entrypoint/metrics_proxy
COPY vllm_backend /opt/entrypoint/vllm_backend
# The version trap: what does not import is no image.
RUN python3 -m pip --python /opt/engine/bin/python3 install --no-cache-dir --no-compile --no-deps --no-index \
        /opt/wheels/*.whl \
    && ln -s /opt/tritonserver/backends/python /opt/backends/python \
    && ln -s vllm_backend/model.py /opt/backends/vllm/model.py \
    && PYTHONDONTWRITEBYTECODE=1 /opt/engine/bin/python3 /opt/entrypoint/docker/triton/triton_entrypoint.py --check \
    && /opt/engine/bin/python3 -c "import logits_processors"
# The stub puts its working directory on sys.path, where a module of the wrong name would be found.
WORKDIR /opt/empty
# The stub's embedded Python finds its packages through the python3 on PATH. What is compiled for this GPU is kept in the
# volume at /cache, or each start would compile it again.
ENV PATH=/opt/tritonserver/bin:/opt/engine/bin:$PATH LC_ALL=C.UTF-8 \
    HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/cache VLLM_CACHE_ROOT=/cache/vllm TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor HF_HOME=/cache/huggingface \
    PROMETHEUS_MULTIPROC_DIR=/run/vllm-metrics
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 8000 8001 8002
# Alive, not ready: a Triton without a model, or whose engine has died, is not the container's fault.
HEALTHCHECK --interval=5s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
ENTRYPOINT ["python3", "/opt/entrypoint/docker/triton/triton_entrypoint.py"]
CMD ["tritonserver", "--backend-directory=/opt/backends", "--model-repository=/deployments", \
     "--model-repository=/repository", "--model-control-mode=explicit", "--disable-auto-complete-config", \
     "--backend-config=python,stub-timeout-seconds=600"]
