# `make help` lists what there is. A Rust toolchain, make and a C compiler are all that must be there beforehand.

CARGO ?= cargo
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help demo test crash-points model soak fuzz lint deps dashboards-check bench profile

help: ## What there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r t d; do printf '  make %-18s %s\n' "$$t" "$$d"; done

demo: ## A flash sale of 900 units for 900 buyers, on private servers, with its audit
	@scripts/install-services.sh postgres redis
	$(CARGO) build --release --locked --bin fluxbuy
	target/release/fluxbuy demo

# The programs come first: tests start them. Plain cargo, not a process for each test: the tests of one file share their servers.
test: deps ## Every test, every crash point and every stress scenario, against real servers
	$(CARGO) test --workspace --locked --no-fail-fast
	$(CARGO) test --locked --features test-switches --test crash_points
	@scripts/stress-all.sh

crash-points: deps ## The recovery suite: the engine dies at each boundary between two effects, and another takes over
	$(CARGO) test --locked --features test-switches --test crash_points

soak: ## Every fault under load, for SEEDS seeds (20), in a release build, and chaos for MINUTES (10)
	@scripts/install-services.sh postgres redis faketime
	@scripts/soak.sh

fuzz: ## What comes from outside, by coverage, for SECONDS (60) per target (TARGETS="..."); CI replays fuzz/corpus and bends it
	@scripts/install-services.sh c++
	@scripts/fuzz.sh $(or $(SECONDS),60) $(TARGETS)

model: ## The model checker's larger runs: more buyers, more hands, more faults (a quarter of an hour; the small ones are part of the tests)
	$(CARGO) test --release --locked -p model --test large -- --ignored --nocapture --test-threads 1

lint: ## Format, clippy with and without the test switches, dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --all-targets --locked --features test-switches -- -D warnings
	$(CARGO) deny check bans licenses sources

bench: ## All parts of the benchmark, each beside its neighbours (BENCH=--quick for a short look)
	@scripts/install-services.sh postgres redis
	$(CARGO) run --release --locked -p stress -- bench $(BENCH)

profile: ## A flame graph of the machine under a part of the benchmark (PART=cost)
	@scripts/install-services.sh postgres redis
	@scripts/profile.sh $(PART)

dashboards-check: ## Prometheus' configuration, the alert rules and their tests
	@scripts/install-services.sh prometheus
	@scripts/check-dashboards.sh

deps: ## Install PostgreSQL, Redis, Prometheus, PgBouncer, libfaketime and Python where they are missing, and a stand-in for Stripe below target/
	@scripts/install-services.sh postgres redis prometheus python pgbouncer faketime
	@scripts/install-localstripe.sh
