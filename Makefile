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
run: ## a node on this machine with docs/examples applied, from a development build (PROFILE=release: from the shipped one)
	PROFILE=$(PROFILE) scripts/run.sh $(WINDLASS)

.PHONY: down
down: ## stop the node that `make run` started; its data stays
	$(WINDLASS) down

.PHONY: purge
purge: ## stop the node and remove all of its data
	$(WINDLASS) down --purge

# Tiers of tests: what runs at every change, every night and before every release. CONTRIBUTING.md says what is in each.

.PHONY: test
test: ## at every change: lint and all tests
	scripts/install.sh test
	$(MAKE) --no-print-directory lint-dependencies
	scripts/test.sh

.PHONY: test-quick
test-quick: ## before each commit: lint, and the tests that need no node; 3 minutes where most is built
	scripts/install.sh test
	scripts/test.sh quick

.PHONY: test-nightly
test-nightly: ## every night: a real control plane (KUBEBUILDER_ASSETS), a machine that boots, all faults, fuzzers for ten minutes each
	scripts/test-nightly.sh

.PHONY: test-release
test-release: ## before each release: every night's, packages and their life, containers that boot, two builds that must be the same
	$(MAKE) --no-print-directory test-nightly
	$(MAKE) --no-print-directory test-package
	$(MAKE) --no-print-directory test-container
	$(MAKE) --no-print-directory reproducible

.PHONY: test-clients
test-clients: ## kubectl, Python and Rust clients on every type of the API, in one running server; operators of theirs
	scripts/install.sh test
	scripts/test.sh clients

.PHONY: test-cluster
test-cluster: ## a node in a real Kubernetes, whose programs are in the directory KUBEBUILDER_ASSETS
	scripts/install.sh test
	scripts/test-cluster.sh

.PHONY: test-judges
test-judges: ## upstream's end-to-end suite and operators that users run, which lie in JUDGES=DIRECTORY, on one node
	@: "$${JUDGES:?names the directory with the suite, the operators and their images}"
	scripts/install.sh test
	JUDGES=$$(realpath "$$JUDGES") scripts/test.sh judges

.PHONY: conformance
conformance: ## upstream's conformance tests, all of them, which lie in CONFORMANCE=DIRECTORY; the report is in target/conformance
	@: "$${CONFORMANCE:?names the directory with the suite and its images}"
	scripts/install.sh test
	JUDGES=$$(realpath "$$CONFORMANCE") scripts/conformance.sh

.PHONY: test-upstream
test-upstream: ## upstream's own files of types and configurations, in its sources (KUBERNETES=DIRECTORY)
	@: "$${KUBERNETES:?names the directory of the sources of Kubernetes}"
	KUBERNETES=$$(realpath "$$KUBERNETES") cargo test --locked -p windlass-apimachinery -p windlass -- --ignored upstream

.PHONY: test-faults
test-faults: ## every call of a pod to Docker with every fault, FAULTS_PART=1/1 of them: some hours
	scripts/install.sh test
	scripts/test-faults.sh

.PHONY: lint
lint: ## formatting and lints, warnings denied, in the build of the tests; licences and sources of dependencies
	cargo fmt --all --check
	$(MAKE) --no-print-directory lint-dependencies
	scripts/build-with-lints.sh

# Crates outside of the workspace have lock files of their own; a stale one is refused.
.PHONY: lint-dependencies
lint-dependencies:
	git ls-files '*Cargo.lock' | while read -r lock; do \
	    cargo update --workspace --locked --quiet --manifest-path "$${lock%.lock}.toml"; \
	done
	cargo fetch --locked --quiet
	cargo fetch --locked --quiet --manifest-path fuzz/Cargo.toml
	"$$(scripts/cargo-tool.sh cargo-deny)" --offline --locked check bans licenses sources
	"$$(scripts/cargo-tool.sh cargo-deny)" --manifest-path fuzz/Cargo.toml --config deny.toml --offline --locked check bans licenses sources

.PHONY: audit
audit: ## known vulnerabilities of dependencies; fetches the RustSec database, so it needs the network
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
test-boot: ## a virtual machine with systemd, where the package in dist/ is installed and put through faults; 15 to 25 minutes
	scripts/install.sh boot
	scripts/dockerd.sh
	tests/images/build.sh
	scripts/test-images.sh busybox nginx
	tests/boot/boot.sh

.PHONY: test-container
test-container: ## the same, and each command without Docker and without the API (KUBEBUILDER_ASSETS), in a container that boots, where the machine allows it; 20 minutes
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
bench: bench-agent bench-api bench-cadvisor bench-controllers bench-extension bench-node bench-policies bench-proxy bench-store bench-instructions ## all figures of docs/performance.md, measured here

.PHONY: bench-agent
bench-agent: build ## pods compared with raw Docker, and the node with 100 of them
	scripts/install.sh test
	scripts/bench.sh bench-agent

.PHONY: bench-api
bench-api: build ## the API with 10,000 pods and 1,000 watchers compared with the disk's own speed; the build after a field was added
	scripts/install.sh test
	scripts/bench.sh bench-api

.PHONY: bench-cluster
bench-cluster: build ## pods of a node in a real Kubernetes (KUBEBUILDER_ASSETS) compared with raw Docker; its requests and memory
	scripts/install.sh test
	scripts/bench.sh bench-cluster

.PHONY: bench-node
bench-node: build ## commands, logs and copies compared with raw Docker; restart with 250 pods; image collection
	scripts/install.sh test
	scripts/bench.sh bench-node

.PHONY: bench-cadvisor
bench-cadvisor: build ## usage of 100 and 500 containers, and the pages of 250 pods
	scripts/install.sh test
	scripts/bench.sh bench-cadvisor

.PHONY: bench-controllers
bench-controllers: build ## 1,000 pods of 100 Deployments on 50 hollow nodes compared with raw writes; a Deployment compared with raw Docker
	scripts/install.sh test
	scripts/bench.sh bench-controllers

.PHONY: bench-extension
bench-extension: build ## custom resources, rules, webhooks and 500 definitions compared with built-in kinds and bare calls, and with a real kube-apiserver (KUBEBUILDER_ASSETS)
	scripts/install.sh test
	scripts/bench.sh bench-extension

.PHONY: bench-proxy
bench-proxy: build ## the proxy with 1,000 and 10,000 services
	scripts/install.sh test
	scripts/bench.sh bench-proxy

.PHONY: bench-policies
bench-policies: ## a new pod's rules and a packet's cost with 1,000 NetworkPolicies, compared with iptables-restore alone
	scripts/install.sh test
	scripts/bench.sh bench-policies

.PHONY: bench-store
bench-store: ## the store compared with the disk's own speed, and the engines that were considered for it
	scripts/install.sh build
	scripts/bench.sh bench-store

.PHONY: bench-build
bench-build: ## time and size of the development build and of the shipped one, each from nothing; some 20 minutes
	scripts/install.sh build
	scripts/bench-build.sh

.PHONY: bench-instructions
bench-instructions: ## instruction counts of the rule builder, each against its limit
	scripts/install.sh instructions
	scripts/bench.sh bench-instructions

.PHONY: function-order
function-order: ## rewrite packaging/function-order.txt: the functions that run, which the release build links next to each other; an hour
	scripts/install.sh test
	scripts/install.sh order
	scripts/function-order.sh

.PHONY: soak
soak: build ## churn and random faults for SOAK_MINUTES=30, then a look for leaks and losses; SOAK_SEED= repeats one
	scripts/install.sh test
	scripts/bench.sh soak

.PHONY: storm
storm: build ## 200 Deployments changed at random for two minutes while the control plane is killed; STORM_SEED= repeats one
	scripts/install.sh test
	scripts/bench.sh storm

.PHONY: test-api-faults
test-api-faults: ## each request and each watch event of controllers and scheduler fails in each way: hours (FAULTS=100: that many of each scenario)
	FAULTS=$${FAULTS:-all} cargo test --locked -p windlass-controllers --lib tests::faults -- --nocapture

.PHONY: fuzz
fuzz: ## feed random input to the readers of kernel state, logs, manifests and the API, SECONDS_EACH=60
	scripts/install.sh test
	scripts/fuzz.sh
