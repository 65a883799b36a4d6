# The metrics proxy: docker build -f docker/metrics_proxy.Dockerfile .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
COPY locks/metrics-proxy.txt /build/
# pip's own configuration, where packages come from an index of your own: --secret id=pip,src=pip.conf.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/metrics_proxy \
    && python3 -m pip --python /opt/metrics_proxy/bin/python3 install --no-cache-dir --no-compile --no-deps \
        --require-hashes --only-binary :all: -r /build/metrics-proxy.txt

FROM ${BASE}
# The user of Triton's image: vLLM's files are read, and those of dead processes put together, in a shared volume.
RUN groupadd --gid 10001 stack && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp stack
COPY --from=build /opt/metrics_proxy /opt/metrics_proxy
COPY service_base /app/service_base
COPY metrics_proxy /app/metrics_proxy
WORKDIR /app
ENV PATH=/opt/metrics_proxy/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 9401
HEALTHCHECK --interval=5s --timeout=5s --start-period=1m --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9401/health/ready', timeout=4)"]
ENTRYPOINT ["python3", "-m", "metrics_proxy"]
