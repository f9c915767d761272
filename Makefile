# Every target sets up .venv first if that is not done, so each works alone in a fresh clone.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

bin := .venv/bin
stamp := .venv/.setup-done
spark_4_2 := .venv-spark-4.2
ARGS ?=
REBUILD_ARGS ?=
SOAK_SECONDS ?= 600

# Tests run on all cores; ARGS="-n 0" runs them in one process. The kernels are compiled before, so that
# no two processes do it.
parallel := -n auto --dist loadscope
# For make test one process more: some of its tests wait for a JVM or a clock.
parallel_test := -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --dist loadscope
# Two at a time, however many cores there are: a test may run several servers.
in_pairs := -n 2 --dist loadscope
kernels := $(bin)/python -m reput.compile_kernels

# `make setup PYTHON=python3.13` always runs, to change the interpreter of .venv.
ifeq ($(origin PYTHON),command line)
.PHONY: $(stamp)
endif

.PHONY: help setup demo test test-fast test-processes test-exhaustive test-spark-4.2 test-connect check integration image-test
.PHONY: torture soak bench format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="…" is passed on by the test targets, integration, image-test, torture, demo and bench; PYTHON=… chooses the interpreter of setup'

setup: $(stamp) ## make .venv from requirements.lock, see that Java is there, and compile the kernels

$(stamp): requirements.lock pyproject.toml tools/setup.sh tools/apt.sh
	@tools/setup.sh
	@touch $@

$(spark_4_2)/.setup-done: requirements-spark-4.2.lock pyproject.toml tools/setup.sh tools/apt.sh
	@VENV=$(spark_4_2) LOCK=$< tools/setup.sh
	@touch $@

demo: $(stamp) ## a tour on a commit log that it writes itself
	@$(bin)/reput demo $(ARGS)

test: $(stamp) ## a case of each behaviour; needs no server
	@$(kernels)
	$(bin)/pytest -m "not process and not integration and not exhaustive" $(parallel_test) $(ARGS)

test-processes: $(stamp) ## what test leaves out because each starts a Spark of its own
	@$(kernels)
	$(bin)/pytest -m "process and not integration and not exhaustive" $(parallel) $(ARGS)

test-fast: $(stamp) ## the part of test that starts no JVM
	@$(kernels)
	$(bin)/pytest -m "not spark and not integration and not exhaustive" $(parallel) $(ARGS)

test-exhaustive: $(stamp) ## every byte, call, seed and variant (--sample N: each N-th)
	@$(kernels)
	$(bin)/pytest -m "exhaustive and not integration" $(parallel) $(ARGS)

test-spark-4.2: $(spark_4_2)/.setup-done ## what tells one Spark from another, on the oldest one supported
	@$(spark_4_2)/bin/python -m reput.compile_kernels
	$(spark_4_2)/bin/pytest -m "not integration and not exhaustive" $(parallel) tests/pyspark_reput \
		tests/streaming/spark tests/streaming/sources/test_messages.py tests/installed $(ARGS)

test-connect: $(stamp) ## the tests of the source through Spark Connect: a server, and a client without a JVM
	@$(kernels)
	REPUT_TEST_CONNECT=1 $(bin)/pytest -m "spark and not integration and not exhaustive" $(parallel) \
		tests/pyspark_reput tests/streaming/sources tests/streaming/queries/test_backlog.py $(ARGS)

check: $(stamp) ## lint, types, import rules, limits, then test
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/lint-imports --no-logo
	$(bin)/python tools/check_limits.py
	@$(MAKE) --no-print-directory test

integration: $(stamp) $(spark_4_2)/.setup-done ## against real brokers, started here as processes (needs Maven and a JDK)
	@tools/integration.sh
	@$(kernels)
	$(bin)/pytest -m integration tests/integration $(in_pairs) -v --durations=40 $(ARGS)

image-test: $(stamp) ## build the Dockerfile, and run the services of docker-compose.yml with it
	@tools/integration.sh --image
	REPUT_DOCKERFILE=1 $(bin)/pytest -m integration tests/integration/test_compose.py -v --durations=40 $(ARGS)

torture: $(stamp) ## crash proof in its long form: kills, power loss, failing calls (takes long)
	$(bin)/python -m tests.torture $(ARGS)

soak: $(stamp) ## everything long: exhaustive tests, stress runs, torture; prints counts (takes hours)
	@$(MAKE) --no-print-directory test-exhaustive
	@$(MAKE) --no-print-directory test-spark-4.2 ARGS="tests -m 'spark and not integration'"
	$(bin)/python -m tests.stress.reads $(SOAK_SECONDS)
	$(bin)/python -m tests.stress.swaps $(SOAK_SECONDS)
	$(bin)/python -m tests.stress.waits $(SOAK_SECONDS)
	$(bin)/python -m tests.stress.console $(SOAK_SECONDS)
	$(bin)/python -m tests.torture --part cycles --part faults --part enumeration --part live \
		--part kills --part rebuilds

bench: $(stamp) ## measure; the rebuild beside brokers 5.3.3 and 4.8.0 (needs Maven and a JDK)
	@tools/integration.sh --java
	$(bin)/python -m bench $(ARGS)
	$(bin)/python -m bench.rebuild --broker 5.3.3 4.8.0 $(REBUILD_ARGS)

format: $(stamp) ## rewrite the source as ruff formats it
	$(bin)/ruff check --fix-only
	$(bin)/ruff format

# `fewest`: one version of each package for every Python, so that check means the same on all of them.
# requirements-run.lock is the part of it that the image needs; requirements-spark-4.2.lock holds the
# oldest Spark supported.
lock: ## bring requirements.lock up to date with pyproject.toml (ARGS=--upgrade for newer versions)
	@command -v uv >/dev/null || { echo 'make lock needs uv: pip install uv, then again' >&2; exit 1; }
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--fork-strategy fewest --no-annotate --custom-compile-command 'make lock' --quiet \
		--output-file requirements.lock $(ARGS)
	uv pip compile pyproject.toml --group build --constraint requirements.lock --universal \
		--python-version 3.11 --generate-hashes --fork-strategy fewest --no-annotate \
		--custom-compile-command 'make lock' --quiet --output-file requirements-run.lock
	echo 'pyspark<4.3' | uv pip compile pyproject.toml - --group dev --universal \
		--python-version 3.11 --generate-hashes --fork-strategy fewest --no-annotate \
		--custom-compile-command 'make lock' --quiet --output-file requirements-spark-4.2.lock $(ARGS)

clean: ## remove caches and build output (.venv stays; remove it by hand to start over)
	rm -rf build dist *.egg-info spark-warehouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
