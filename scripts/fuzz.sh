#!/usr/bin/env bash
# Gives the targets of src/fuzz.rs to libFuzzer, one after the other.
#
#   scripts/fuzz.sh SECONDS [TARGET]...      (all of them when none is named)
#
# On stable Rust: the instrumentation is a pass of LLVM that `-C passes` adds, and no sanitizer is needed where no code is unsafe. `cargo fuzz run
# --sanitizer none` builds the same. What is found on the way grows in fuzz/target/corpus; an input that breaks a target is kept in
# fuzz/artifacts and ends the run. Such an input goes into fuzz/corpus, under a name that says what it is, where the tests replay it.
set -euo pipefail
seconds=${1:?seconds for each target}
shift
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
flags=(
    --cfg fuzzing
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Cdebug-assertions
    -Coverflow-checks
    # One unit per crate: the linker drops the sections of counters that it can't assign otherwise.
    -Ccodegen-units=1
)
# With a target named, the flags are not used for build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --manifest-path fuzz/Cargo.toml --release --target "$host"

targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(ls fuzz/corpus)
for target in "${targets[@]}"; do
    echo "== $target, $seconds s"
    grown=fuzz/target/corpus/$target
    artifacts=fuzz/artifacts/$target/
    mkdir -p "$grown" "$artifacts"
    "fuzz/target/$host/release/$target" "$grown" "fuzz/corpus/$target" \
        -max_total_time="$seconds" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -artifact_prefix="$artifacts" -print_final_stats=1 -verbosity=0
done
