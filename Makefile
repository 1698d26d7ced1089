# The two commands to begin with are `make demo` and `make test`; all they need is make and Python 3.11 or later.
# Every target sets up .venv by itself, once; a change of pyproject.toml sets it up anew.
#
#   PYTHON=python3.12   the interpreter for a new .venv
#   REPO=path           the git repository whose history `make demo` replays
#   BREAK=1             give the checks of `make demo` no place: it has to notice, and fail
#   ARGS="-k prefix"    more arguments for pytest, or for the benchmarks
#   FORKS=              pytest in one process, in `make test` and `make test-slow`
#   XDIST=              the same, in `make coverage` and `make test-all`
#   NO_APT=1            never install a system package

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

export PYTHON NO_APT
# Without compiled files each of many processes would compile the package, and rewrite the tests, anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
REPO ?=
ARGS ?=
# Some tests wait for servers and worker processes: two processes more than there are processors, up to six. Idle processes
# take work from busy ones, for a few tests take long.
PROCESSES := $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); echo $$((n < 5 ? n + 2 : 6)))
# One process collects the tests and is forked. To measure coverage, and for hours, each process collects them itself.
FORKS ?= --forks $(PROCESSES)
XDIST ?= -n $(PROCESSES) --dist worksteal

BIN := .venv/bin
STAMP := .venv/.stamp
INSTALL := sh scripts/venv.sh install
# Branches of the core and of the HTTP API are covered in full by unit tests and the contract of memory.
COVERAGE := --cov=queuehint/core --cov=queuehint/web --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
# Only folders that hold Python files: mypy refuses the others.
TYPED := $(wildcard *.py) $(foreach dir,queuehint tests examples benchmarks,$(if $(wildcard $(dir)/*.py $(dir)/*/*.py),$(dir)))

.PHONY: help
help: ## Show the targets.
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(STAMP)/demo ## Replay a git history as jobs: make demo REPO=path/to/repository
	$(BIN)/python examples/replay_history.py $(if $(REPO),--repo "$(REPO)") $(if $(BREAK),--break checks)

# What starts processes, waits for leases or repeats walks takes twice as long as all the rest: it is `slow`.
.PHONY: test
test: $(STAMP)/test redis pooler ## Run the tests, but those that take long.
	@echo "Each feature on each store, in some four minutes; ARGS=\"-k prefix\" runs those whose name has that word."
	$(BIN)/python -m pytest $(FORKS) -m "not nightly and not slow" $(ARGS)

.PHONY: test-slow
test-slow: $(STAMP)/test redis pooler ## Run the tests that take long, for what they start, wait for or repeat.
	@echo "What make test leaves out, but for the night, in some seven minutes; ARGS as there."
	$(BIN)/python -m pytest $(FORKS) -m "slow and not nightly" $(ARGS)

# Half a minute of `make test` is saved by what only those need who change the core.
.PHONY: coverage
coverage: $(STAMP)/test ## Run what has to cover every branch of the core and of the HTTP API, and see that it does.
	$(BIN)/python -m pytest $(XDIST) -m "not nightly and not heavy" $(COVERAGE) tests/unit tests/contract/test_memory.py

.PHONY: test-environments
test-environments: $(STAMP)/environments redis ## Run an application on uvloop, with gevent, and below gunicorn --preload.
	QUEUEHINT_REQUIRE_REDIS=1 $(BIN)/python -m pytest -q tests/environments $(ARGS)

.PHONY: test-web
test-web: $(STAMP)/web redis ## Look at the pages of the board in Chromium, if there is one: QUEUEHINT_REQUIRE_CHROMIUM=1
	$(BIN)/python -m pytest -q -n 0 tests/web tests/unit/test_web_pages.py $(ARGS)

.PHONY: test-all
test-all: $(STAMP)/test $(STAMP)/release $(STAMP)/environments redis pooler ## Run every test, the long ones too, with many examples; Redis without functions too.
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest $(XDIST) $(COVERAGE) $(ARGS)
	TESTS_FUNCTIONS=never $(BIN)/python -m pytest $(XDIST) -m "redis and not nightly" $(ARGS)

# An environment of its own, with the lowest releases that pyproject.toml allows of what is named there. Then once more
# as one that only installs the kit has it: its rules in pytest 8.
LOWEST := .venv/lowest
.PHONY: test-lowest
test-lowest: $(STAMP)/release redis ## Run unit, contract and CLI tests with the lowest versions allowed.
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --all-extras -r pyproject.toml -e .
	$(LOWEST)/bin/python -m pytest -c /dev/null --noconftest -p no:cacheprovider -W error --strict-markers -q \
		-m "not nightly" tests/contract/test_memory.py
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --all-extras -r pyproject.toml --group run -e .
	$(BIN)/uv pip list --quiet --python $(LOWEST)/bin/python
	$(LOWEST)/bin/python -m pytest -n $(PROCESSES) --dist worksteal -p no:cacheprovider -m "not nightly" $(ARGS) \
		tests/unit tests/contract tests/integration/test_metrics.py $(wildcard tests/integration/test_cli_*.py)

.PHONY: release-check
release-check: $(STAMP)/test $(STAMP)/release ## Build a release, look through it, run it where nothing else is installed.
	QUEUEHINT_REQUIRE_RELEASE=1 $(BIN)/python -m pytest -n 0 -q tests/release $(ARGS)

.PHONY: proof
proof: $(STAMP)/test ## Check the proofs of the order rule by Coq, and compare the code with the program made from them.
	@sh scripts/coq.sh
	$(MAKE) -C proof all check
	QUEUEHINT_REQUIRE_PROOF=1 $(BIN)/python -m pytest -q -n 0 tests/proof -m "not nightly" $(ARGS)

# The schemas are in the wheel. actionlint looks closer at workflows, but no wheel has it: its package fetches a program from
# elsewhere as it is built.
SCHEMA = $(BIN)/check-jsonschema --builtin-schema vendor

.PHONY: lint
lint: $(STAMP)/dev ## Check style, formatting, imports between rooms, spelling, entries of the changelog.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/towncrier build --draft --version next >/dev/null
	$(BIN)/zizmor --offline --quiet .github
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).readthedocs .readthedocs.yaml
	$(SCHEMA).citation-file-format CITATION.cff

.PHONY: type
type: $(STAMP)/dev ## Check types: mypy on all the code, pyright on what users see.
	$(BIN)/mypy $(TYPED)
ifneq ($(wildcard tests/typing/*.py),)
	$(BIN)/basedpyright --pythonpath $(BIN)/python
endif

.PHONY: fmt
fmt: $(STAMP)/dev ## Format, and repair what can be repaired.
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

.PHONY: docs
docs: $(STAMP)/docs ## Build the documentation into docs/_build/html; a warning is an error.
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

.PHONY: pictures
pictures: $(STAMP)/test ## Draw the pictures of the documentation, light and dark, into docs/pictures.
	$(BIN)/python -m scripts.pictures

.PHONY: pictures-web
pictures-web: $(STAMP)/web ## Take the pictures of the board for the documentation, in Chromium.
	$(BIN)/python -m tests.web.pictures

.PHONY: chaos
chaos: $(STAMP)/test redis ## Run jobs on Redis with Sentinel under faults, and judge every event: MINUTES=5 SEED=1
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1) $(if $(REPO),--repo "$(REPO)") $(ARGS)

.PHONY: bench
bench: $(STAMP)/bench redis ## Measure, and compare with other queues.
	@sh scripts/node.sh
	$(BIN)/python -m benchmarks $(ARGS)

# For a quiet machine. What the README and the page about performance quote, by one command; ARGS=--quick tries it.
.PHONY: figures
figures: $(STAMP)/bench redis ## Measure what the documentation quotes, write it into the pages, draw it.
	@sh scripts/node.sh
	$(BIN)/python -m benchmarks redis --items c --peers procrastinate --json benchmarks/figures/ordered.json $(ARGS)
	$(BIN)/python -m benchmarks backlog --peers procrastinate,graphile,reserved --json benchmarks/figures/backlog.json $(ARGS)
	$(BIN)/python -m scripts.pictures

.PHONY: bench-guard
bench-guard: $(STAMP)/test redis ## Count what a job costs; fail if it is more than before.
	$(BIN)/python -m benchmarks.guard $(ARGS)

.PHONY: clean
clean: ## Remove what was built or cached; .venv stays.
	rm -rf .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf build dist docs/_build htmlcov proof/build
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# Redis tests are skipped without a server: this tries to get one and never fails.
.PHONY: redis
redis:
	@sh scripts/server.sh redis-server

# The same for tests that put PgBouncer before their PostgreSQL.
.PHONY: pooler
pooler:
	@sh scripts/server.sh pgbouncer

$(STAMP)/venv:
	@sh scripts/venv.sh create
	@mkdir -p $(@D) && touch $@

$(STAMP)/demo: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli]'
	@touch $@

$(STAMP)/test: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli,testing]' --group test
	@touch $(STAMP)/demo $@

$(STAMP)/dev: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli,testing]' --group dev
	@touch $(STAMP)/demo $(STAMP)/test $@

$(STAMP)/release: pyproject.toml $(STAMP)/venv
	@$(INSTALL) --group release
	@touch $@

$(STAMP)/environments: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli,testing]' --group test --group environments
	@touch $(STAMP)/demo $(STAMP)/test $@

$(STAMP)/web: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli,testing,web]' --group test --group web-tests
	@touch $(STAMP)/demo $(STAMP)/test $@

$(STAMP)/docs: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli,testing]' --group docs
	@touch $(STAMP)/demo $@

$(STAMP)/bench: pyproject.toml $(STAMP)/venv
	@$(INSTALL) -e '.[cli,testing]' --group test --group bench
	@touch $(STAMP)/demo $(STAMP)/test $@
