//! A configuration is used, or refused with a reason.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = weir::config::parse(std::path::Path::new("weir.yaml"), text);
});
