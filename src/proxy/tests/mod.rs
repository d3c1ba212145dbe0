//! Tests of the wired rooms. `tests/proxy/` has those over real sockets.

use super::Proxy;
use super::forward::forwarder;
use super::listen::connection;

fn future_size3<A, B, C, Made>(_: impl Fn(A, B, C) -> Made) -> usize {
    size_of::<Made>()
}

fn future_size4<A, B, C, D, Made>(_: impl Fn(A, B, C, D) -> Made) -> usize {
    size_of::<Made>()
}

#[test]
fn a_waiting_request_and_its_connection_are_small() {
    let answer = future_size4(forwarder::handle);
    let connection = future_size3(connection::serve::<Proxy>);
    assert!(answer <= 3072, "a request's future takes {answer} bytes");
    assert!(connection <= 1536, "a connection's future takes {connection} bytes");
}
