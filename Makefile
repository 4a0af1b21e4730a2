# Every target sets itself up inside the checkout; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
export PYTHONHASHSEED := 0
# Where it is set, as in many containers, each process of an instance compiles every module that it imports: 2 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test quick test-system oracle interop fuzz lint house reference bench bench-against bench-secured bench-peers bench-balance bench-connections bench-failovers bench-five bench-proxied bench-topics bench-mesh bench-idle bench-idle-links bench-links bench-spread bench-takeover bench-storage bench-spark chaos soak soak-spark lock proto wheels clean

help:               ## this list
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)     ## Python environment with locked versions, and Toxiproxy's server, in .venv and .tools

$(STAMP): requirements/lock.txt requirements/build.txt pyproject.toml packaging/server/pyproject.toml tools/setup.py
	@$(PYTHON) tools/setup.py

demo: setup         ## three regions on this machine, messages round the world, faults, a verdict; leaves nothing behind
	@$(BIN)/heliograph demo

test: setup         ## the whole suite: units, simulations, real processes through Toxiproxy, Spark
	@$(BIN)/python tools/run_tests.py

quick: setup        ## lint, types, contracts, and the tests nearest to what the working tree changed, in 90 s; SINCE=HEAD; OF=PATH only lists a module's tests
	@$(BIN)/python tools/quick.py --since $(or $(SINCE),HEAD) $(if $(OF),--of $(OF))

test-system: setup  ## what needs a real peer or a long build, installed into ~/.cache/heliograph, and the longest of real processes
	@$(BIN)/python tools/run_tests.py --system

oracle: setup       ## behaviour tests against a real Apache Pulsar, and what both answer side by side
	@$(BIN)/python tools/run_tests.py --oracle

interop: setup      ## replication with a real Apache Pulsar cluster, both ways
	@$(BIN)/python -m pytest -m system tests/system/test_interop.py

fuzz: setup         ## a broker's listeners, Pulsar's and Kafka's, under any bytes and any commands; CASES=100000, OVER=sockets for a process of its own, FACE=kafka, ARGS=--help
	@failed=0; for face in $(or $(FACE),pulsar kafka); do \
	  $(BIN)/python -m tests.region_node.faces.$$face.fuzz --over $(or $(OVER),memory) --cases $(or $(CASES),100000) $(ARGS) || failed=1; \
	done; exit $$failed

lint: setup         ## layout, ruff, mypy --strict, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config contracts.toml

house: setup        ## figures of the product's code, a line each; ALL=1 names what each counts
	@$(BIN)/python tools/house.py $(if $(ALL),--all)

reference: setup    ## docs/reference/settings.md, its JSON Schema, and the chart's, from the classes of settings
	@$(BIN)/python -m tools.settings_reference

bench: setup        ## the publish path against the fdatasync floor
	@$(BIN)/python -m benchmarks.publish_floor

bench-peers: setup  ## the same load on Heliograph and on a real Apache Pulsar, interleaved in one run
	@$(BIN)/python -m benchmarks.peers --check

bench-against: setup  ## publishing, reading, and a link on this checkout and on an older one, interleaved; AGAINST=COMMIT, or a checkout's folder
	@$(BIN)/python -m benchmarks.against $(AGAINST) $(ARGS)

bench-secured: setup  ## the same load with TLS, tokens, and authorisation, and without, interleaved
	@$(BIN)/python -m benchmarks.secured $(ARGS)

bench-balance: setup  ## worlds in which our load balancer and models of Apache Pulsar's are compared, on virtual time; fails where ours is worse
	@PYTHONHASHSEED=0 $(BIN)/python -m benchmarks.balancing --check

bench-idle: setup   ## what an idle connection costs a broker in memory
	@ulimit -n 20000; $(BIN)/python -m benchmarks.idle_connections

bench-spread: setup ## the same bytes over one topic and over a thousand, here and on a real Apache Pulsar
	@$(BIN)/python -m benchmarks.spread

bench-kafka: setup  ## Kafka's client on Heliograph and on a real Apache Kafka that flushes each batch, interleaved in one run
	@$(BIN)/python -m benchmarks.kafka

bench-connections: setup  ## thousands of connections: what each costs, a broker's death, consumers that read nothing; PART=memory|storm|slow
	@$(BIN)/python -m benchmarks.connections --part $(or $(PART),all)

bench-failovers: setup ## every namespace of a region moved by one command, there and back: seconds, and the processor's; ARGS="--namespaces 200"
	@$(BIN)/python -m benchmarks.failovers $(ARGS)

bench-five: setup   ## five brokers, 2,000 topics in one bundle, some of them hot: split and moved without an operator
	@$(BIN)/python -m benchmarks.five_brokers

bench-proxied: setup  ## bytes on the network for each byte published and read, directly and through a proxying layer
	@$(BIN)/python -m benchmarks.proxied

bench-topics: setup ## very many topics in a region: made, listed, looked up, loaded, published to; CURVE=1000,10000,100000,1000000
	@$(BIN)/python -m benchmarks.topics --curve $(if $(CURVE),$(CURVE),1000,10000,100000)

bench-mesh: setup   ## full meshes of 3, 5, and 10 regions in simulation: links, connections, memory; REGIONS=3,5,10
	@PYTHONHASHSEED=0 $(BIN)/python -m benchmarks.mesh --regions $(if $(REGIONS),$(REGIONS),3,5,10)

bench-takeover: setup  ## how long topics are away when their broker is killed, or hands them over
	@$(BIN)/python -m benchmarks.takeover

bench-storage: setup  ## latency by rate, directories of a bookie, a hundred thousand ledgers on one, a cold drain, cache strategies, cursors, a million topics, 30,000 partitions in three copies, embedded stores
	@for each in curve directories many_ledgers cold_drain large_entries cache_hits cursor_writes topics partitions metadata_store tiered_read; do \
	  echo "== $$each"; $(BIN)/python -m benchmarks.$$each || exit 1; done

bench-spark: setup  ## topics read by Spark against its own JSON reader, triggers, many topics; CASES="batch12 source"
	@$(BIN)/python -m benchmarks.spark $(CASES)

soak-spark: setup   ## a Spark job of five sinks under kill -9 of every process, one after another; KILLS=42 SEED=1 MINUTES=60 SINKS=files,topic,tables,delta,wide (and tiers, iceberg, servers, hive, embedded, profiles, replay, portable, folders); REGIONS=24: whole regions instead
	@$(BIN)/python -m geo_tests.wan.spark_kills --kills $(or $(KILLS),42) --seed $(or $(SEED),1) --minutes $(or $(MINUTES),60) $(if $(SINKS),--sinks $(SINKS)) $(if $(KINDS),--kinds $(KINDS)) $(if $(REGIONS),--regions $(REGIONS))

soak: setup         ## thousands of simulated worlds, and of histories of storage, with a summary; SEEDS=15000 PASSIVE_SEEDS=5000 SEEDS_STORAGE=3000
	@$(BIN)/python -m tests.storage.soak --seeds $(or $(SEEDS_STORAGE),3000)
	@$(BIN)/python -m geo_tests.sim.soak --seeds $(or $(SEEDS),15000)
	@$(BIN)/python -m geo_tests.sim.soak --passive --seeds $(or $(PASSIVE_SEEDS),5000)
	@PYTHONHASHSEED=0 $(BIN)/python -m benchmarks.balancing --check

chaos: setup        ## five real regions, everything between and in them broken in turn under load, history checked; MINUTES=5 SEED=1 KINDS=cut,wipe-bookie REPORT=PATH PATIENCE_S=120
	@$(BIN)/python -m geo_tests.wan.chaos --minutes $(or $(MINUTES),5) --seed $(or $(SEED),1) $(if $(KINDS),--kinds $(KINDS)) $(if $(REPORT),--report $(REPORT)) $(if $(PATIENCE_S),--patience-s $(PATIENCE_S))

bench-links: setup  ## a backlog drained over a link with and without a long way, and what that costs local publishing; MEGABYTES=1024 RTT_MS=100
	@$(BIN)/python -m benchmarks.links --megabytes $(or $(MEGABYTES),1024) --rtt-ms $(or $(RTT_MS),100)

bench-idle-links: setup  ## what many idle replicated topics cost real regions; TOPICS=10000 REGIONS=us,eu,ap
	@$(BIN)/python -m benchmarks.idle_links --topics $(or $(TOPICS),10000) --regions $(if $(REGIONS),$(REGIONS),us,eu,ap)

lock: setup         ## makes the locked versions in requirements/ anew, with sums; UPGRADE="--upgrade-package NAME"
	@$(BIN)/python tools/lock.py $(UPGRADE)

wheels: setup       ## both wheels into dist/, and a CycloneDX bill of materials beside them
	@$(BIN)/python tools/wheels.py dist

clean:              ## removes what set-up and builds made; data folders stay
	rm -rf .venv .tools dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
