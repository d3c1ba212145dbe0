//! Sends bytes in pieces to a real listener.

#![no_main]

#[path = "../connection.rs"]
mod connection;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    connection::connection(bytes);
});
