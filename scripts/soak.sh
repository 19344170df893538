#!/usr/bin/env bash
# Every fault under load, again and again, each time with another seed; and then a long random mix of all of them.
#   SEEDS=20 MINUTES=10 FIRST_SEED=1 scripts/soak.sh [scenario..]
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
first=${FIRST_SEED:-1}
"$cargo" build --release --locked --workspace
stress=("$target/release/stress")
scenarios=("$@")
if ((${#scenarios[@]} == 0)); then
    scenarios=(kill-engine pause-engine kill-postgres restart-postgres kill-redis flush-redis stale-redis script-flush
        slow-postgres slow-redis provider-down clock-jump disk-full fd-limit slow-clients two-engines three-engines)
fi
"${stress[@]}" soak "${scenarios[@]}" --seeds "${SEEDS:-20}" --seed "$first" --engine "$target/release/fluxbuy"
"${stress[@]}" run chaos --minutes "${MINUTES:-10}" --seed "$first" --engine "$target/release/fluxbuy"
