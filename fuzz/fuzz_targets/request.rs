//! Parses a request's head.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir::proxy::fuzz::request(bytes);
});
