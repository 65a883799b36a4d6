# prefetch: docker build -f docker/prefetch.Dockerfile .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
COPY locks/prefetch.txt /build/
# pip's own configuration, where packages come from an index of your own: --secret id=pip,src=pip.conf.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/prefetch \
    && python3 -m pip --python /opt/prefetch/bin/python3 install --no-cache-dir --no-compile --no-deps \
        --require-hashes --only-binary :all: -r /build/prefetch.txt

FROM ${BASE}
# A named volume takes the owner of the folder that it covers first. A mounted FSx has to be writable for this user.
RUN groupadd --gid 10001 stack && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp stack \
    && install -d -o stack -g stack /models /repository && install -d -o stack -g stack -m 0750 /state /tokens
COPY --from=build /opt/prefetch /opt/prefetch
COPY service_base /app/service_base
COPY prefetch /app/prefetch
COPY docker/prefetch/first_model.py /app/
WORKDIR /app
ENV PATH=/opt/prefetch/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 9500
HEALTHCHECK --interval=5s --timeout=5s --start-period=1m --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9500/health/ready', timeout=4)"]
ENTRYPOINT ["python3", "-m", "prefetch"]
CMD ["serve"]
