# syntax=docker/dockerfile:1

FROM rust:1-slim-bookworm AS build
WORKDIR /src

# The dependencies alone, with an empty crate in weir's place: this layer is rebuilt only when they change.
COPY Cargo.toml Cargo.lock ./
COPY benche[s] benches/
RUN mkdir src \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && cargo build --release --locked \
    && rm -r src

COPY lua lua/
COPY config config/
COPY src src/
# Cargo compares times: the empty crate above is newer than the sources.
RUN find src lua config -type f -exec touch {} + \
    && cargo build --release --locked

# C library and certificates, no shell; runs as user 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/weir /usr/local/bin/weir
COPY config/weir.yaml /etc/weir/weir.yaml
EXPOSE 8080 9090
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["serve", "--config", "/etc/weir/weir.yaml"]
