#!/bin/sh
# Fills fuzz/corpus/ with seeds: the committed ones, and what the fixtures hold.
set -eu
cd "$(dirname "$0")/.."
mkdir -p fuzz/corpus
cp -R fuzz/seeds/. fuzz/corpus/
cargo run --quiet -p esker-format --example fuzz-seeds -- fixtures fuzz/corpus
