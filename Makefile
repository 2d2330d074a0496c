# The only task runner. `make` lists the targets.
#
#   make test P=./pkg/ledger T=TestRecord   narrows the tests
#   make demo DOCS=folder                   runs the demo on PDFs of your own

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo up build test check lint fmt generate verify tidy bench clean

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/reeve-pipeline/reeve/pkg/service.version=$(VERSION)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## find or install what the demo needs: Go and PostgreSQL
	@scripts/setup

demo: setup bin/reeve ## process a small town's PDFs from start to end (DOCS=folder: your own)
	@bin/reeve demo $(if $(DOCS),--docs "$(DOCS)")

up: setup bin/reeve ## run all of Reeve in one process, data under ./data
	@bin/reeve up --data data

.PHONY: bin/reeve
bin/reeve: # go decides whether there is anything to do
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./services/reeve/cmd/reeve

build: ## build every program into bin/; only those that run models need a C compiler
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $$(CGO_ENABLED=0 scripts/programs)
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ $$(scripts/programs -cgo)

test: ## test everything with the race detector (P=package T=name narrow)
	@scripts/setup test
	@scripts/test $(if $(P),-p "$(P)") $(if $(T),-t "$(T)")

check: ## all that CI runs: format, build, lint, generated files, tests
	@scripts/setup dev
	@scripts/check

lint: ## lint Go and shell
	@scripts/lint

fmt: ## format Go
	@scripts/tools golangci-lint
	@scripts/modules -rel | xargs .bin/golangci-lint fmt

generate: ## write generated files anew: protobuf and migrations/schema.sql
	@scripts/generate

verify: ## demand that generated files are up to date
	@scripts/verify

tidy: ## tidy every module
	@scripts/modules | while read -r dir; do (cd "$$dir" && $(GO) mod tidy); done

bench: ## run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem work

clean: ## remove what was built; data stays
	rm -rf bin .bin
