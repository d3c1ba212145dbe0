//! Parses a configuration: the result is a configuration or problems, never a panic.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = weir::config::parse(std::path::Path::new("weir.yaml"), text);
});
