# syntax=docker/dockerfile:1

# The slim one has no make, which the allocator is built with.
FROM rust:1-bookworm AS build
WORKDIR /src

# The dependencies alone, with an empty crate in weir's place: this layer is rebuilt only when they change.
COPY Cargo.toml Cargo.lock ./
# Cargo.toml names the benchmark, so its file must be there.
COPY benches benches/
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
# No configuration is built in: mount the directory that holds your weir.yaml on /etc/weir, the directory and not the file,
# so that a file that is replaced by a rename is noticed. In a container `admin.listen` must be 0.0.0.0:9090 to be reached.
EXPOSE 8080 9090
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["serve", "--config", "/etc/weir/weir.yaml"]
