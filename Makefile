# Two commands for a newcomer: `make demo` and `make test`. Both set up all that they need, and say so.
.DEFAULT_GOAL := help
.PHONY: help demo test lint fast chaos mutants bench clean

export PYTHON
export INPUT ?= data/erddap_access_2024-05.log.gz
export OUTPUT ?= var/demo
export BROKER ?=

help:  ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

demo:  ## The main job on the real access log: INPUT=path, BROKER=nsq://host:port, OUTPUT=folder
	@tools/venv spark
	@JAVA_HOME="$$(tools/find-java)" || exit 1; export JAVA_HOME; \
	exec .venv/bin/python -m workers.api_requests.demo --input "$$INPUT" --output "$$OUTPUT" $${BROKER:+--broker "$$BROKER"}

test:  ## ruff, mypy, import arrows and every test, real servers and Spark included
	@tools/venv spark,dev
	@tools/test

lint:  ## Only ruff, mypy and the import arrows
	@tools/venv spark,dev
	@tools/test lint

fast:  ## Only the fast tests
	@tools/venv spark,dev
	@tools/test fast

bench:  ## Consume and publish rates beside other Python clients, on a real nsqd
	@tools/venv spark,dev,bench
	@.venv/bin/python -m benchmarks

chaos:  ## Counted messages through every fault, many times over, and the longest kills and fuzzing: much longer than the tests
	@tools/venv spark,dev
	@JAVA_HOME="$$(tools/find-java)" || exit 1; export JAVA_HOME; exec .venv/bin/python -m tests.chaos

mutants:  ## Break the code in a seeded sample of places and see whether a test fails: COUNT=12 of each room, SEED=1
	@tools/venv spark,dev,mutants
	@.venv/bin/python -m tests.mutants --count $${COUNT:-12} --seed $${SEED:-1}

clean:  ## Remove what the commands above made
	rm -rf .venv .cache var .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
