#!/usr/bin/env bash
# Makes the pictures of the dashboard in docs/images, in light and dark: a test starts a server of several repositories
# and a headless Chromium. Run it after a change of the pages, and look at the pictures before committing them.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p docs/images
ESKER_SCREENSHOTS=$PWD/docs/images cargo test -p esker-server --test it -- --exact browser::screenshots_of_a_real_run_are_small
ls -l docs/images
