#!/usr/bin/env bash
# Where the machine's time goes under load: plays a part of the benchmark, samples all of the machine meanwhile, and draws a flame graph.
#
#   scripts/profile.sh [PART]      a part of `stress bench` (default: cost, which loads the engine and then the per-request baseline)
#
# Writes target/profile/PART.svg (open it in a browser; the lowest frames are processes' and threads' names) and
# target/profile/PART.txt (the share of each process). Frames of Postgres and Redis are as deep as their packages' builds allow.
# Needs Linux, perf, and leave to sample all processes (root, or kernel.perf_event_paranoid below 1).
set -euo pipefail
cd "$(dirname "$0")/.."

part=${1:-cost}
hertz=499
out=target/profile
# Its own directory: another flag for every crate would otherwise rebuild all that the tests use.
build=target/profiling
mkdir -p "$out"

if ! command -v perf >/dev/null 2>&1; then
    if command -v apt-get >/dev/null 2>&1 && ((EUID == 0)); then
        apt-get install -y --no-install-recommends linux-perf >/dev/null
    else
        echo "perf is missing (Debian package linux-perf)" >&2
        exit 1
    fi
fi
if [[ ! -x target/tools/bin/inferno-flamegraph ]]; then
    cargo install --locked --quiet --root target/tools inferno
fi
cargo build --release --locked -p stress
RUSTFLAGS="-C force-frame-pointers=yes" cargo build --release --locked --bin fluxbuy --target-dir "$build"

samples=$(mktemp -d)
trap 'rm -rf "$samples"' EXIT
perf record --quiet --all-cpus --call-graph fp --freq "$hertz" --output "$samples/perf.data" -- \
    target/release/stress bench --quick --only "$part" --engine "$build/release/fluxbuy"

perf script --input "$samples/perf.data" 2>/dev/null >"$samples/stacks"
target/tools/bin/inferno-collapse-perf <"$samples/stacks" >"$samples/folded"
# What nobody did is no part of the picture.
grep -v '^swapper;' "$samples/folded" | target/tools/bin/inferno-flamegraph --title "fluxbuy, $part" >"$out/$part.svg"
awk '{ n = $NF; split($0, frames, ";"); sum[frames[1]] += n; all += n }
     END { for (name in sum) printf "%5.1f %%  %s\n", 100 * sum[name] / all, name }' "$samples/folded" | sort -rn >"$out/$part.txt"
head -8 "$out/$part.txt"
echo "flame graph: $out/$part.svg"
