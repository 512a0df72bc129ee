# Every command of the project. The work is done by scripts/, which can be run on their own.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full fmt clean

help: ## Print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what building and testing need (libtorch, Fashion-MNIST, toolchain)
	@scripts/setup

demo: ## Train examples/fashion-mnist.yaml with two workers on this machine
	@scripts/demo

test: ## Everything a change must pass: formatting, lints, licences, generated files, tests
	@scripts/test

test-full: ## The same with the long suites
	@scripts/test full

fmt: ## Format the code
	@cargo fmt --all

clean: ## Remove build output and runs; libtorch and data stay
	@cargo clean
	@rm -rf gradsync-out
