#!/usr/bin/env bash
# Runs all tests: those of Rust, then those of Python. The Python tests have their own environment, target/python, which
# is created once. Before PyTorch is installed there (some 5 GB, because PyTorch for Linux includes GPU libraries), the
# tests that do not need it run without it; then all run with it.
#
#   ./test.sh           all of it
#   ./test.sh rust      only Rust
#   ./test.sh python    only Python
set -euo pipefail
cd "$(dirname "$0")"

rust() {
    cargo test --release --workspace
}

python() {
    local env=target/python
    [ -x $env/bin/python ] || python3 -m venv $env
    local pip="$env/bin/python -m pip --disable-pip-version-check"
    $pip install --quiet -r python/requirements.txt
    $pip install --quiet ./python
    # Run in another folder, so that the installed package is tested and not the sources.
    local tests="$PWD/python/tests" config="$PWD/python/pyproject.toml"
    $env/bin/ruff check --quiet python
    $env/bin/ruff format --quiet --check python
    if ! $env/bin/python -c "import torch" 2>/dev/null; then
        (cd "$tests" && ../../$env/bin/python -m pytest -c "$config" "$tests")
    fi
    $pip install --quiet -r python/requirements-torch.txt
    # Only now: without PyTorch, mypy would not know the types of most of the package.
    $env/bin/mypy --config-file python/pyproject.toml python/falcon_fwa
    (cd "$tests" && ../../$env/bin/python -m pytest -c "$config" "$tests")
}

case "${1:-all}" in
    rust) rust ;;
    python) python ;;
    all) rust && python ;;
    *) echo "usage: ./test.sh [rust|python]" >&2; exit 2 ;;
esac
