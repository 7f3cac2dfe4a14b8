# Needs Python 3.11 or newer with venv, and make. uv is used when it is on the PATH.
#
#   make TARGET ARGS="..."   passes arguments on to the command behind the target
#   make test JOBS=0         runs the tests in one process, for --pdb
#   make PYTHON=python3.12   names the interpreter that .venv is made from

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

ARGS ?=
JOBS ?= 2
SAMPLE_SECONDS ?= 8
PYTHON ?=
UV ?= $(shell command -v uv 2>/dev/null)
FREE_KB ?= 1000000
# make demo SPARK=0 does without Spark, which is a large download.
SPARK ?= 1

# What is imported is compiled once, not in each process: the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

# requirements.lock has one section an extra, "# --- NAME", each complete on top of the core: what
# several extras need stands in each of their sections.
EXTRAS := dev docs release bench spark-local

# Installed sections leave a stamp that is named after what was installed. A .venv that was moved
# along with its folder has wrong paths in its scripts, and is made anew.
KEY := $(shell cat requirements.lock pyproject.toml 2>/dev/null | cksum | tr -dc 0-9)
MOVED := $(shell [ ! -e .venv/.at ] || [ "$$(cat .venv/.at)" = "$$(pwd -P)" ] || echo moved)
CORE := .venv/.core-$(KEY)
DEV := .venv/.dev-$(KEY)
BENCH := .venv/.bench-$(KEY)
DOCS := .venv/.docs-$(KEY)
RELEASE := .venv/.release-$(KEY)
SPARK_LOCAL := .venv/.spark-local-$(KEY)

INSTALL := $(if $(UV),"$(UV)" pip install --quiet --python .venv/bin/python,.venv/bin/python -m \
	pip install --quiet --disable-pip-version-check --no-compile --no-input)
die = { echo "make: $(1)" >&2; exit 1; }

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z.][a-z.-]*:.*## / { printf "%-10s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(CORE) ## See it work on real input, in under a minute
	.venv/bin/tubestore demo $(ARGS)
	.venv/bin/rocketcompat demo $(ARGS)
	@$(if $(filter 0,$(SPARK)),echo "Spark: skipped (SPARK=0)",$(MAKE) --no-print-directory demo-spark)

.PHONY: demo-spark
demo-spark: ## The demo's stores in Spark; make demo ends with it, unless SPARK=0
	@[ -e $(SPARK_LOCAL) ] || \
		echo "Spark: installs PySpark, a download of 456 MB, and a Java of 35 MB; SPARK=0 skips it"
	@if $(MAKE) --no-print-directory $(SPARK_LOCAL); then .venv/bin/rocketcompat spark demo; \
		else echo "Spark: skipped, it could not be installed; what is above does not need it"; fi

TESTS := .venv/bin/pytest -n $(JOBS) --dist worksteal

# The random proofs draw the same in each run, so that a change is judged by what it changes.
.PHONY: test
test: export CRASH_SEED ?= 1
test: export CRASH_STATES ?= 300
test: export FAULTS_SAMPLED ?= 1999
test: $(DEV) ## Run the quick tests
	$(TESTS) --ignore=tests/spark -m "not gate and not slow" $(ARGS)

.PHONY: gate
gate: export CRASH_SEED ?= 1
gate: export CRASH_STATES ?= 2000
gate: export FAULTS ?= 30
gate: export FAULTS_SAMPLED ?= 401
gate: export FLIPS ?= 60
gate: export KILL_ROUNDS ?= 4
gate: $(DEV) $(DOCS) $(RELEASE) ## Run what else CI runs of the tests: kills, crash states, faults, real classes
	$(TESTS) --ignore=tests/spark -m "(gate or sample) and not slow" $(ARGS)

.PHONY: sample
sample: export CRASH_SECONDS ?= $(SAMPLE_SECONDS)
sample: $(DEV) ## Run the random proofs with a new seed, printed, for SAMPLE_SECONDS each
	@seed=$${CRASH_SEED:-$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}; echo "CRASH_SEED=$$seed"; \
	CRASH_SEED=$$seed CRASH_STATES=1000000 $(TESTS) -m "sample and not slow" \
		tests/proof/crash tests/proof/test_every_call.py $(ARGS)

.PHONY: test-all
test-all: export CRASH_STATES ?= 50001
test-all: $(DEV) $(DOCS) $(RELEASE) $(BENCH) $(SPARK_LOCAL) ## Run every test (downloads 500 MB once)
	$(TESTS) $(ARGS)

.PHONY: test-spark
test-spark: $(DEV) $(SPARK_LOCAL) ## Run the tests of Spark (downloads 500 MB once)
	$(TESTS) tests/spark -m "not slow" $(ARGS)

.PHONY: mutants
mutants: $(DEV) ## Change a module at random: which changes does no test notice? (ARGS=MODULE)
	.venv/bin/python -m tests.proof.mutation $(ARGS)

.PHONY: check
check: $(DEV) ## Lint, format, types, and the contract of imports
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

.PHONY: format
format: $(DEV) ## Format the code, and mend what can be mended
	.venv/bin/ruff check --fix-only
	.venv/bin/ruff format

.PHONY: bench
bench: $(BENCH) ## Measure us and the others on this machine
	.venv/bin/python -m bench $(ARGS)

.PHONY: docs
docs: $(CORE) $(DOCS) ## Build the site of all pages and docstrings, in build/site
	.venv/bin/python -m sphinx --quiet --fail-on-warning --keep-going \
		--conf-dir tubestore/docs . build/site $(ARGS)
	@echo "build/site/index.html"

.PHONY: dist
dist: $(CORE) $(RELEASE) ## Build the sdist and the wheel, and check both, in dist
	rm -rf dist
	.venv/bin/python -m build --no-isolation $(ARGS)
	.venv/bin/python -m twine check --strict dist/*

.PHONY: .venv
.venv: $(CORE) ## Set up .venv with the core and its two commands

.PHONY: lock
lock: ## Write requirements.lock from pyproject.toml, with uv (ARGS=-U takes newer versions)
	@[ -n "$(UV)" ] || $(call die,the lock is written with uv and there is none on the PATH)
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	resolve() { \
		sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | \
		"$(UV)" pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
			--no-annotate --no-header "$$@" pyproject.toml - > "$$dir/log"; \
	}; \
	grep -v '^#' requirements.lock > "$$dir/rest" 2>/dev/null || true; \
	resolve --generate-hashes $(EXTRAS:%=--extra %) $(ARGS) --output-file "$$dir/rest"; \
	cp "$$dir/rest" "$$dir/all"; \
	exec 3> "$$dir/lock"; \
	echo "# Written by make lock. Each section is complete on top of the core." >&3; \
	: > "$$dir/core"; \
	for section in core $(EXTRAS); do \
		extra=; [ $$section = core ] || extra="--extra $$section"; \
		resolve $$extra --constraint "$$dir/all" --output-file "$$dir/names"; \
		printf '\n# --- %s\n' $$section >&3; \
		awk 'FILENAME == ARGV[1] { split($$0, n, "=="); core[n[1]]; next } \
			FILENAME == ARGV[2] { split($$0, n, "=="); want[n[1]]; next } \
			/^[^ ]/ { split($$0, n, "=="); on = n[1] in want && !(n[1] in core) } on' \
			"$$dir/core" "$$dir/names" "$$dir/rest" >&3; \
		[ $$section != core ] || mv "$$dir/names" "$$dir/core"; \
	done; \
	! grep -n '://' "$$dir/lock" || $(call die,the lock would name hosts); \
	cat "$$dir/lock" > requirements.lock

.PHONY: clean
clean: ## Remove caches, build products and the demo's output
	rm -rf build dist demo-out *.egg-info .hypothesis .import_linter_cache .mypy_cache \
		.pytest_cache .ruff_cache
	find bench rocketcompat tests tubestore -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## Remove .venv too
	rm -rf .venv

# ---------------------------------------------------------------- setting up

$(DEV) $(DOCS) $(RELEASE) $(BENCH) $(SPARK_LOCAL): $(CORE)
$(SPARK_LOCAL): FREE_KB := 3000000

.venv/.%-$(KEY): .venv/bin/python $(if $(MOVED),FORCE)
	@free=$$(df -Pk . | awk 'NR == 2 { print $$4 }'); [ "$${free:-0}" -ge $(FREE_KB) ] || \
		$(call die,setting up needs $(FREE_KB) KB of free disk$(,) and there are $$free)
	@echo "Installing in .venv: $*$(if $(findstring spark,$*), (PySpark: 456 MB, with its Java 35 MB))" >&2
	@awk '/^# --- / { on = $$3 == "$*" } on' requirements.lock > .venv/$*.txt
	@[ -s .venv/$*.txt ] || $(call die,requirements.lock has no section $*)
	@$(if $(UV),,.venv/bin/python -m pip --version >/dev/null 2>&1 || \
		.venv/bin/python -m ensurepip >/dev/null)
	@$(INSTALL) --no-deps --require-hashes -r .venv/$*.txt
	@$(if $(filter core,$*),$(INSTALL) --no-deps --no-build-isolation -e . && \
		rm -rf build tubestore.egg-info)
	@rm -f .venv/.$*-* && touch $@

.venv/bin/python: $(if $(MOVED),FORCE)
	@found=; \
	for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
		new=$$("$$python" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null) || true; \
		if [ "$$new" = True ]; then found=$$python; break; fi; \
	done; \
	first=$(or $(firstword $(PYTHON)),python3); \
	[ -n "$$found" ] || ! version=$$("$$first" -c 'import platform; print(platform.python_version())' \
		2>/dev/null) || \
		$(call die,Python 3.11 or newer is needed and $$first is $$version; name one: make PYTHON=...); \
	[ -n "$$found" ] || $(call die,Python 3.11 or newer is needed and $$first was not found); \
	$(if $(UV),,"$$found" -c 'import ensurepip$(,) venv' 2>/dev/null || \
		$(call die,$$found comes without venv; on Debian and Ubuntu: apt install python3-venv);) \
	rm -rf .venv; \
	$(if $(UV),"$(UV)" venv --quiet --python "$$found" .venv,"$$found" -m venv .venv) && \
	pwd -P > .venv/.at

.PHONY: FORCE
FORCE:

, := ,
