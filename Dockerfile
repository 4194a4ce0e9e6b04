# syntax=docker/dockerfile:1
#
# The published image: one binary, tini, root certificates, OpenSSL for PostgreSQL over TLS. It runs as an ordinary user
# and writes nowhere but /tmp, so a read-only root file system is fine.
#
#   docker build -t fountain .
#   docker run -p 4000:4000 -e DATABASE_URL=... -e MASTER_SECRETS_KEY=... -e PUBLIC_URL=... fountain
#
# No container engine runs in the project's CI. What it checks of this file is in tests/image; keep the two ARG lists
# below on one line each, for that test installs exactly these packages and starts the binary on nothing else.

ARG RUST_VERSION=1.95
ARG DEBIAN_RELEASE=bookworm

FROM rust:${RUST_VERSION}-${DEBIAN_RELEASE} AS build
ARG BUILD_PACKAGES="libssl-dev pkg-config"
# Versions are the release's: Debian removes an old one from its archive as soon as a fix is out.
# hadolint ignore=DL3008,SC2086
RUN apt-get update \
    && apt-get install -y --no-install-recommends ${BUILD_PACKAGES} \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# The caches make a second build quick; the binary has to leave them before the step ends.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --locked --profile dist --features postgres-tls --bin fountain \
    && install -D target/dist/fountain /out/fountain

FROM debian:${DEBIAN_RELEASE}-slim
ARG RUNTIME_PACKAGES="ca-certificates libssl3 tini"
# hadolint ignore=DL3008,SC2086
RUN apt-get update \
    && apt-get install -y --no-install-recommends ${RUNTIME_PACKAGES} \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1001 fountain \
    && useradd --uid 1001 --gid 1001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fountain
COPY --from=build /out/fountain /usr/local/bin/fountain
LABEL org.opencontainers.image.title="Fountain" \
      org.opencontainers.image.description="A control plane that runs coding agents on real computers" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PORT=4000 METRICS_PORT=9568
USER 1001:1001
WORKDIR /tmp
# 4000: API, dashboard, runners. 9568: metrics, never to be published.
EXPOSE 4000 9568
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/fountain"]
CMD ["serve"]
