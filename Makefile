# Everything a user or a developer types. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

.PHONY: build
build: ## the release binary: target/release/windlass
	scripts/install.sh build
	scripts/build.sh

# What `make run` starts: the build that tests use, which is ready much sooner than the shipped one; PROFILE=release takes that.
PROFILE ?= dev
WINDLASS = target/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/windlass

.PHONY: run
run: ## a node on this machine with the examples applied, of a quick build (PROFILE=release: of the shipped one)
	PROFILE=$(PROFILE) scripts/run.sh $(WINDLASS)

.PHONY: down
down: ## stop the node that `make run` started; its data stays
	$(WINDLASS) down

.PHONY: purge
purge: ## stop the node and remove everything of it
	$(WINDLASS) down --purge

.PHONY: test
test: ## lint and all tests
	scripts/install.sh test
	$(MAKE) --no-print-directory lint
	scripts/test.sh

.PHONY: test-clients
test-clients: ## kubectl, Python and Rust clients on every type of the API, in one running server
	scripts/install.sh test
	cargo build --locked --workspace
	cargo test --locked --workspace --test clients

.PHONY: test-cluster
test-cluster: ## a node in a real Kubernetes, whose programs are in the directory KUBEBUILDER_ASSETS; skipped without it
	scripts/install.sh test
	scripts/test-cluster.sh

.PHONY: lint
lint: ## formatting and lints, warnings denied; licences and sources of what we depend on
	cargo fmt --all --check
	cargo fetch --locked --quiet
	cargo fetch --locked --quiet --manifest-path fuzz/Cargo.toml
	cargo clippy --workspace --all-targets --locked -- -D warnings
	"$$(scripts/cargo-tool.sh cargo-deny)" --offline --locked check bans licenses sources
	"$$(scripts/cargo-tool.sh cargo-deny)" --manifest-path fuzz/Cargo.toml --config deny.toml --offline --locked check bans licenses sources

.PHONY: audit
audit: ## known weaknesses of what we depend on; fetches the RustSec database, so it needs the network
	"$$(scripts/cargo-tool.sh cargo-deny)" --locked check advisories
	"$$(scripts/cargo-tool.sh cargo-deny)" --manifest-path fuzz/Cargo.toml --config deny.toml --locked check advisories
	"$$(scripts/cargo-tool.sh cargo-audit)" audit
	"$$(scripts/cargo-tool.sh cargo-audit)" audit --file fuzz/Cargo.lock

.PHONY: package
package: ## dist/: .deb, .rpm, archive, bill of materials, checksums, of the release binary (or WINDLASS_BIN)
	$(if $(WINDLASS_BIN),,$(MAKE) --no-print-directory build)
	scripts/install.sh package
	scripts/package.sh

.PHONY: test-package
test-package: ## the packages in dist/: their content, and install, upgrade, remove and purge in a root of their own
	scripts/install.sh package
	scripts/test-package.sh

.PHONY: test-boot
test-boot: ## a virtual machine with systemd, where the package in dist/ is installed and made to suffer; 15 to 25 minutes
	scripts/install.sh boot
	scripts/dockerd.sh
	tests/images/build.sh
	scripts/test-images.sh busybox nginx
	tests/boot/boot.sh

.PHONY: test-container
test-container: ## the same, and each verb without Docker and without the API (KUBEBUILDER_ASSETS), in a container that boots, where the machine allows it; 20 minutes
	scripts/install.sh boot
	scripts/dockerd.sh
	tests/images/build.sh
	scripts/test-images.sh busybox nginx
	tests/boot/container.sh

.PHONY: reproducible
reproducible: ## two builds in two directories, compared byte by byte: two release builds long
	scripts/install.sh package
	scripts/reproducible.sh

.PHONY: bench
bench: bench-agent bench-api bench-cadvisor bench-controllers bench-node bench-proxy bench-store bench-instructions ## all figures of docs/performance.md, measured here

.PHONY: bench-agent
bench-agent: build ## pods beside raw Docker, and the node with 100 of them
	scripts/install.sh test
	scripts/bench.sh bench-agent

.PHONY: bench-api
bench-api: build ## the API with 10,000 pods and 1,000 watchers beside the disk's own speed; the build after a field was added
	scripts/install.sh test
	scripts/bench-api.sh

.PHONY: bench-cluster
bench-cluster: build ## pods of a node in a real Kubernetes (KUBEBUILDER_ASSETS) beside raw Docker; its requests and memory
	scripts/install.sh test
	scripts/bench.sh bench-cluster

.PHONY: bench-node
bench-node: build ## commands, logs and copies beside raw Docker; restart with 250 pods; images collected
	scripts/install.sh test
	scripts/bench.sh bench-node

.PHONY: bench-cadvisor
bench-cadvisor: build ## measuring 100 and 500 containers, and the pages of 250 pods
	scripts/install.sh test
	scripts/bench.sh bench-cadvisor

.PHONY: bench-controllers
bench-controllers: build ## 1,000 pods of 100 Deployments on 50 hollow nodes beside raw writes; a Deployment beside raw Docker
	scripts/install.sh test
	scripts/bench.sh bench-controllers

.PHONY: bench-proxy
bench-proxy: build ## the proxy with 1,000 and 10,000 services
	scripts/install.sh test
	scripts/bench-proxy.sh

.PHONY: bench-store
bench-store: ## the store beside the disk's own speed, and the engines that were compared for it
	scripts/install.sh build
	scripts/bench-store.sh

.PHONY: bench-build
bench-build: ## the time and size of the quick build and of the shipped one, each from nothing; some 20 minutes
	scripts/install.sh build
	scripts/bench-build.sh

.PHONY: bench-instructions
bench-instructions: ## instructions that the rule builder takes, each against its limit
	scripts/install.sh instructions
	scripts/bench-instructions.sh

.PHONY: soak
soak: build ## churn and random faults for SOAK_MINUTES=30, then a look for leaks and losses; SOAK_SEED= repeats one
	scripts/install.sh test
	scripts/bench.sh soak

.PHONY: storm
storm: build ## 200 Deployments changed at random for two minutes while the control plane is killed; STORM_SEED= repeats one
	scripts/install.sh test
	scripts/bench.sh storm

.PHONY: fuzz
fuzz: ## feed nonsense to the readers of kernel state, logs, manifests and the API, SECONDS_EACH=60
	scripts/install.sh test
	scripts/fuzz.sh
