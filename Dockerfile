# syntax=docker/dockerfile:1

# The slim one has no make, which the allocator is built with.
FROM rust:1-bookworm AS build
WORKDIR /src

# Without tables of line numbers, which are three quarters of the binary; a panic still names its functions. `scripts/dist` keeps them
# in a file beside the binary.
ENV CARGO_PROFILE_DIST_DEBUG=false \
    CARGO_PROFILE_DIST_STRIP=debuginfo

# The dependencies alone, with an empty crate in weir's place: this layer is rebuilt only when they change. Cargo.toml names
# the benchmarks, so each has an empty file too; they are not built here, and a change of one rebuilds nothing.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src benches \
    && touch src/lib.rs \
    && echo 'fn main() {}' > src/main.rs \
    && awk -F '"' '/^\[\[bench\]\]/ { bench = 1 } bench && /^name/ { print "fn main() {}" > "benches/" $2 ".rs"; bench = 0 }' \
           Cargo.toml \
    && cargo build --profile dist --locked --bin weir \
    && rm -r src

COPY lua lua/
COPY config config/
COPY src src/
# Cargo compares times: the empty crate above is newer than the sources.
RUN find src lua config -type f -exec touch {} + \
    && cargo build --profile dist --locked --bin weir

# C library and certificates, no shell.
FROM gcr.io/distroless/cc-debian12:nonroot

# Given by who builds: `docker build --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .`
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="An HTTP reverse proxy that keeps a whole fleet inside the rate limits of third-party APIs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="gcr.io/distroless/cc-debian12:nonroot"

COPY LICENSE /usr/share/doc/weir/LICENSE
COPY --from=build /src/target/dist/weir /usr/local/bin/weir

# As a number, so that Kubernetes can tell that it is not root.
USER 65532:65532

# No configuration and no secret is built in: mount the directory that holds your weir.yaml on /etc/weir, the directory and not
# the file, so that a file that is replaced by a rename is noticed. In a container `admin.listen` must be 0.0.0.0:9090 to be
# reached. Nothing is ever written: the root file system may be read-only.
EXPOSE 8080 9090

# weir drains on it. Give it longer than `server.drain_delay` and `server.drain_timeout` together: `docker stop` waits 10 s.
STOPSIGNAL SIGTERM

# Asks /readyz on port 9090. Kubernetes ignores it and has its own probes.
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/local/bin/weir", "health"]

ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["serve", "--config", "/etc/weir/weir.yaml"]
