#!/usr/bin/env bash
# Installs localstripe, a stand-in for Stripe that the tests run, into a Python environment of its own under the build directory. Does
# nothing when it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.15.10
place=${CARGO_TARGET_DIR:-target}/localstripe
if [[ -x $place/bin/python ]] && "$place/bin/python" - "$version" <<'PYTHON' 2>/dev/null
import sys
from importlib.metadata import version
sys.exit(version("localstripe") != sys.argv[1])
PYTHON
then
    exit 0
fi
scripts/install-services.sh python
rm -rf "$place"
python3 -m venv "$place"
"$place/bin/pip" install --quiet --disable-pip-version-check "localstripe==$version"
