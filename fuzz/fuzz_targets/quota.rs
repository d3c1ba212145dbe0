//! What is read of a response about its upstream's quota.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir::proxy::fuzz::quota(bytes);
});
