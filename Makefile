# Everything happens in .venv, which is made from scratch by the first target that needs it.
# Each step leaves a stamp in it, so that a second run does only what has changed.

VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python
MODEL ?= examples/demo.mlpackage
HEADERS := $(wildcard include/milblob/*.h include/milblob/*/*.h include/milblob/*/*/*.h)
SANITIZED := build/sanitize
# Each worker takes a stretch of neighbours, and when it is done, of what the slowest has left: fixtures of a module are made
# once, and no worker waits for what the other one compiles.
WORKERS := -n auto --dist worksteal
# Images of containers forbid bytecode: every process of a run would then compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE
CYTHON := $(wildcard src/milblob/*.pyx src/milblob/codec/*.pxi src/milblob/*.pxd) src/milblob/kernels.c src/milblob/text.c

.PHONY: help demo docs pages api test first-tier thorough lint style types stubs neon tvm-oracle aimodel-oracle onnx onnxmltools finetune zoo fuzz sanitize wheel leaks figures bench growth performance build clean
.DEFAULT_GOAL := help

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 18
	@echo "make bench JOB=list runs bench/bench_list.py alone; AGAINST=bench/results/NAME.json says what has changed"
	@echo "make demo MODEL=path shows any model; PYTHON=path chooses the Python (3.11 or newer) that makes .venv"

demo: $(VENV)/.built ## open a small model, list its weights, load them (the first time it compiles: a minute)
	@$(PY) examples/demo.py "$(MODEL)"
	@echo; echo "next: $(BIN)/milblob ls -p \"$(MODEL)\", $(BIN)/milblob --help, or import milblob in $(PY)"

test: lint first-tier ## lint, types and the tests of the first tier, which touch every promise once: what to run before a commit

first-tier: $(VENV)/.built $(VENV)/.tools # with make -j2 they begin beside the last of lint, which leaves a processor idle
	$(PY) -m pytest $(WORKERS)

thorough: lint $(VENV)/.aarch64 $(VENV)/.docs ## all tests, with far more random inputs and with files of many GiB (10 GB of disk): an hour
	MILBLOB_THOROUGH=1 $(PY) -m pytest $(WORKERS)

lint: style types stubs ## ruff, cython-lint, mypy, and the stubs against what they describe; -j2 runs them side by side

style: $(VENV)/.tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src/milblob

types: $(VENV)/.tools # which does not need the extension: with make -j2 that is compiled at the same time
	$(PY) -m mypy

stubs: $(VENV)/.built $(VENV)/.tools
	$(PY) -m mypy.stubtest --ignore-disjoint-bases --ignore-unused-allowlist --mypy-config-file tests/stubtest.ini \
	    --allowlist tests/stubtest.txt milblob._codec milblob.dtypes

neon: $(VENV)/.tools ## the kernels for arm64 in every way: cross compilers, sanitizers, run by qemu
	$(PY) tests/support/aarch64.py $(VENV)/aarch64
	$(PY) -m pytest -n auto tests/codec/test_neon.py tests/codec/neon_more.py

tvm-oracle: $(VENV)/.tvm $(VENV)/.tools ## ask TVM itself about .params files, and record what it says in tests/data/tvm
	$(VENV)/tvm/$(notdir $(BIN))/python tests/data/make_tvm_oracle.py record tests/data/tvm
	MILBLOB_TVM_PYTHON="$(CURDIR)/$(VENV)/tvm/$(notdir $(BIN))/python" $(PY) -m pytest tests/tvm/live.py tests/tvm/test_params.py

COREAI := $(VENV)/coreai/$(notdir $(BIN))/python
aimodel-oracle: $(VENV)/.coreai $(VENV)/.tools ## ask Apple's own library about bundles of Core AI (Linux x86-64, macOS 26), and record it in tests/data/aimodel
	$(COREAI) tests/data/make_aimodel_oracle.py record tests/data/aimodel --old b1=$(VENV)/coreai-b1 b2=$(VENV)/coreai-b2
	MILBLOB_COREAI_PYTHON="$(CURDIR)/$(COREAI)" $(PY) -m pytest tests/aimodel tests/aimodel/live.py

TORCH := $(VENV)/torch/$(notdir $(BIN))/python
finetune: $(if $(filter file,$(origin TORCH)),$(VENV)/.torch) $(VENV)/.built ## what refit --base does to torch networks: docs/fine-tuning.md; TORCH=python that has torch
	PYTHONPATH="$(CURDIR)/src" $(TORCH) tests/refitting/live_finetune.py

onnx: $(if $(filter file,$(origin TORCH)),$(VENV)/.torch) $(VENV)/.built ## coremltools' own tests and whole networks of torch, run as ONNX: docs/onnx.md; TORCH=python that has torch
	PYTHONPATH="$(CURDIR)/src" $(TORCH) tests/onnx/compressed.py
	PYTHONPATH="$(CURDIR)/src" $(TORCH) tests/onnx/conformance.py --why
	PYTHONPATH="$(CURDIR)/src" $(TORCH) tests/onnx/conformance.py --why --torch 300 --seed 17
	PYTHONPATH="$(CURDIR)/src" $(TORCH) tests/onnx/make_networks.py

ZOO :=
zoo: $(VENV)/.zoo $(VENV)/.built ## 170 networks of torchvision, timm and transformers: docs/conformance.md; hours; ZOO="timm/levit_128s ..." names some
	PYTHONPATH="$(CURDIR)/src" $(VENV)/zoo/$(notdir $(BIN))/python tests/zoo/run.py --folder build/zoo $(ZOO)
	PYTHONPATH="$(CURDIR)/src" $(VENV)/zoo/$(notdir $(BIN))/python tests/zoo/run.py --folder build/zoo --again $(ZOO)
	$(VENV)/zoo/$(notdir $(BIN))/python tests/zoo/table.py

onnxmltools: $(VENV)/.onnxmltools113 $(VENV)/.onnxmltools116 $(VENV)/.built ## ML Programs through ONNXMLTools 1.13 and 1.16: docs/onnx.md
	PYTHONPATH="$(CURDIR)/src" $(VENV)/onnxmltools113/$(notdir $(BIN))/python tests/onnxmltools/live.py
	PYTHONPATH="$(CURDIR)/src" $(VENV)/onnxmltools116/$(notdir $(BIN))/python tests/onnxmltools/live.py

SECONDS := 60
fuzz: $(VENV)/.built $(VENV)/.fuzzer ## every fuzz harness for SECONDS=60 each (clang); findings go to build/fuzz/findings
	$(PY) tests/fuzz/run.py --seconds $(SECONDS)

# The runtimes come first, for Python itself is not built with them; and libstdc++, for those who throw. Compilers are not
# run under them: the tests that compile are in the second line, and their programs have sanitizers of their own.
sanitize: $(SANITIZED)/.built $(VENV)/.tools ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer (gcc on Linux)
	MILBLOB_SANITIZED=1 MILBLOB_THOROUGH=cases PYTHONMALLOC=malloc PYTHONPATH="$(CURDIR)/$(SANITIZED)/lib" \
	    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	    LD_PRELOAD="$$(for name in libasan.so libubsan.so libstdc++.so; do $(CC) -print-file-name=$$name; done | tr '\n' ' ')" \
	    $(PY) -m pytest $(WORKERS) --ignore tests/codec/test_c_drivers.py --ignore tests/test_house.py
	MILBLOB_THOROUGH=cases $(PY) -m pytest tests/codec/test_c_drivers.py tests/test_house.py

docs: $(VENV)/.docs ## the site, from docs/ into build/site; a broken link is an error
	$(PY) -m sphinx -q -W --keep-going -n -b html docs build/site
	@echo "open build/site/index.html"

pages: $(VENV)/.tools $(VENV)/.built ## write what a program writes: docs/api.md, docs/cli.md, docs/milblob.1, the examples of README and the tutorials
	PYTHONPATH=tests/support $(PY) tests/support/api_page.py
	PYTHONPATH=tests/support $(PY) tests/support/reference_pages.py
	PYTHONPATH=tests/support $(PY) tests/support/walkthroughs.py

api: $(VENV)/.tools $(VENV)/.built ## print the public names and their members with types, one line each
	@PYTHONPATH=tests/support $(PY) tests/support/api_page.py --list

figures: $(VENV)/.built $(VENV)/.tools ## how large milblob is: lines and classes of each folder, test cases, how far each call travels
	@PYTHONPATH=tests/support $(PY) tests/figures.py

wheel: $(VENV)/.wheel ## build sdist and wheel into dist, check them, and test them in clean environments of every CPython here; PYTHONS=paths of more
	$(VENV)/wheel/$(notdir $(BIN))/python tests/wheel.py dist

leaks: $(VENV)/.built $(VENV)/.tools ## every API again and again: what is in use must not grow (glibc)
	$(PY) tests/leaks.py

bench: $(VENV)/.built $(VENV)/.rivals ## time milblob against the alternatives: one table, in half an hour
	$(PY) bench/run.py $(JOB) --json $(VENV)/bench$(MILBLOB_BENCH_SCALE).json $(if $(AGAINST),--against $(AGAINST))

growth: $(VENV)/.built $(VENV)/.rivals ## how every operation grows, up to 1,000,000 tensors: bench/results/growth.md and docs/growth.svg, in hours
	PYTHONPATH=src:bench $(PY) bench/growth.py --keep

performance: $(VENV)/.built ## write docs/performance.md from bench/results and what make bench measured
	$(PY) bench/report.py $(VENV)/bench.json

build: $(VENV)/.built ## make .venv and compile the extension

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist src/*.egg-info src/milblob/_codec.c src/milblob/_codec.*.so src/milblob/_codec.*.pyd
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

# ------------------------------------------------------------------------------------------------------------- steps

# A candidate must run (a version manager's shim may not), be new enough, and be able to make environments and extensions.
$(VENV)/.python:
	@found=; for python in $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3 python; do \
	    "$$python" -c 'import ensurepip, os, sys, sysconfig as s, venv; \
	        sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' \
	        >/dev/null 2>&1 && found=$$python && break; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "no Python 3.11 or newer with venv, pip and C headers was found (on Debian and Ubuntu they are in" >&2; \
	    echo "python3-venv and python3-dev); make PYTHON=path names one" >&2; \
	    exit 1; \
	fi; \
	echo "making $(VENV) with $$found; packages come from PyPI"; "$$found" -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --no-compile --disable-pip-version-check --upgrade "pip>=25.1" "setuptools>=77" "cython>=3.1"
	@touch $@

# A module of one Python's own ABI, left from before, would be preferred to the one that is built here.
STALE := $(filter-out %.abi3.so,$(wildcard src/milblob/_codec.*.so))

# The package itself, editable, with what README's examples need; the extension comes after or, with make -j2, at the same time. Bytecode
# is made of what is imported, when it is: of all files, many thousands, it would take longer than the downloads.
$(VENV)/.installed: pyproject.toml setup.py | $(VENV)/.python
	MILBLOB_COMPILE=0 $(PY) -m pip install --quiet --no-compile --no-build-isolation --editable ".[all]"
	@touch $@

# Only what has changed is compiled.
$(VENV)/.compiled: pyproject.toml setup.py $(CYTHON) $(HEADERS) | $(VENV)/.python
	@rm -f $(STALE)
	@echo "compiling the extension: about a minute"
	$(PY) setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.built: $(VENV)/.compiled | $(VENV)/.installed
	@touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.installed
	@echo "installing what lint and tests need, coremltools among it: a minute or two"
	$(PY) -m pip install --quiet --no-compile --group test --group lint
	@touch $@

# A cross compiler and an emulator, 56 MB, where they are missing and apt-get can get them; tests/codec/test_neon.py skips without.
$(VENV)/.aarch64: tests/support/aarch64.py | $(VENV)/.python
	@$(PY) tests/support/aarch64.py $(VENV)/aarch64
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.installed
	$(PY) -m pip install --quiet --group docs
	@touch $@

# What builds and checks distributions, in an environment of its own.
$(VENV)/.wheel: pyproject.toml | $(VENV)/.python
	$(PY) -m venv --clear $(VENV)/wheel
	$(VENV)/wheel/$(notdir $(BIN))/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/wheel/$(notdir $(BIN))/python -m pip install --quiet --group wheel
	@touch $@

$(VENV)/.fuzzer: pyproject.toml | $(VENV)/.built
	$(PY) -m pip install --quiet --group fuzz
	@touch $@

# TVM in an environment of its own, 305 MB, which nothing else needs.
$(VENV)/.tvm: pyproject.toml | $(VENV)/.python
	$(PY) -m venv --clear $(VENV)/tvm
	$(VENV)/tvm/$(notdir $(BIN))/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/tvm/$(notdir $(BIN))/python -m pip install --quiet --group tvm
	@touch $@

# Apple's Core AI with torch, in an environment of its own, several GB; and its older releases, each in a folder.
$(VENV)/.coreai: pyproject.toml | $(VENV)/.python
	$(PY) -m venv --clear $(VENV)/coreai
	$(COREAI) -m pip install --quiet --upgrade "pip>=25.1"
	$(COREAI) -m pip install --quiet --group coreai
	$(COREAI) -m pip install --quiet --no-deps --target $(VENV)/coreai-b1 --upgrade coreai-core==1.0.0b1 coreai-torch==0.4.0
	$(COREAI) -m pip install --quiet --no-deps --target $(VENV)/coreai-b2 --upgrade coreai-core==1.0.0b2 coreai-torch==0.4.2
	@touch $@

# torch in an environment of its own, several GB on Linux, which nothing else needs.
$(VENV)/.torch: pyproject.toml | $(VENV)/.python
	$(PY) -m venv --clear $(VENV)/torch
	$(VENV)/torch/$(notdir $(BIN))/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/torch/$(notdir $(BIN))/python -m pip install --quiet --group finetune
	@touch $@

# torch, torchvision, timm and transformers, for the zoo of networks.
$(VENV)/.zoo: pyproject.toml | $(VENV)/.python
	$(PY) -m venv --clear $(VENV)/zoo
	$(VENV)/zoo/$(notdir $(BIN))/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/zoo/$(notdir $(BIN))/python -m pip install --quiet --group zoo
	@touch $@

# Each ONNXMLTools in an environment of its own, with what it works with.
$(VENV)/.onnxmltools%: pyproject.toml | $(VENV)/.python
	$(PY) -m venv --clear $(VENV)/onnxmltools$*
	$(VENV)/onnxmltools$*/$(notdir $(BIN))/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)/onnxmltools$*/$(notdir $(BIN))/python -m pip install --quiet --group onnxmltools$*
	@touch $@

SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
$(SANITIZED)/.built: setup.py $(CYTHON) $(HEADERS) $(wildcard src/milblob/*.py src/milblob/*/*.py) | $(VENV)/.built
	MILBLOB_OPTIMIZE="-O1 -g" CFLAGS="-fno-omit-frame-pointer $(SANITIZERS)" LDFLAGS="$(SANITIZERS)" \
	    $(PY) setup.py --quiet build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	@touch $@

$(VENV)/.rivals: pyproject.toml | $(VENV)/.built
	$(PY) -m pip install --quiet --group bench
	@touch $@
