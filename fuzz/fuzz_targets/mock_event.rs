#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fluxbuy::fuzz::run("mock_event", data));
