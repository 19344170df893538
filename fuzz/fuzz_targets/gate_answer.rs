#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fluxbuy::fuzz::run("gate_answer", data));
