//! stress
fn main() {}
