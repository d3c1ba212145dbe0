//! However a path is spelt, it leads to one route or to none.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    weir::proxy::fuzz::path(text);
});
