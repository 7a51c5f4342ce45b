#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hairpin_fuzz::streams::tls(input));
