//! Parses the answer of a script.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir::redis::fuzz::script_reply(bytes);
});
