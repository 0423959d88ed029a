# Hearth. `make` alone prints the targets.
GO ?= go
RESULTS := e2e/results
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
# What runs, in which parts, and what is forgiven: internal/testrun says it, and counts.
TESTRUN = $(GO) run ./internal/testrun
# Without the checkout's path in what is compiled, each clone finds it in the build cache.
export GOFLAGS += -trimpath
# As the binary has it: two builds of all are enough, this one and the race detector's.
export CGO_ENABLED = 0
# No variable from outside chooses or leaves anything out.
unexport HEARTH_RESUME HEARTH_AREAS HEARTH_UNTIL HEARTH_VARIANT HEARTH_SEED HEARTH_CHAOS RAPID_SEED

.PHONY: help hearth dist setup setup-check setup-full demo test check soak test-nvmeof fuzz chaos bench compare clean

help: ## print the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

hearth: ## build the static binary ./hearth
	$(GO) build -buildvcs=auto -trimpath -ldflags '-s -w' -o hearth ./cmd/hearth

dist: ## packages in dist/: the static binary, a .deb, an OCI image archive, their checksums
	@scripts/setup --dist
	@GO="$(GO)" scripts/dist

setup: ## install Debian packages and test tools that are missing
	@scripts/setup

setup-check:
	@scripts/setup --check

setup-full:
	@scripts/setup --full

demo: setup hearth ## run the main job on an embedded default: no account, no cluster
	@./hearth demo $(ARGS)

RUN ?= test
test: ## unit tests with the race detector, and a core of end-to-end tests; RUN=ci: what .ci/run runs
	@scripts/setup --$(RUN)
	@$(TESTRUN) $(RUN)

SIZE ?= all
soak: setup-full ## all else: every scenario and variant, changed packages 20 times; resumable; FOR=1h AREAS=peer,cache SIZE=full
	@$(TESTRUN) soak -v -size $(SIZE) -areas '$(AREAS)' -nvmet '$(NVMET)' $(if $(FOR),-for $(FOR))

NVMET ?= ../shared/nvmet-target/nvmet-target
test-nvmeof: ## volumes against the NVMe/TCP target of Linux 6.1 and 6.12 under qemu, booted by NVMET=FILE; kernels in NVMET_CACHE
	@scripts/setup --test
	@$(TESTRUN) nvmeof -v -nvmet '$(NVMET)'

check: setup-check ## formatting, vet, staticcheck, errcheck, generated pages, architecture
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	.tools/bin/staticcheck ./...
	.tools/bin/errcheck -exclude errcheck.txt ./...
	$(GO) test -v -run Architecture .
	$(GO) test -run 'Current|Golden' $$(grep -rlE --include=*_test.go '^func Test\w*(Current|Golden)' . | xargs -n1 dirname | sort -u)
	$(GO) mod tidy -diff

FUZZTIME ?= 30s
fuzz: ## every fuzzer for FUZZTIME (30s)
	@for f in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for name in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$f/*_test.go | sed 's/func //'); do \
	    $(GO) test -run xxx -fuzz "^$$name$$" -fuzztime $(FUZZTIME) $$f || exit 1; done; done

OPS ?= 3000
chaos: export HEARTH_CHAOS = $(SEED) $(OPS)
chaos: setup ## random faults and changes under a mount, every read checked; SEED=N replays, OPS=N (3000), VARIANT=race
	@HEARTH_E2E=full HEARTH_VARIANT=$(VARIANT) $(GO) test -count 1 -v -timeout 24h ./e2e -run '^TestScenarios$$/^chaos'

bench: setup-full hearth ## make every figure of docs/benchmarks.md, with its raw rounds; ARGS='-against FILE' compares with an older binary
	$(GO) run ./bench $(ARGS)
ifeq ($(ARGS),) # with any, it is some figures that are wanted
	$(GO) test -run xxx -bench 'Load|Hot' ./namespace
	HEARTH_BLOCKS=1000000 $(GO) test -run xxx -bench Ready -benchtime 1x -timeout 1h ./cache/disk
	$(GO) test -run BytesFetched -v ./cache
endif

BASE ?= origin/main
compare: setup hearth ## whether ./hearth fell behind BASE (origin/main), a commit: both in turns, ten minutes
	@dir=$$(mktemp -d) && trap 'git worktree remove --force $$dir/base; rm -rf $$dir' EXIT && \
	  git worktree add --quiet --detach $$dir/base $(BASE) && $(MAKE) --no-print-directory -C $$dir/base hearth && \
	  $(GO) run ./bench -against $$dir/base/hearth $(ARGS)

clean: ## remove what was built here
	rm -rf hearth dist .tools $(RESULTS)
