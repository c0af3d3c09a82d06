#!/bin/sh
# Fills fuzz/corpus/ with seeds: the committed ones, and what the fixtures hold.
set -eu
cd "$(dirname "$0")/.."
mkdir -p fuzz/corpus
cp -R fuzz/seeds/. fuzz/corpus/
cargo run --quiet -p esker-format --example fuzz-seeds -- fixtures fuzz/corpus
# Archives in every format that GNU tar writes, with a file that has holes.
mkdir -p fuzz/corpus/archive
made=$(mktemp -d)
mkdir "$made/dir"
echo text >"$made/dir/file"
ln "$made/dir/file" "$made/same"
ln -s dir/file "$made/link"
truncate -s 64K "$made/holes"
printf end >>"$made/holes"
for format in v7 oldgnu gnu ustar posix; do
    tar --format=$format -b 1 -C "$made" -cf "fuzz/corpus/archive/$format" .
done
for version in 0.0 0.1 1.0; do
    tar --format=posix --sparse --sparse-version=$version -b 1 -C "$made" -cf "fuzz/corpus/archive/sparse-$version" holes
done
tar --format=gnu --sparse -b 1 -C "$made" -cf fuzz/corpus/archive/sparse-gnu holes
rm -r "$made"
