# The gateway: docker build -f docker/gateway.Dockerfile .
ARG BASE=python:3.11-slim

FROM ${BASE} AS relay
# The native relay's C++ is compiled for this Python, and its compiler stays behind.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY locks/build.txt /build/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/builder \
    && /opt/builder/bin/python3 -m pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: \
        -r /build/build.txt
COPY gateway_relay /build/gateway_relay
RUN PATH="/opt/builder/bin:$PATH" python3 -m pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation \
        --wheel-dir /build/wheels /build/gateway_relay

FROM ${BASE} AS build
# pip, and the relay's import below, would leave bytecode of what they import.
ENV PYTHONDONTWRITEBYTECODE=1
COPY locks/gateway.txt /build/
# pip's own configuration, where packages come from an index of your own: --secret id=pip,src=pip.conf. A mounted secret
# is in no layer. Without bytecode: a third of the size, for half a second at each start.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/gateway \
    && python3 -m pip --python /opt/gateway/bin/python3 install --no-cache-dir --no-compile --no-deps \
        --require-hashes --only-binary :all: -r /build/gateway.txt
COPY --from=relay /build/wheels /build/wheels
RUN python3 -m pip --python /opt/gateway/bin/python3 install --no-cache-dir --no-compile --no-deps --no-index \
        /build/wheels/*.whl \
    && /opt/gateway/bin/python3 -c "import gateway_relay"

FROM ${BASE}
# One user and group for all images of the stack: they meet in shared volumes.
RUN groupadd --gid 10001 stack && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp stack \
    && install -d -o stack -g stack -m 0750 /keys /tokens /state \
    && install -d -o stack -g stack /models /repository
COPY --from=build /opt/gateway /opt/gateway
COPY service_base /app/service_base
COPY gateway /app/gateway
COPY docker/gateway/first_start.py docker/gateway/download.py /app/
WORKDIR /app
ENV PATH=/opt/gateway/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
USER 10001:10001
# A request's last token may take as long as GATEWAY_REQUEST_TIMEOUT; docker stop waits for the drain (30 s).
STOPSIGNAL SIGTERM
EXPOSE 9000
HEALTHCHECK --interval=5s --timeout=5s --start-period=1h --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9000/health/ready', timeout=4)"]
ENTRYPOINT ["python3", "-m", "gateway"]
