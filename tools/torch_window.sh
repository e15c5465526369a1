#!/bin/sh
# Runs the whole suite with every supported torch, each in a fresh environment, and writes what came out into the table of
# docs/compatibility.md. Ends with 1 if a test failed.
#
#     tools/torch_window.sh                         # all rows of the table; about an hour on two cores
#     JOBS=4 tools/torch_window.sh 2.15.0           # one of them, with 4 instead of all cores
#
# Needs what .ci/run needs, and 6 GB in $TMPDIR: the newer wheels bring CUDA libraries.
set -eu
cd "$(dirname "$0")/.."
unset PYTHONPATH
page=docs/compatibility.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

count() { # how many tests $1: a word or words of pytest's last line
    tail -n 1 "$work/log" | grep -oE "[0-9]+ ($1)" | awk '{ n += $1 } END { print n + 0 }'
}

[ $# -gt 0 ] || set -- $(sed -nE 's/^\| ([0-9.]+) \|.*/\1/p' "$page")
code=0
for torch in "$@"; do
    python3 -m venv "$work/environment"
    sed "s/^torch==.*/torch==$torch/" requirements-dev.txt >"$work/requirements.txt"
    [ "$torch" = 2.13.0 ] || sed -i "/^executorch==/d" "$work/requirements.txt" # its library is built for that one
    "$work/environment/bin/pip" install -q --no-cache-dir -r "$work/requirements.txt"
    "$work/environment/bin/pip" install -q --no-build-isolation -r requirements-here.txt
    "$work/environment/bin/python" -m pytest -q -n "${JOBS:-auto}" >"$work/log" 2>&1 || code=1
    grep -E '^(FAILED|ERROR) ' "$work/log" || true
    row="| $torch | $(count passed) | $(count 'failed|errors?') | $(count skipped) | $(date +%F) |"
    sed -i "s/^| $torch |.*/$row/" "$page"
    echo "$row"
    rm -rf "$work/environment"
done
exit $code
