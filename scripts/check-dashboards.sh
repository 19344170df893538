#!/usr/bin/env bash
# Checks Prometheus' configuration, the rules, and the rules' own tests with promtool.
set -euo pipefail
cd "$(dirname "$0")/../dashboards"

promtool check config prometheus.yml
promtool check rules rules/*.rules.yml
promtool test rules rules/tests/*.yml
