# Every target sets itself up inside the checkout; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
export PYTHONHASHSEED := 0

.PHONY: help setup demo test test-system oracle fuzz lint bench bench-peers bench-balance bench-idle bench-spread bench-takeover bench-storage soak lock proto wheels clean

help:               ## this list
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)     ## Python environment with locked versions, and Toxiproxy's server, in .venv and .tools

$(STAMP): requirements/lock.txt pyproject.toml packaging/server/pyproject.toml tools/setup.py
	@$(PYTHON) tools/setup.py

demo: setup         ## three regions on this machine, messages round the world, faults, a verdict; leaves nothing behind
	@$(BIN)/heliograph demo

test: setup         ## the whole suite: units, simulations, real processes through Toxiproxy, Spark
	@$(BIN)/python tools/run_tests.py

test-system: setup  ## what needs a real peer or a long build; installs it into ~/.cache/heliograph
	@$(BIN)/python tools/run_tests.py --system

oracle: setup       ## behaviour tests against a real Apache Pulsar, and what both answer side by side
	@$(BIN)/python tools/run_tests.py --oracle

fuzz: setup         ## a broker's listener under any bytes and any commands; CASES=100000
	@$(BIN)/python -m tests.pulsar.fuzz --cases $(or $(CASES),100000)

lint: setup         ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup        ## the publish path against the fdatasync floor
	@$(BIN)/python -m benchmarks.publish_floor

bench-peers: setup  ## the same load on Heliograph and on a real Apache Pulsar, interleaved in one run
	@$(BIN)/python -m benchmarks.peers

bench-balance: setup  ## worlds in which our load balancer and models of Apache Pulsar's are compared, on virtual time
	@PYTHONHASHSEED=0 $(BIN)/python -m benchmarks.balancing

bench-idle: setup   ## what an idle connection costs a broker in memory
	@ulimit -n 20000; $(BIN)/python -m benchmarks.idle_connections

bench-spread: setup ## the same bytes over one topic and over a thousand, here and on a real Apache Pulsar
	@$(BIN)/python -m benchmarks.spread

bench-kafka: setup  ## Kafka's client on Heliograph and on a real Apache Kafka that flushes each batch, interleaved in one run
	@$(BIN)/python -m benchmarks.kafka

bench-takeover: setup  ## how long topics are away when their broker is killed, or hands them over
	@$(BIN)/python -m benchmarks.takeover

bench-storage: setup  ## directories of a bookie, a cold drain, cache strategies, cursors, a million topics, embedded stores
	@for each in directories cold_drain large_entries cache_hits cursor_writes topics metadata_store tiered_read; do \
	  echo "== $$each"; $(BIN)/python -m benchmarks.$$each || exit 1; done

soak: setup         ## thousands of simulated worlds; SEEDS=5000
	@$(BIN)/python -m geo_tests.sim.soak --seeds $(or $(SEEDS),5000)

lock: setup         ## makes requirements/lock.txt anew
	$(BIN)/pip-compile -q --strip-extras --no-emit-index-url --no-emit-find-links --no-annotate --no-header --allow-unsafe \
	  --extra test --extra dev --extra spark -o requirements/lock.txt pyproject.toml requirements/server.in

wheels: setup       ## both wheels into dist/
	@$(BIN)/python tools/wheels.py dist

clean:              ## removes what set-up and builds made; data folders stay
	rm -rf .venv .tools dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
