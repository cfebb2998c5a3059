#!/usr/bin/env bash
# All tests: those of Rust, then those of Python, without PyTorch and with it. Python's run in an environment of their own,
# target/python, which is made once; PyTorch for Linux brings its GPU libraries along, some 5 GB.
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
    # From another folder, so that what is tested is what was installed.
    local tests="$PWD/python/tests" config="$PWD/python/pyproject.toml"
    $env/bin/ruff check --quiet python
    $env/bin/ruff format --quiet --check python
    if ! $env/bin/python -c "import torch" 2>/dev/null; then
        (cd "$tests" && ../../$env/bin/python -m pytest -c "$config" "$tests")
    fi
    $pip install --quiet -r python/requirements-torch.txt
    (cd "$tests" && ../../$env/bin/python -m pytest -c "$config" "$tests")
}

case "${1:-all}" in
    rust) rust ;;
    python) python ;;
    all) rust && python ;;
    *) echo "usage: ./test.sh [rust|python]" >&2; exit 2 ;;
esac
