# Everything from a fresh clone; needs python3 (3.11 or later), a C++20 compiler and make.
# cmake, ninja and every Python package go into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EDITABLE := build/editable
NATIVE := $(shell find native -print 2>/dev/null)
CXX_FILES := $(shell find native tests/native benchmarks/native examples \
	\( -name '*.h' -o -name '*.hpp' -o -name '*.cpp' \) 2>/dev/null)
# ThreadSanitizer of older compilers fails where the kernel spreads addresses widely; containers
# may forbid this call, hence the trial.
WITHOUT_ASLR := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

CORES := $(shell nproc)
# Seconds for one test.
PYTHON_TIMEOUT = $(if $(VRAMKIT_SOAK),7200,120)
TIMEOUT = $(if $(VRAMKIT_SOAK),3600,$(if $(SANITIZER),240,60))
CTEST = ctest -j $(CORES) --timeout $(TIMEOUT) --output-on-failure --no-tests=error

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help setup test lint test-native test-python test-cluster demo sanitize build/asan build/tsan soak \
	benchmarks format docs wheel clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make demo       set up, then a short guided run (the GPU that is there, else a simulated one)"
	@echo "make test       set up, lint, native tests, Python tests"
	@echo "make test-cluster  the tests with real clusters, which are not part of make test"
	@echo "make sanitize   native tests under address/undefined-behaviour and thread sanitizers"
	@echo "make soak       the long versions of all tests, clusters and sanitizers included; before a release"
	@echo "make format     lay out Python and C++ sources"
	@echo "make benchmarks build the native benchmarks"
	@echo "make docs       documentation as HTML in build/docs"
	@echo "make wheel      a wheel in dist"
	@echo "make clean      remove .venv and all build output"

setup: $(VENV)/package $(VENV)/requirements-test.txt $(VENV)/requirements-lint.txt

$(BIN)/python:
	@echo "==> creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("vramkit needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Set PYTHON=... to choose another.")'
	$(PYTHON) -m venv $(VENV)

# The lists live in pyproject.toml alone. The file written here is what was installed, and the stamp.
define LIST_REQUIREMENTS
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
lists = dict(project["project"]["optional-dependencies"])
lists["run"] = project["project"]["dependencies"]
lists["build"] = [*project["build-system"]["requires"], "cmake>=3.24", "ninja>=1.11"]
print(*lists[sys.argv[1]], sep="\n")
endef
export LIST_REQUIREMENTS

$(VENV)/requirements-%.txt: pyproject.toml | $(BIN)/python
	@echo "==> installing the packages to $*"
	@$(BIN)/python -c "$$LIST_REQUIREMENTS" $* > $@
	$(BIN)/pip install --progress-bar off --quiet -r $@

# The package, editable: Python files are used in place; the compiled half is built again, in the
# same folder, when anything under native changes. mypy reads the copy of the generated stub. The
# stamp is set first: what is edited during the build counts as newer. A failure removes it.
$(VENV)/package: $(VENV)/requirements-build.txt $(VENV)/requirements-run.txt \
		pyproject.toml CMakeLists.txt $(NATIVE)
	@echo "==> building vramkit"
	@touch $@
	$(BIN)/pip install --verbose --no-deps --no-build-isolation --editable .
	@cp -f $(EDITABLE)/_core.pyi src/vramkit/_core.pyi

test: lint test-native test-python

lint: setup
	@echo "==> lint"
	ruff check .
	ruff format --check .
	mypy
	@echo clang-format --dry-run --Werror "($(words $(CXX_FILES)) files)"
	@clang-format --dry-run --Werror $(CXX_FILES)

test-native: setup
	@echo "==> native tests"
	cmake --build $(EDITABLE) --target native_tests
	$(CTEST) --test-dir $(EDITABLE)

# Each process has a simulated GPU of its own: tests do not meet.
test-python: setup
	@echo "==> Python tests"
	pytest -q -n $(CORES) --dist worksteal -o faulthandler_timeout=$(PYTHON_TIMEOUT)

# In one process: each cluster is three nodes and more.
test-cluster: setup $(VENV)/requirements-ray.txt
	@echo "==> clusters"
	pytest -q --cluster tests/cluster

demo: $(VENV)/package
	@echo "==> vramkit demo"
	vramkit demo

sanitize: build/asan build/tsan

build/asan: SANITIZER := address
build/tsan: SANITIZER := thread
build/asan build/tsan: $(VENV)/requirements-build.txt
	@echo "==> native tests under the $(SANITIZER) sanitizer"
	cmake -S . -B $@ -G Ninja -DVRAMKIT_PYTHON=OFF -DVRAMKIT_NATIVE_TESTS=ON \
		-DVRAMKIT_SANITIZE=$(SANITIZER)
	cmake --build $@ --target native_tests
	$(WITHOUT_ASLR) $(CTEST) --test-dir $@

# One switch for both kinds of tests: more examples, longer random orders, every test of threads
# again and again.
soak: export VRAMKIT_SOAK := 1
soak: test-native test-python test-cluster sanitize

benchmarks: $(VENV)/package
	cmake --build $(EDITABLE) --target native_benchmarks

format: $(VENV)/requirements-lint.txt
	ruff check --fix .
	ruff format .
	@echo clang-format -i "($(words $(CXX_FILES)) files)"
	@clang-format -i $(CXX_FILES)

docs: $(VENV)/package $(VENV)/requirements-docs.txt
	sphinx-build -W --keep-going -b html docs build/docs

wheel: $(VENV)/requirements-build.txt
	$(BIN)/pip wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls -l dist

clean:
	rm -rf $(VENV) build dist src/vramkit/_core.pyi .mypy_cache .pytest_cache .ruff_cache .hypothesis
