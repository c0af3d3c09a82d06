# One target a purpose; everything else is in cargo or scripts/.

# Asked for once: if the first rustc fails, as one that rustup has to install may, nothing goes on with half an answer.
ifndef TRIPLE
TRIPLE := $(shell said=$$(rustc -vV) && printf '%s\n' "$$said" | sed -n 's/^host: //p')
endif
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
ESKER := $(TARGET_DIR)/$(TRIPLE)/release/esker

.PHONY: demo check test lint soak canary release client

# Publishes a folder, serves it, mounts it, times a command from it, cleans up: make demo [DIR=… CMD=… VIA=mount|run].
# The shell of the command sees what was typed, dollar signs included.
demo: export DEMO_DIR = $(value DIR)
demo: export DEMO_CMD = $(value CMD)
demo: export DEMO_VIA = $(value VIA)
demo: release
	scripts/demo.sh $(ESKER)

# The tests that need neither root nor programs of others: libraries, formats, documents, rules of the source tree.
check:
	cargo test --locked --workspace --lib --bins
	cargo test --locked -p esker-format -p esker-testkit --test it

# Every test, and at the end what was skipped. As root it installs what is missing; as a user it says what to install. Tests mostly
# wait, for disks and for each other's programs: two at a time left two cores idle for half of the time.
# What users start, the matrix, soaks and guides, is the release binary, built beside the first tests or given as ESKER_BINARY.
ifneq ($(ESKER_BINARY),)
GIVEN := $(abspath $(ESKER_BINARY))
endif
test: export RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n < 4 ? 4 : n)))
test soak: override export ESKER_BINARY = $(or $(GIVEN),$(abspath $(ESKER)))
test:
	scripts/needs.sh
	scripts/test.sh $(if $(GIVEN),,$(MAKE) release)

# What CI demands beyond tests.
lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked -p esker-cli --no-default-features -- -D warnings
	scripts/deny.sh

# The long tests, at full length; reports go to docs/reports/.
soak: $(if $(GIVEN),,release)
	scripts/needs.sh
	scripts/soak.sh

# Removes each check of the trust chain in turn and expects a test to fail.
canary:
	scripts/needs.sh
	scripts/canary.sh

# One static binary (docs/release.md).
release:
	@[ -n "$(TRIPLE)" ] || { echo "rustc does not work: https://rustup.rs installs one; if it is there, run 'rustc -vV' to see why" >&2; exit 1; }
	@echo "building esker: the first time about fifteen minutes on two cores, five on eight; later, what has changed"
	scripts/release.sh $(TRIPLE) -p esker-cli
	scripts/strip.sh $(ESKER)
	scripts/static.sh $(ESKER)

# A smaller binary for nodes that mount, run and build images: no commands of publishers and servers, no object storage.
CLIENT := $(TARGET_DIR)/$(TRIPLE)/client/esker
client:
	PROFILE=client scripts/release.sh $(TRIPLE) -p esker-cli --no-default-features
	scripts/strip.sh $(CLIENT) 19000000
	scripts/static.sh $(CLIENT)
