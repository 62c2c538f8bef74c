# Every target that needs packages sets up .venv by itself, from requirements.lock.

# The version requirements.lock was resolved for: another may lack wheels of some pinned version.
python_version := 3.11
# Candidates for the Python that .venv is made with; make book PYTHON=/path/to/python3.11 names one.
PYTHON ?= python$(python_version) python3 python
# Address of an additional package index, such as the one of PyTorch's CPU builds (see README.md).
TORCH_INDEX ?=
# Port of `make serve`.
PORT ?= 8000
# For make reproduce: suites, configurations and seeds, such as SUITES=paper ONLY=table2-k05-d06
# SEEDS="0 1" (default: all), and a folder of profiles/, such as PROFILE=slurm (default: this machine).
SUITES ?=
ONLY ?=
SEEDS ?=
PROFILE ?=
# Passed on to the program behind reproduce, notebooks, test, bench and lab: make test ARGS="-k select".
ARGS ?=

SHELL := bash
bin := .venv/bin
setup_log := _build/setup.log

# Packages come without bytecode (pip --no-compile); Python must be free to write it on first import,
# or each start of torch costs seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: book
book: .venv/made-from ## Build the book: _build/html/index.html
	$(bin)/python -m meprop book
	@echo "The book is ready: _build/html/index.html"

.PHONY: pdf
pdf: book ## The whole book as one file, for paper: _build/meprop.pdf (needs chromium)
	$(bin)/python book/_ext/pdf.py _build/html _build/meprop.pdf
	@echo "The book is ready: _build/meprop.pdf"

.PHONY: reproduce
reproduce: .venv/made-from ## Train what is missing at the scale of the paper: hours, resumable (SUITES= ONLY= SEEDS= PROFILE=)
	@# A misspelt name would be ignored, and everything trained.
	$(foreach name,SEED seed seeds only profile SUITE suite suites,$(if $(findstring command,$(origin $(name))),$(error \
		make reproduce: no $(name)=; there are SUITES=, ONLY=, SEEDS= and PROFILE=)))
	$(bin)/python -m meprop run $(SUITES) $(if $(ONLY),--only '$(ONLY)') \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(PROFILE),--profile '$(PROFILE)') $(ARGS)

.PHONY: notebooks
notebooks: .venv/made-from ## Execute the pages that are out of date, in place: after new records
	$(bin)/python -m meprop notebooks $(ARGS)

.PHONY: test
test: .venv/made-from ## Check style and types, then run the tests
	$(bin)/ruff check meprop benchmarks measurements book release tests
	$(bin)/ruff format --check meprop benchmarks measurements book release tests
	@# Beside it the kernels are compiled, once for all processes of the tests.
	$(bin)/python -c 'from meprop import kernels; kernels.warm_up()' & \
		$(bin)/mypy meprop benchmarks measurements book/_ext && wait
	$(bin)/python -m pytest -n logical --maxprocesses 4 --dist loadscope \
		--no-loadscope-reorder -m "not timed" $(ARGS)
	@# Alone on the machine: notebooks; pytest ends with 5 where ARGS leaves none.
	$(bin)/python -m pytest -m timed --ignore-glob='*/test_*.py' $(ARGS) || [ $$? = 5 ]

.PHONY: bench
bench: .venv/made-from ## Time the backward passes against PyTorch's
	$(bin)/python -m benchmarks $(ARGS)

.PHONY: fuzz
fuzz: .venv/made-from ## Feed the readers 3,000 damaged files and values; measurements/fuzz.json has the figures
	$(bin)/python tests/fuzz.py $(ARGS)

.PHONY: torture
torture: .venv/made-from ## Kill a small suite 100 times, fill its disk; measurements/torture.json has the figures
	$(bin)/python tests/torture.py $(ARGS)

.PHONY: crate
crate: .venv/made-from ## Pack records, notebooks and configurations for an archive: _build/crate
	$(bin)/python release/crate.py

.PHONY: metadata
metadata: .venv/made-from ## Write codemeta.json, and the repository's address (a key of _config.yml) where it belongs
	$(bin)/python release/metadata.py

.PHONY: lab
lab: .venv/made-from ## Open JupyterLab on the notebooks
	$(bin)/jupyter lab $(if $(wildcard notebooks),--LabApp.default_url=/lab/tree/notebooks) $(ARGS)

.PHONY: serve
serve: .venv/made-from ## Show the book at http://127.0.0.1:8000 (PORT=... for another port)
	@! (exec 3<> /dev/tcp/127.0.0.1/$(PORT)) 2> /dev/null || \
		{ echo 'make serve: port $(PORT) is taken; name another one, such as PORT=8001' >&2; exit 2; }
	@test -f _build/html/index.html || $(MAKE) book
	$(bin)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

# These stay as they are in requirements.lock until edited there by hand: torch and torchvision belong
# together, and a later soupsieve refuses Debian 12's Python, 3.11.2.
held := torch|torchvision|soupsieve

.PHONY: lock
lock: .venv/made-from ## Resolve pyproject.toml's ranges anew and rewrite requirements.lock
	mkdir -p _build
	grep -E '^($(held))==' requirements.lock > _build/held.txt
	$(bin)/python -m pip install --dry-run --ignore-installed --quiet --report _build/lock.json \
		$(extra_index) --constraint _build/held.txt '.[study,dev]'
	$(bin)/python -c "$$write_lock" _build/lock.json > _build/requirements.lock
	mv _build/requirements.lock requirements.lock

.PHONY: clean
clean: ## Remove what was built and cached; .venv stays (rm -rf .venv removes it)
	rm -rf _build .snakemake .hypothesis .mypy_cache .pytest_cache .ruff_cache meprop.egg-info
	find meprop benchmarks measurements tests -name __pycache__ -prune -exec rm -rf {} +

# .venv carries the line that says what it was made from, written last, so that a set-up that was
# interrupted counts as none. It is made anew when that line is no longer right.
made_from := $(CURDIR) $(shell cat requirements.lock pyproject.toml | cksum)
ifneq ($(shell test -x $(bin)/python && cat .venv/made-from 2>/dev/null),$(made_from))
.PHONY: .venv/made-from
endif
extra_index := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.venv/made-from:
	@bash -c "$$set_up"

export set_up
define set_up
set -euo pipefail
fail() { printf 'meprop: %s\n' "$$*" >&2; exit 1; }

python= found=
for candidate in $(PYTHON); do
    version=$$("$$candidate" --version 2>&1) || version="not found"
    [[ $$version == "Python "* ]] || version="not found"
    found+="$${found:+, }$$candidate: $$version"
    if [[ $$version == "Python $(python_version)."* ]]; then python=$$candidate; break; fi
done
[[ $$python ]] || fail "Python $(python_version) is needed ($$found): install it, or name it with PYTHON=/path/to/python$(python_version)."
"$$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$$python has no venv module: install it (Debian, Ubuntu: apt install python$(python_version)-venv)."

mkdir -p _build
: > $(setup_log)
rm -f .venv/made-from # before the rest: half a .venv must not look ready
rm -rf .venv
total=$$(grep -c == requirements.lock)
echo "Setting up .venv with $$version and $$total packages (log: $(setup_log))"
"$$python" -m venv .venv >> $(setup_log) 2>&1 || fail "could not create .venv: see $(setup_log)."

# A terminal sees one line that changes, a log file the milestones.
say() { if [[ -t 1 ]]; then printf '\r\033[K  %.70s' "$$1"; elif [[ $${2-} ]]; then echo "  $$1"; fi; }
pip() { $(bin)/python -m pip install --no-compile --progress-bar off "$$@" 2>&1 | tee -a $(setup_log); }
pip $(extra_index) -r requirements.lock | {
    count=0
    while read -r word rest; do
        case $$word in
        Collecting | Processing)
            count=$$((count + 1)) name=$${rest%% *}
            say "fetching $$count of $$total: $${name##*/}" $$( ((count % 50)) || echo milestone) ;;
        Installing) say "installing" milestone ;;
        esac
    done
} || {
    [[ -t 1 ]] && echo
    if tail -n 20 $(setup_log) | grep -qE 'connection broken|Max retries exceeded|Could not fetch URL|timed out'; then
        fail "pip could not reach its package index: check the network, then run make again (details: $(setup_log))."
    fi
    reason=$$(grep '^ERROR' $(setup_log) | tail -n 1) || reason=$$(tail -n 1 $(setup_log))
    fail "pip could not install requirements.lock ($${reason#ERROR: }; details: $(setup_log))."
}
pip --no-deps --no-build-isolation -e . > /dev/null || fail "could not install meprop itself: see $(setup_log)."
echo "$(made_from)" > .venv/made-from
say "ready after $$SECONDS s" milestone
[[ ! -t 1 ]] || echo
endef

export write_lock
define write_lock
import json, re, sys
print("# Written by make lock from pyproject.toml, for Python $(python_version): edit the ranges there instead.")
pins = {}
for item in json.load(open(sys.argv[1]))["install"]:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    # A CUDA build of torch brings packages that its CPU build does without: pip adds them by itself.
    if name != "meprop" and not re.match("nvidia|cuda|triton", name):
        pins[name] = item["metadata"]["version"].split("+")[0]
print("\n".join(f"{name}=={version}" for name, version in sorted(pins.items())))
endef
