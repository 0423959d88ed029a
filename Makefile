# Hearth. `make` alone prints the targets.
GO ?= go
RESULTS := e2e/results
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
# Tests report to the tally, which fails if any of them failed, whatever ran after
# it, and if they took longer than -most. COUNTS names a file that sums up several
# runs (.ci/run). HEARTH_RESUME is e2e-full's alone, and no variable from
# outside leaves anything out. What one goroutine does by itself is tested without the race
# detector, which makes it ten times as long: what is built with !race.
# Tests' binaries have no DWARF, which takes a third of their linking; and the race detector
# waits for the reports of what still runs at their end for 50 ms, not a second: goleak lets
# next to nothing run then. First touches of a page and signals are dear in a virtual machine,
# and were a quarter of what unit tests took: the race detector's own memory may be of large
# pages, and the collector stops goroutines without signals. `make check` vets.
UNITS = GODEBUG=asyncpreemptoff=1 GORACE='atexit_sleep_ms=50 no_huge_pages_for_shadow=0' $(GO) test -ldflags=-w -vet=off -race
# As the binary, or all would be compiled twice.
TEST = CGO_ENABLED=0 $(GO) test -ldflags=-w
TALLY = $(GO) run ./e2e/tally $(if $(COUNTS),-add $(COUNTS))
RUN_E2E = $(TEST) -count 1 -json -timeout 24h ./e2e
unexport HEARTH_RESUME HEARTH_ISSUE HEARTH_VARIANT HEARTH_CHAOS

.PHONY: help hearth dist setup setup-test setup-e2e setup-full demo test check race fuzz chaos bench e2e e2e-full clean

help: ## print the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

hearth: ## build the static binary ./hearth
	CGO_ENABLED=0 $(GO) build -buildvcs=auto -trimpath -ldflags '-s -w' -o hearth ./cmd/hearth

dist: ## packages in dist/: the static binary, a .deb, an OCI image archive, their checksums
	@scripts/setup --dist
	@GO="$(GO)" scripts/dist

setup: ## install Debian packages and test tools that are missing
	@scripts/setup

setup-test:
	@scripts/setup --test

setup-e2e:
	@scripts/setup --e2e

setup-full:
	@scripts/setup --full

demo: setup hearth ## run the main job on an embedded default: no account, no cluster
	@./hearth demo $(ARGS)

test: setup-test ## unit tests with the race detector, and a core of end-to-end tests (at most 20 minutes)
	@{ $(UNITS) -json -timeout 11m $$($(GO) list ./... | grep -v '/e2e$$'); \
	   CGO_ENABLED=0 scripts/without-race $(GO) test -ldflags=-w -json; HEARTH_E2E=core $(RUN_E2E); } | $(TALLY) -most 20m

check: ## formatting, vet, generated pages, architecture
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) test -run 'Architecture|Current|Golden' ./...
	$(GO) mod tidy -diff

race: setup-test ## the core end-to-end tests with a binary built with the race detector
	@HEARTH_E2E=whole-core HEARTH_VARIANT=race $(RUN_E2E) | $(TALLY) -v

FUZZTIME ?= 30s
fuzz: ## every fuzzer for FUZZTIME (30s)
	@for f in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for name in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$f/*_test.go | sed 's/func //'); do \
	    $(GO) test -run xxx -fuzz "^$$name$$" -fuzztime $(FUZZTIME) $$f || exit 1; done; done

OPS ?= 3000
chaos: export HEARTH_CHAOS = $(SEED) $(OPS)
chaos: setup ## random faults and changes under a mount, every read checked; SEED=N replays, OPS=N (3000), VARIANT=race
	@HEARTH_E2E=full HEARTH_VARIANT=$(VARIANT) $(GO) test -count 1 -v -timeout 24h ./e2e -run '^TestScenarios$$/^chaos'

bench: setup-full hearth ## make every figure of docs/benchmarks.md, with its raw rounds
	$(GO) run ./bench $(ARGS)
	$(GO) test -run xxx -bench 'Load|Hot' ./namespace
	HEARTH_BLOCKS=1000000 $(GO) test -run xxx -bench Ready -benchtime 1x -timeout 1h ./cache/disk
	$(GO) test -run BytesFetched -v ./cache

e2e: setup-e2e ## every end-to-end scenario, slices marked REDUCED; the core, but for what is slow, also masked, as nobody, and with -race (at most 40 minutes)
	@{ HEARTH_E2E=all $(RUN_E2E); \
	   for v in masked nobody race; do HEARTH_E2E=core HEARTH_VARIANT=$$v $(RUN_E2E); done; } | $(TALLY) -v -most 40m

e2e-full: export HEARTH_RESUME = yes
e2e-full: setup-full ## the sizes and counts that the issues name, and all with -race; resumable; ISSUE=mount takes one issue's
	@{ HEARTH_E2E=full HEARTH_ISSUE=$(ISSUE) $(RUN_E2E); \
	   for v in masked nobody; do HEARTH_E2E=whole-core HEARTH_ISSUE=$(ISSUE) HEARTH_VARIANT=$$v $(RUN_E2E); done; \
	   HEARTH_E2E=all HEARTH_ISSUE=$(ISSUE) HEARTH_VARIANT=race $(RUN_E2E); } | $(TALLY) -v

clean: ## remove what was built here
	rm -rf hearth dist .tools $(RESULTS)
