#!/bin/sh
# A vendor's nightly run: lower every model, compare with the last good night, and list the refused operators.
#
#     examples/matrix_nightly.sh MATRIX.toml GOOD TONIGHT [SHARDS]
#
# GOOD is a permanent folder with the rows of the last good night. TONIGHT is a new folder. SHARDS is the number of parts
# of the matrix. This script runs the parts one after the other. In a CI, each part is a job, and the last job joins the stores.
# If something became worse, the exit code is 1, TONIGHT/worse.junit.xml lists it, and GOOD does not change.
set -u
matrix=$1 good=$2 tonight=$3 shards=${4:-1}
mkdir -p "$good" "$tonight"

set --
for shard in $(seq "$shards"); do
    # Failed cells have rows, which the comparison below reports. Any other error ends the run.
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
