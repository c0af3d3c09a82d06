# One target a purpose; everything else is in cargo or scripts/.

TRIPLE ?= $(shell rustc -vV | sed -n 's/^host: //p')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
ESKER := $(TARGET_DIR)/$(TRIPLE)/release/esker

.PHONY: demo test lint soak canary release

# Publishes a folder, serves it, mounts it, times a command from it, cleans up: make demo [DIR=… CMD=… VIA=mount|run].
# The shell of the command sees what was typed, dollar signs included.
demo: export DEMO_DIR = $(value DIR)
demo: export DEMO_CMD = $(value CMD)
demo: export DEMO_VIA = $(value VIA)
demo: release
	scripts/demo.sh $(ESKER)

# Every test. As root it installs what is missing; as a user it says what to install. Tests mostly wait, for disks and for
# each other's programs: two at a time left two cores idle for half of the time.
test: export RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n < 4 ? 4 : n)))
test:
	scripts/needs.sh
	cargo test --locked --workspace

# What CI demands beyond tests.
lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/deny.sh

# The long tests, at full length; reports go to docs/reports/.
soak:
	scripts/needs.sh
	scripts/soak.sh

# Removes each check of the trust chain in turn and expects a test to fail.
canary:
	scripts/needs.sh
	scripts/canary.sh

# One static binary (docs/release.md).
release:
	@[ -n "$(TRIPLE)" ] || { echo "there is no working rustc: https://rustup.rs installs one" >&2; exit 1; }
	scripts/release.sh $(TRIPLE) -p esker-cli
	scripts/static.sh $(ESKER)
