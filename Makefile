# Targets for people and for CI; `make help` lists them.

ADDR ?= 127.0.0.1:8080
DATA ?= data
BIN  := bin
REGISTRY ?= ghcr.io/opsplane
TAG  ?= dev
GO   ?= go
# Runs the tests, and once more by themselves those that failed: a machine that is
# short of time fails one now and then. Both runs are printed, and what needed the
# second one is named as FLAKY, to be mended. More than a few failures (a test counts
# beside each of its subtests), a panic or a data race is final.
TEST := $(GO) run gotest.tools/gotestsum@v1.13.0 --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=6 --rerun-fails-abort-on-data-race
export CGO_ENABLED ?= 1

.PHONY: help build up demo-alerts test test-crash-long bench aws-local test-aws test-localstack test-kube demo-kube bench-kube image lint openapi diagrams clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/opsplane (the engine and its tools) and bin/opsplane-agent
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/opsplane ./infra/local/opsplane
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/opsplane-agent ./agent

up: ## start the engine with a simulated GPU fleet (ADDR=127.0.0.1:8080 DATA=data FLAGS='--webhook-allow 127.0.0.0/8')
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/opsplane ./infra/local/opsplane
	@exec $(BIN)/opsplane up --demo --addr "$(ADDR)" --data "$(DATA)" $(FLAGS)

demo-alerts: build ## a night in a minute: what the shipped rules tell, compared with infra/docs/night.txt
	@$(GO) run ./infra/local/night

test: build lint ## everything that proves the product on one machine, race detector on
	@mkdir -p $(BIN) && : > $(BIN)/flaky
	@$(TEST) --rerun-fails-report $(BIN)/flaky --packages ./... -- -race -count=1 -timeout 15m; rc=$$?; sed -n 's/^..*/FLAKY &/p' $(BIN)/flaky; exit $$rc
	cd agent/executor/helm && $(GO) test -count=1 ./...

test-crash-long: build ## 300 rounds of kill -9 against the real binary
	OPSPLANE_CRASH_ROUNDS=300 $(GO) test -timeout 85m -run 'TestCrash' -v ./infra/local/crashtest

bench: ## the figures of the docs, from one run (OPSPLANE_BENCH_STORED=1000000)
	cd infra/bench && $(GO) test -run '^$$' -bench . -benchtime 1x -timeout 60m .
	@$(GO) build -o $(BIN)/awstest ./infra/awstest/up
	$(BIN)/awstest --bench

aws-local: ## deploy into a local AWS with a simulated fleet, in the foreground (ADDR=127.0.0.1:8080)
	@$(GO) build -o $(BIN)/awstest ./infra/awstest/up
	@exec $(BIN)/awstest --addr "$(ADDR)"

test-aws: ## prove the AWS engine: template, conformance, whole flows in a local AWS
	@$(GO) build -o $(BIN)/awstest ./infra/awstest/up
	@exec $(BIN)/awstest --test --runner "$(TEST)"

test-localstack: ## the whole flow on LocalStack's own image (wants Docker and the image)
	@$(GO) build -o $(BIN)/awstest ./infra/awstest/up
	@exec $(BIN)/awstest --test-localstack

test-kube: ## prove the Kubernetes agent on a real control plane (ARGS='-- -run TestDrain ./agent/...' narrows)
	@cd infra/kubetest && $(GO) test ./plane ./up && $(GO) build -o ../../$(BIN)/kubetest ./up
	@exec $(BIN)/kubetest test --runner "$(TEST)" $(ARGS)

demo-kube: ## a real control plane with GPU nodes, the engine and the agent, in the foreground (ADDR=127.0.0.1:8080)
	@cd infra/kubetest && $(GO) build -o ../../$(BIN)/kubetest ./up
	@exec $(BIN)/kubetest demo --addr "$(ADDR)"

bench-kube: ## the figures of the Kubernetes agent on a real control plane
	@cd infra/kubetest && $(GO) build -o ../../$(BIN)/kubetest ./up
	@exec $(BIN)/kubetest bench $(ARGS)

image: ## the images of the agent, the GPU host's side and the upgrade (REGISTRY=ghcr.io/opsplane TAG=dev; wants Docker)
	$(GO) run ./infra/image --registry "$(REGISTRY)" --tag "$(TAG)"

lint: ## gofmt, vet, staticcheck, generated files
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'not formatted: run gofmt -w'; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags awstest ./...
	$(GO) vet -tags kubetest ./...
	cd infra/bench && $(GO) vet .
	cd infra/kubetest && $(GO) vet ./plane ./up
	cd agent/executor/helm && $(GO) vet -tags kubetest ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -tags awstest,kubetest ./...

openapi: ## write infra/docs/openapi.json
	$(GO) run ./infra/openapi > infra/docs/openapi.json

diagrams: ## write the generated parts of infra/docs
	OPSPLANE_WRITE=1 $(GO) test -p 1 -run 'TestDiagram|TestDocs|TestPayloadsAreDocumented' ./shared/operation ./shared/httpapi ./shared/alert

clean: ## remove what was built
	rm -rf $(BIN)

# `sam build` calls these with ARTIFACTS_DIR; ARCH is GOARCH (amd64 for the
# template's Architecture=x86_64).
ARCH ?= arm64

.PHONY: build-ApiFunction build-AgentApiFunction build-AuthorizerFunction build-RelayFunction build-SweepFunction build-PlaneFunction build-ReactFunction
build-ApiFunction:        ; $(call function,api,$(SMALL))
build-AgentApiFunction:   ; $(call function,agentapi)
build-AuthorizerFunction: ; $(call function,authorizer)
build-RelayFunction:      ; $(call function,relay)
build-SweepFunction:      ; $(call function,sweep)
build-PlaneFunction:      ; $(call function,plane)
build-ReactFunction:      ; $(call function,react)

# api has all routes and the rules' compiler, and waits for the table most of the time:
# inlining in these packages would take its package over 6 MB.
SMALL := $(foreach p,github.com/opsplane/opsplane/... github.com/aws/... github.com/goccy/... github.com/danielgtaylor/huma/v2 cel.dev/cel-go/... github.com/antlr4-go/... google.golang.org/protobuf/...,-gcflags=$(p)=-l)

# One static binary; without the symbol tables, Lambda's old RPC mode and HTTP/2,
# which none of the services asked speaks, it starts from a smaller package.
define function
CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GO) build -trimpath -ldflags '-s -w' -tags lambda.norpc,nethttpomithttp2 $(2) -o "$(ARTIFACTS_DIR)/bootstrap" ./functions/$(1)
endef
