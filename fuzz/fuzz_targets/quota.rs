//! Parses an upstream's quota headers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir::proxy::fuzz::quota(bytes);
});
