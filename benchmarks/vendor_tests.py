"""The vendor's own unit tests of kernels, unmodified, on the emulator.

    python -m benchmarks.vendor_tests CORPUS [--only mask ...]

CORPUS is a folder with the repositories of `SUITES`; without them the program says what
to fetch. Their code is executed, as a user would. `EXPECTED` names the tests that ask
for what the documentation contradicts, and why; the status is 1 where any other test
fails, or one of them does not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks import harness
from benchmarks.validation.corpus import what_to_fetch

LIMIT_SECONDS = 1800


class Suite(NamedTuple):
    """The tests of one repository.

    Attributes:
        address, commit: address and commit of the repository.
        paths: files and folders of its tests.
        imports: the folder from which they import, or "".
        methods_alone: whether functions with names of tests are kernels.
    """

    address: str
    commit: str
    paths: tuple[str, ...]
    imports: str = ""
    methods_alone: bool = False


#: By the folder in the corpus. The other tests of nki-library's `test/unit` are about
#: its servers and reports, those of `test/integration` call the vendor's compiler.
SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "aws-neuron-sdk": Suite(
            "https://github.com/aws-neuron/aws-neuron-sdk",
            "81ce03ae261e12925e53437a0f690478e6366155",
            ("nki/test",),
            methods_alone=True,
        ),
        "nki-library": Suite(
            "https://github.com/aws-neuron/nki-library",
            "d2ad3a579498d1888aa8740af97fd325dd5f2740",
            ("test/unit/test_kernel_helpers.py", "test/unit/test_tiled_range.py"),
            imports="src",
        ),
    }
)
_INDEX_ERROR = (
    "asks for NumPy's IndexError and its text; here the error names the instruction, "
    "the line and the legal indices"
)
#: File and test -> its expectation, which the documentation contradicts.
EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "test_nki_isa_activation test_activation": "asks for FP32's precision of a "
        "result that the kernel casts to bfloat16",
        "test_nki_isa_dma_copy test_indirect_load_oob_err_negative": _INDEX_ERROR,
        "test_nki_isa_dma_copy test_indirect_store_oob_err_negative": _INDEX_ERROR,
        "test_nki_isa_nc_match_replace8 test_nc_match_replace_indices8_mask": "joins "
        "masks by `and`, where `&` is documented and Python takes the second alone",
    }
)


class TestResult(NamedTuple):
    """The result of one test."""

    file: str
    test: str
    failed: bool
    why: str  # the first line of the error

    @property
    def is_expected(self) -> bool:
        """Whether it fails exactly if `EXPECTED` lists it."""
        return self.failed == (self.name in EXPECTED)

    @property
    def name(self) -> str:
        """The name in `EXPECTED`."""
        return f"{self.file} {self.test}"


def results(folder: Path, suite: Suite, only: tuple[str, ...]) -> Iterator[TestResult]:
    """Run the tests of a repository, and yield their results."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "neuronjax.nki", "-m", "pytest", "-q"]
        command += [f"--junitxml={report}", "-c", os.devnull, f"--rootdir={folder}"]
        command += ["--noconftest", "-p", "no:cacheprovider"]
        if suite.methods_alone:
            command += ["-o", "python_functions=no_function"]
        command += ["-k", " or ".join(only)] if only else []
        command += [str(folder / path) for path in suite.paths]
        environment = harness.users_environment()
        own = str(folder / suite.imports) if suite.imports else ""
        path = [own, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        done = subprocess.run(
            command,
            env=environment,
            cwd=scratch,  # the repository has a folder that is called nki
            timeout=LIMIT_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stderr}")
        cases = ElementTree.parse(report).iter("testcase")
        yield from map(_result, cases)


def _result(case: ElementTree.Element) -> TestResult:
    wrong = next((e for e in case if e.tag in ("failure", "error")), None)
    said = wrong.get("message", "").splitlines() if wrong is not None else []
    modules = [p for p in case.get("classname", "").split(".") if p.startswith("test_")]
    file = modules[-1] if modules else case.get("name", "")
    return TestResult(file, case.get("name", ""), wrong is not None, "".join(said[:1]))


def table(found: list[TestResult]) -> Iterator[str]:
    """Yield a line for every file with its counts, then for every failed test."""
    passed = Counter(r.file for r in found if not r.failed)
    failed = Counter(r.file for r in found if r.failed)
    yield f"{'':48}{'passed':>8}{'failed':>8}"
    for file in sorted({r.file for r in found}):
        yield f"{file:48}{passed[file]:8}{failed[file] or '':>8}"
    yield f"{len(found)} tests: {passed.total()} pass, {failed.total()} fail"
    for r in found:
        if r.failed:
            yield f"  {r.name}: {EXPECTED.get(r.name) or f'NOT EXPECTED: {r.why}'}"
        elif not r.is_expected:
            yield f"  {r.name} passes, and is listed as one that does not"


def main(arguments: list[str] | None = None) -> int:
    """Run the tests, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpus", type=Path, help="folder of the repositories")
    parser.add_argument("--only", nargs="*", default=(), help="parts of tests' names")
    options = parser.parse_args(arguments)
    corpus = options.corpus.resolve()
    there = {name: s for name, s in SUITES.items() if (corpus / name).is_dir()}
    if not there:
        print(f"{corpus} has neither {' nor '.join(SUITES)}; fetch them:")
        addresses = {name: (s.address, s.commit) for name, s in SUITES.items()}
        print(what_to_fetch(corpus, addresses))
        return 2
    right = True
    for name, suite in there.items():
        found = list(results(corpus / name, suite, tuple(options.only)))
        print(f"{name} at {suite.commit[:7]}", *table(found), sep="\n", flush=True)
        right &= all(r.is_expected for r in found)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
