#!/bin/sh
# Builds falcon, installs PyTorch in a virtual environment beside this file, and compares the two. Arguments are passed
# to run.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=$here/.venv/bin/python

if ! cmp -s "$here/requirements.txt" "$here/.venv/installed.txt"; then
    echo "installing PyTorch in $here/.venv; the first time this takes several GB" >&2
    "${PYTHON:-python3}" -m venv "$here/.venv"
    "$python" -m pip install --quiet --requirement "$here/requirements.txt" >&2
    cp "$here/requirements.txt" "$here/.venv/installed.txt"
fi
(cd "$root" && cargo build --quiet --release --package falcon-cli >&2)

# Both sides keep freed memory (glibc). Otherwise every large tensor is allocated from the system anew, which costs up
# to a fifth of the time, depending on what ran before.
export MALLOC_MMAP_THRESHOLD_="${MALLOC_MMAP_THRESHOLD_-8589934592}"
export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_-17179869184}"
export MALLOC_ARENA_MAX="${MALLOC_ARENA_MAX-1}"
exec "$python" "$here/run.py" --falcon "${CARGO_TARGET_DIR:-$root/target}/release/falcon" "$@"
