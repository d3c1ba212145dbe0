//! Acceptance tests: real weir processes, real `redis-server` processes, real sockets. The judge is the record of an
//! independent upstream, never weir's own metrics.
//!
//! One binary, so that everything is linked once. Each file covers one behaviour; `support` is the harness, and
//! `harness` tests the harness itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod support;

mod access_log;
mod algorithms;
mod ambiguity;
mod audit;
mod bad_input;
mod breaker;
mod browser;
mod callers_patience;
mod capacity;
mod check_store;
mod client_leaves;
mod clients;
mod command_line;
mod connection_errors;
mod costs;
mod crossing;
mod dashboard;
mod demo;
mod documents;
mod failover;
mod faults;
mod fleet;
mod framing;
mod harness;
mod health;
mod http2_abuse;
mod http2_conformance;
mod http2_windows;
mod json_bodies;
mod leaving;
mod limit_headers;
mod limits;
mod log;
mod mistakes;
mod outbound;
mod overrides;
mod partitions;
mod pause_rules;
mod pauses;
mod peers;
mod protocols;
mod queue;
mod readings;
mod redisson;
mod refused_uploads;
mod reload;
mod responses;
mod retries;
mod sdks;
mod settled_bodies;
mod several;
mod share;
mod shipped_files;
mod shutdown;
mod soak;
mod spread;
mod stalled;
mod store;
mod store_errors;
mod targets;
mod telemetry;
mod tls;
mod tokens;
mod top_partitions;
mod topologies;
mod tour;
mod traces;
mod tunnels;
mod upgrade;
mod uploads;
mod upstream_answers;
mod usage;
mod walkthrough;
