#!/bin/sh
# A vendor's nightly run: every model, what is worse than in the last good night, and what to implement next.
#
#     examples/matrix_nightly.sh MATRIX.toml GOOD TONIGHT [SHARDS]
#
# GOOD is a folder that stays, with the rows of the last good night; TONIGHT a new one. SHARDS is how many machines share
# the cells, here one after another: on a CI each is a job that does its own `--shard`, and the last one joins the stores.
# The exit code is 1 if something became worse: TONIGHT/worse.junit.xml has it, GOOD stays, and the next night compares with it.
set -u
matrix=$1 good=$2 tonight=$3 shards=${4:-1}
mkdir -p "$good" "$tonight"

set --
for shard in $(seq "$shards"); do
    # Cells that fail have rows, and whether they failed before is what the comparison says. Anything else ends the night.
    delegraph matrix "$matrix" --shard "$shard/$shards" --store "$tonight/shard$shard" --executor process:2 --exit-zero || exit 2
    set -- "$@" "$tonight/shard$shard"
done
delegraph matrix join "$tonight/all" "$@" --report "$tonight/table.md" --report "$tonight/table.csv" || exit 2
delegraph matrix show "$tonight/all" --refusals > "$tonight/next.txt" || exit 2

if [ -e "$good/rows.jsonl" ]; then
    delegraph matrix diff "$good/rows.jsonl" "$tonight/all" --gate missing failed agreement delegated size latency \
        --report "$tonight/worse.junit.xml" || exit 1
fi
cp "$tonight/all/rows.jsonl" "$good/rows.jsonl"
