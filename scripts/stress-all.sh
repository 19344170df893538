#!/usr/bin/env bash
# Runs every scenario of the stress harness against this tree's engine, and the guard-off scenario against one that is built with
# the test switches. Each build is copied aside, so that neither can be taken for the other.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
aside=$target/stress-engines
mkdir -p "$aside"
"$cargo" build --locked --bin fluxbuy --features test-switches
cp "$target/debug/fluxbuy" "$aside/guard-off"
"$cargo" build --locked --workspace
cp "$target/debug/fluxbuy" "$aside/engine"
"$target/debug/stress" all --engine "$aside/engine" --guard-off-engine "$aside/guard-off" "$@"
