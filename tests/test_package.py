"""The package as a whole: light to import, documented, its examples run."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest
import torch

import benchmarks
import measurements
import meprop
import meprop.study

MODULES = sorted(
    name
    for package in (meprop, benchmarks, measurements)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not name.endswith("__main__")
)
PUBLIC = [(package, name) for package in (meprop, meprop.study) for name in package.__all__]


@pytest.mark.parametrize("name", ["meprop", *MODULES])
def test_examples(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} does not say what it is for"
    names = {"torch": torch, "nn": torch.nn, **vars(meprop), **vars(meprop.study), **vars(module)}
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for test in finder.find(module, name, globs=names):
        torch.manual_seed(0)
        runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize(("package", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_public_names_are_documented(package, name):
    thing = getattr(package, name)
    text = inspect.getdoc(thing) or ""
    assert text
    if inspect.isfunction(thing):
        assert ">>>" in text, f"{name} has no example"
        signature = inspect.signature(thing)
        annotations = [p.annotation for p in signature.parameters.values()]
        assert inspect.Signature.empty not in [*annotations, signature.return_annotation]


def test_the_core_imports_torch_and_numpy_only():
    code = """
import sys, torch, numpy
before = {name.split(".")[0] for name in sys.modules}
import meprop
added = {name.split(".")[0] for name in sys.modules} - before
assert added == {"meprop"}, added
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
