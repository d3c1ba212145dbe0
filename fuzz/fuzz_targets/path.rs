//! Routes a path: all its spellings lead to one route or to none.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    weir::proxy::fuzz::path(text);
});
