#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of another library against giwa_torch, on a GPU:

    python3 peer_tests.py flash_attn CHECKOUT [--sample N] [--seconds S] [arguments of pytest]   # github.com/Dao-AILab/flash-attention
    python3 peer_tests.py sdpa CHECKOUT [--sample N] [--seconds S] [arguments of pytest]         # github.com/pytorch/pytorch, at the version of torch

CHECKOUT is a copy of that repository, which this script only reads. flash_attn: tests/test_flash_attn.py imports giwa_torch's functions
as those of flash_attn; helpers of the tests, as bert_padding, are the checkout's. It needs pytest and einops. sdpa:
test/test_transformers.py runs twice, with torch.nn.functional.scaled_dot_product_attention and with giwa_torch's in its place, and
counts as failed what passes with the first only. It needs pytest and expecttest.

--sample runs at most so many tests, drawn with a fixed seed; --only d=64,128 dtype=torch.float16 those with these parameters, where a
test has them; --seconds begins none after that time. A test that needs kernels is run again when those of all tests are compiled, in
parallel. Prints passed, failed, and skipped tests, those with the argument that giwa_torch refuses.
"""
import argparse
import collections
import contextlib
import io
import random
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import giwa_torch
from giwa_torch import build


class Outcomes:
    """A plugin of pytest that draws tests, runs them, and keeps their outcomes."""

    def __init__(self, chosen):
        self.sample, self.end = chosen.sample, time.monotonic() + chosen.seconds
        self.only = [x.split("=", 1) for x in chosen.only]
        self.of, self.reasons, self.texts, self.again, self.late = {}, {}, {}, [], 0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_generate_tests(self, metafunc):
        """Narrows parameters before their combinations are made, and draws combinations before tests are made of them."""
        parametrize = metafunc.parametrize

        def narrowed(names, values, *arguments, **keywords):
            for name, wanted in self.only:
                if names == name:
                    values = [x for x in values if str(x) in wanted.split(",")]
            return parametrize(names, values, *arguments, **keywords)

        metafunc.parametrize = narrowed
        yield
        if self.sample and len(metafunc._calls) > self.sample:
            metafunc._calls = random.Random(0).sample(metafunc._calls, self.sample)

    def pytest_collection_modifyitems(self, items):
        if self.sample and len(items) > self.sample:
            items[:] = random.Random(0).sample(items, self.sample)

    def pytest_runtestloop(self, session):
        """Runs tests without the kernels that are missing, compiles those, and runs the tests that needed them again."""
        pending, first = list(session.items), True
        while pending:
            self.again = []
            with build.collecting() as missing:
                for item in pending:
                    if time.monotonic() > self.end:
                        self.late += 1
                        continue
                    if not first:
                        item._initrequest()
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if missing:
                print(f"\ncompiling {len(missing)} libraries for {len(self.again)} tests", file=sys.stderr, flush=True)
                build.compile_all(missing)
            pending, first = self.again, False
        return True

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        error = call.excinfo.value if call.excinfo else None
        refused = isinstance(error, NotImplementedError) and "giwa" in str(error)
        if refused and "to be compiled" in str(error):
            self.again.append(item)
            return
        if refused:
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, str(error))
            self.reasons[item.nodeid] = str(error).splitlines()[0]
        elif report.outcome == "failed":
            self.texts[item.nodeid] = str(error).strip().splitlines()[:1]
        if item not in self.again and (report.when == "call" or report.outcome != "passed"):
            self.of[item.nodeid] = report.outcome


def run(path, arguments, chosen):
    outcomes = Outcomes(chosen)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pytest.main([str(path), "-q", "--tb=line", "-p", "no:cacheprovider", "--no-header", *arguments], plugins=[outcomes])
    if not outcomes.of:
        sys.exit(f"{said.getvalue()}\npeer_tests.py: pytest ran no test of {path}")
    return outcomes


def pretend_to_be_flash_attn(checkout):
    package = types.ModuleType("flash_attn")
    package.__path__ = [str(checkout / "flash_attn")]  # for the modules that the tests take helpers from
    package.__version__ = "giwa"
    for name in giwa_torch.__all__:
        setattr(package, name, getattr(giwa_torch, name))
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    interface.USE_TRITON_ROCM = False
    interface._get_block_size_n = lambda *_: 64  # of the weights that a call with dropout returns, which giwa_torch refuses
    for name in giwa_torch.__all__:
        setattr(interface, name, getattr(giwa_torch, name))
    sys.modules.update({"flash_attn": package, "flash_attn.flash_attn_interface": interface})


def tell(outcomes, failed):
    counts = collections.Counter(outcomes.of.values())
    refused = collections.Counter(outcomes.reasons.values())
    print(f"{counts['passed']} passed, {len(failed)} failed, {counts['skipped']} skipped: {sum(refused.values())} refused by giwa_torch, "
          f"{counts['skipped'] - sum(refused.values())} by the tests"
          + (f"; {outcomes.late} not run in time" if outcomes.late else ""))
    for reason, count in refused.most_common():
        print(f"   {count:6} {reason}")
    for name in failed[:20]:
        print(f"   FAILED {name.split('::', 1)[-1]}: {' '.join(outcomes.texts.get(name, []))[:150]}")
    if len(failed) > 20:
        print(f"   and {len(failed) - 20} more")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=("flash_attn", "sdpa"))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--only", nargs="+", default=(), metavar="PARAMETER=VALUES")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    chosen, arguments = parser.parse_known_args()
    if not torch.cuda.is_available():
        sys.exit("peer_tests.py: there is no GPU that PyTorch sees")
    if chosen.suite == "flash_attn":
        pretend_to_be_flash_attn(chosen.checkout)
        outcomes = run(chosen.checkout / "tests" / "test_flash_attn.py", arguments, chosen)
        return tell(outcomes, [name for name, x in outcomes.of.items() if x == "failed"])
    path = chosen.checkout / "test" / "test_transformers.py"
    without = run(path, arguments, chosen)
    torch.nn.functional.scaled_dot_product_attention = giwa_torch.scaled_dot_product_attention
    outcomes = run(path, arguments, chosen)
    both = [name for name, x in outcomes.of.items() if x == "failed" and without.of.get(name) != "passed"]
    print(f"with PyTorch's function {sum(x == 'passed' for x in without.of.values())} pass; {len(both)} fail with both functions")
    return tell(outcomes, [name for name, x in outcomes.of.items() if x == "failed" and name not in set(both)])


if __name__ == "__main__":
    sys.exit(main())
