#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of another library against giwa_torch:

    python3 peer_tests.py flash_attn CHECKOUT [--each N] [--workers N] [--seconds S] [arguments of pytest]   # github.com/Dao-AILab/flash-attention
    python3 peer_tests.py flash_attn_3 CHECKOUT [...]                                                        # the same repository
    python3 peer_tests.py sdpa CHECKOUT [...]                                                                # github.com/pytorch/pytorch
    python3 peer_tests.py flashinfer CHECKOUT [...]                                                          # github.com/flashinfer-ai/flashinfer
    python3 peer_tests.py transformer_engine CHECKOUT [...]                                                  # github.com/NVIDIA/TransformerEngine
    python3 peer_tests.py xformers CHECKOUT [...]                                                            # github.com/facebookresearch/xformers

CHECKOUT is a copy of that repository, which this script only reads. flash_attn: tests/test_flash_attn.py imports giwa_torch's functions
as those of flash_attn; helpers of the tests, as bert_padding, are the checkout's. It needs pytest and einops. flash_attn_3: the same
of hopper/test_flash_attn.py, whose functions are those of the class flash_attn_3 here; a test that also has attention_chunk runs
without it. With several workers add -k "not race_condition", of which each takes 70 GiB. In the environment
FLASH_ATTENTION_DISABLE_BACKWARD=TRUE leaves out gradients. sdpa: each test of test/test_transformers.py runs with
torch.nn.functional.scaled_dot_product_attention, and if it passes, again with giwa_torch's in the place of PyTorch's fused kernels: calls
for which a test allows only PyTorch's unfused attention, its reference, keep that. Without a GPU its tests of the CPU run. It needs pytest
and expecttest. flashinfer: tests of decode, prefill, sliding windows and caps in tests/attention, with the module peer_flashinfer in the
place of FlashInfer's package, which is not needed. transformer_engine and xformers: the problems of their tests of attention with
gradients, against PyTorch in float32, in peer_problems.

Tests of dropout in flash_attn have the probability that giwa rounds theirs to, a multiple of 1/256, because they compare with weights
scaled by it: for 0.17 that is 0.171875.

--each runs at most so many cases of each test function, drawn with a fixed seed; --only d=64,128 dtype=torch.float16 those with these
parameters, where a test has them; --seconds begins none after that time; --workers is the number of processes, which share the GPU. A
test that needs kernels is run again when those of all tests are compiled, in parallel; with --compiled it is not run instead. Prints
passed, failed, and skipped tests, those with the argument that giwa_torch refuses. Tests that pass although giwa_torch does not serve a
call are counted with the reason for which it passed the call on to PyTorch's function. Tests that expect an error or a warning of a kernel
of PyTorch, which giwa need not give, or compare the times of its kernels, are counted separately.
"""
import time

BEGIN = time.time()  # before what takes seconds to import

import argparse
import collections
import contextlib
import io
import multiprocessing
import multiprocessing.connection
import os
import random
import re
import sys
import types
from pathlib import Path

import pytest
import torch

import giwa_torch
from giwa_torch import build, functional

EXPECTED = re.compile(r"(Error|Exception|Warning) not (raised|triggered)|DID NOT (RAISE|WARN)|^\"[^\"]*\" does not match|"
                      r"expected .* faster than")


class Outcomes:
    """A plugin of pytest that draws tests, runs those of one worker, and keeps their outcomes."""

    def __init__(self, chosen, source, worker, pipe, sides):
        self.chosen, self.worker, self.pipe, self.sides, self.side = chosen, worker, pipe, sides, next(iter(sides))
        self.end = chosen.end
        self.only = [x.split("=", 1) for x in chosen.only]
        self.functions = sorted(set(re.findall(r"def (test_\w+)", source)), key=len, reverse=True)
        self.of, self.reasons, self.texts = {}, {}, {}  # by (side, test)
        self.again, self.late, self.cases, self.not_compiled, self.no_memory = [], 0, {}, 0, 0

    def function_of(self, item):
        return next((x for x in self.functions if item.name.startswith(x)), item.name)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_generate_tests(self, metafunc):
        """Narrows parameters before their combinations are made, and draws combinations before tests are made of them."""
        parametrize, each, draw = metafunc.parametrize, self.chosen.each, random.Random(0)
        name = metafunc.function.__name__
        self.cases[name] = 1

        def thin_out(most):
            if each and len(metafunc._calls) > most:
                metafunc._calls = draw.sample(metafunc._calls, most)

        def narrowed(names, values, *arguments, **keywords):
            for of, wanted in self.only:
                if names == of:
                    values = [x for x in values if str(x) in wanted.split(",")]
                    keywords.pop("ids", None)  # of all values
            values = [round(x * 256) / 256 for x in values] if names == "dropout_p" else list(values)
            self.cases[name] *= len(values)
            parametrize(names, values, *arguments, **keywords)
            thin_out(8 * (each or 0))  # the next parameter multiplies them; all of a hundred thousand take a minute

        metafunc.parametrize = narrowed
        yield
        thin_out(each)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        groups = collections.defaultdict(list)
        for item in items:
            groups[self.function_of(item)].append(item)
        drawn = []
        for name, group in groups.items():
            self.cases[name] = max(self.cases.get(name, 0), len(group))
            each = self.chosen.each or len(group)
            drawn += random.Random(0).sample(group, each) if len(group) > each else group
        random.Random(0).shuffle(drawn)
        items[:] = drawn[self.worker::self.chosen.workers]

    def pytest_runtestloop(self, session):
        """Runs tests without the kernels that are missing. When all workers have, those are compiled, and tests that needed them run
        again."""
        pending, first = list(session.items), True
        while True:
            self.again = []
            with build.collecting() as missing:
                for item in pending:
                    if time.time() > self.end:
                        self.late += 1
                        continue
                    for self.side in self.sides:
                        if not first:
                            item._initrequest()
                        first = False
                        with self.sides[self.side](item):
                            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                        if self.of.get((self.side, item.nodeid)) != "passed":
                            break
                        item._initrequest()
            self.pipe.send(("missing", missing))
            if not self.pipe.recv():
                self.not_compiled = len(self.again)
                return True
            pending, first = self.again, False

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        error = call.excinfo.value if call.excinfo else None
        refused = isinstance(error, NotImplementedError) and "giwa" in str(error)
        name = self.side, item.nodeid
        if "to be compiled" in str(error) and "giwa" in str(error):  # also of a test that expects another error
            self.again.append(item)
            return
        if isinstance(error, (ImportError, AttributeError)) and "flash_attn" in str(error):
            refused, error = True, f"giwa_torch: {str(error).split(' (')[0]}"  # a private one
        if "No module named 'flashinfer'" in str(error):
            refused, error = True, "giwa_torch: another process with FlashInfer's package"
        if isinstance(error, torch.cuda.OutOfMemoryError):  # the workers share the GPU
            self.no_memory += 1
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, "no memory")
            return
        if refused:
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, str(error))
            self.reasons[name] = str(error).splitlines()[0]
        elif report.outcome == "failed":
            lines = str(error).strip().splitlines()
            self.texts[name] = " ".join([type(error).__name__ + ":", *lines[:3]])[:220]
            if any(EXPECTED.search(x) for x in lines):
                report.outcome = "expected an error"
        told = report.outcome
        if self.side == "giwa" and told == "passed" and functional.passed_on:
            told, self.reasons[name] = "passed on", ", ".join(sorted(x.splitlines()[0] for x in functional.passed_on))
        if item not in self.again and (report.when == "call" or report.outcome != "passed"):
            self.of[name] = told
            self.pipe.send(("outcome", name, told, self.reasons.get(name), self.texts.get(name)))


def pretend_to_be_flash_attn(checkout):
    package = types.ModuleType("flash_attn")
    package.__path__ = [str(checkout / "flash_attn")]  # for the modules that the tests take helpers from
    package.__version__ = "giwa"
    for name in giwa_torch.__all__:
        setattr(package, name, getattr(giwa_torch, name))
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    interface.USE_TRITON_ROCM = False
    interface._get_block_size_n = None  # of normalize_flash_attn_S, which is replaced
    for name in giwa_torch.__all__:
        setattr(interface, name, getattr(giwa_torch, name))
    sys.modules.update({"flash_attn": package, "flash_attn.flash_attn_interface": interface})


@contextlib.contextmanager
def replaced(module, name, value):
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def sides_of_flash_attn():
    # The weights that a call with dropout returns have another scale in flash_attn; giwa_torch's are normalized.
    return {"giwa": lambda item: replaced(item.module, "normalize_flash_attn_S", lambda weights, *_, **__: weights)}


def refused(**arguments):
    given = [name for name, value in arguments.items() if value]
    if given:
        raise NotImplementedError(f"giwa_torch: {', '.join(given)}")


class flash_attn_3:
    """The functions of FlashAttention-3's flash_attn_interface by giwa_torch's. pack_gqa, num_splits, sm_margin and scheduler_metadata
    are hints to its kernels, and have no counterpart."""

    @staticmethod
    def options(q, causal, window_size, qv=None, descales=(), attention_chunk=0):
        refused(qv=qv is not None, descale=any(x is not None for x in descales), attention_chunk=attention_chunk)
        refused(**{f"inputs of {q.dtype}": q.dtype not in (torch.float16, torch.bfloat16, torch.float32)})
        left, right = (int(x) for x in window_size)
        return {"causal": False, "window": (left, 0 if causal else right)}

    @staticmethod
    def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                        window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                        sm_margin=0, return_attn_probs=False):
        options = flash_attn_3.options(q, causal, window_size, qv, (q_descale, k_descale, v_descale), attention_chunk)
        return giwa_torch.attention(q, k, v, softcap=softcap, scale=softmax_scale, return_lse=return_attn_probs, **options)

    @staticmethod
    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
                               softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                               window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                               sm_margin=0, return_attn_probs=False):
        options = flash_attn_3.options(q, causal, window_size, qv, (q_descale, k_descale, v_descale), attention_chunk)
        return giwa_torch.attention(q, k, v, q_offsets=cu_seqlens_q, k_offsets=cu_seqlens_k, max_q=max_seqlen_q, q_lengths=seqused_q,
                                    k_lengths=seqused_k, softcap=softcap, scale=softmax_scale, return_lse=return_attn_probs, **options)

    @staticmethod
    def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                                cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
                                max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None,
                                softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
                                rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
                                return_softmax_lse=False):
        options = flash_attn_3.options(q, causal, window_size, qv, (q_descale, k_descale, v_descale), attention_chunk)
        refused(**{"rotary_seqlens that are not cache_seqlens": rotary_seqlens is not None and rotary_seqlens is not cache_seqlens})
        if page_table is not None and cache_batch_idx is not None:
            page_table, cache_batch_idx = page_table[cache_batch_idx], None
        if cu_seqlens_q is None:
            return giwa_torch.flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, page_table,
                softmax_scale, causal, options["window"], softcap, rotary_interleaved, return_softmax_lse=return_softmax_lse)
        refused(**{"new keys of packed queries": k is not None, "cache_leftpad of packed queries": cache_leftpad is not None})
        pages = cache_batch_idx[:, None] if cache_batch_idx is not None else page_table
        return giwa_torch.attention_cached(q, k_cache, v_cache, cache_seqlens, pages, q_offsets=cu_seqlens_q, max_q=max_seqlen_q,
                                           softcap=softcap, scale=softmax_scale, return_lse=return_softmax_lse, **options)

    @staticmethod
    def flash_attn_combine(*_, **__):
        refused(flash_attn_combine=True)

    @staticmethod
    def get_scheduler_metadata(*_, **__):
        return None


def pretend_to_be_flash_attn_3(checkout):
    pretend_to_be_flash_attn(checkout)  # for the rotary embedding of its package
    interface = types.ModuleType("flash_attn_interface")
    for name, function in vars(flash_attn_3).items():
        if isinstance(function, staticmethod):
            setattr(interface, name, function.__func__)
    sys.modules["flash_attn_interface"] = interface
    sys.path.insert(0, str(checkout / "hopper"))  # padding and test_util


def sides_of_flash_attn_3():
    # Each test runs with and without attention_chunk; DISABLE_LOCAL, once the tests are made, means without.
    return {"giwa": lambda item: replaced(item.module, "DISABLE_LOCAL", True)}


def sides_of_sdpa():
    theirs = torch.nn.functional.scaled_dot_product_attention
    fused = torch.backends.cuda

    def ours(query, key, value, attn_mask=None, dropout_p=0.0, *arguments, **keywords):
        if not (fused.flash_sdp_enabled() or fused.mem_efficient_sdp_enabled() or fused.cudnn_sdp_enabled()):
            return theirs(query, key, value, attn_mask, dropout_p, *arguments, **keywords)
        if dropout_p > 0:  # the tests know which weights the kernels of PyTorch drop
            raise NotImplementedError("giwa_torch: dropout of the weights that PyTorch drops")
        return giwa_torch.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, *arguments, **keywords)

    @contextlib.contextmanager
    def patched(item):
        functional.passed_on.clear()
        with replaced(torch.nn.functional, "scaled_dot_product_attention", ours), \
             replaced(item.module, "scaled_dot_product_attention", ours):
            yield

    return {"PyTorch": lambda item: contextlib.nullcontext(), "giwa": patched}


def work(chosen, arguments, worker, pipe):
    """One process: pytest over the tests of a worker."""
    torch.set_num_threads(1)
    if chosen.suite == "flash_attn":
        pretend_to_be_flash_attn(chosen.checkout)
        path, sides = chosen.checkout / "tests" / "test_flash_attn.py", sides_of_flash_attn()
    elif chosen.suite == "flash_attn_3":
        pretend_to_be_flash_attn_3(chosen.checkout)
        path, sides = chosen.checkout / "hopper" / "test_flash_attn.py", sides_of_flash_attn_3()
    elif chosen.suite == "flashinfer":
        import peer_flashinfer
        peer_flashinfer.pretend(chosen.checkout)
        path, sides = chosen.checkout / "tests" / "attention", {"giwa": peer_flashinfer.singles_of}
        paths = [path / name for name in peer_flashinfer.FILES]
        arguments = ["--noconftest", "--rootdir", str(chosen.checkout), *arguments]
    elif chosen.suite in ("transformer_engine", "xformers"):
        os.environ["GIWA_PEER_CHECKOUT"] = str(chosen.checkout)
        path, sides = Path(__file__).resolve().parent / "peer_problems.py", {"giwa": lambda item: contextlib.nullcontext()}
    else:
        os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cuda" if torch.cuda.is_available() else "cpu")
        path, sides = chosen.checkout / "test" / "test_transformers.py", sides_of_sdpa()
    paths = paths if chosen.suite == "flashinfer" else [path]
    outcomes = Outcomes(chosen, "".join(x.read_text() for x in paths), worker, pipe, sides)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pytest.main([*map(str, paths), "-q", "--tb=no", "-p", "no:cacheprovider", "--no-header", *arguments], plugins=[outcomes])
    pipe.send(("done", outcomes.late + outcomes.no_memory, outcomes.not_compiled, outcomes.cases, said.getvalue()[-2000:]))


class Found:
    def __init__(self):
        self.of, self.reasons, self.texts, self.cases, self.late, self.not_compiled, self.said = {}, {}, {}, {}, 0, 0, ""

    def add(self, name, outcome, reason, text):
        self.of[name] = outcome
        for of, value in ((self.reasons, reason), (self.texts, text)):
            if value:
                of[name] = value
            else:
                of.pop(name, None)

    def end(self, late, not_compiled, cases, said):
        self.late, self.not_compiled = self.late + late, self.not_compiled + not_compiled
        self.cases.update(cases)
        self.said = said


def run(chosen, arguments):
    """Starts the workers, compiles what they miss, and returns what they found together, 5 seconds after the end at the latest."""
    context = multiprocessing.get_context("spawn")
    found, processes, missing, waiting = Found(), {}, set(), []
    for i in range(chosen.workers):
        here, there = context.Pipe()
        processes[here] = context.Process(target=work, args=(chosen, arguments, i, there))
        processes[here].start()
        there.close()
    open_pipes = list(processes)
    while open_pipes:
        ready = multiprocessing.connection.wait(open_pipes, max(0.0, min(chosen.end + 5 - time.time(), 1e6)))
        if not ready:
            break
        for pipe in ready:
            try:
                kind, *told = pipe.recv()
            except EOFError:
                open_pipes.remove(pipe)
                continue
            if kind == "missing":
                missing |= told[0]
                waiting.append(pipe)
            else:
                found.add(*told) if kind == "outcome" else found.end(*told)
        if waiting and len(waiting) == len(open_pipes):  # all have run what they can
            more = bool(missing) and not chosen.compiled
            if missing:
                print(f"{len(missing)} libraries are {'compiled' if more else 'missing'}:", " ".join(sorted(build.name_of(*x) for x in missing)),
                      file=sys.stderr, flush=True)
            if more:
                build.compile_all(missing)
            for pipe in waiting:
                pipe.send(more)
            missing, waiting = set(), []
    for process in processes.values():
        process.terminate() if open_pipes else process.join()
    if not found.of:
        sys.exit(f"{found.said}\npeer_tests.py: pytest ran no test")
    return found


def tell(found):
    """Prints what was found on the side of giwa."""
    ours = {name: x for (side, name), x in found.of.items() if side == "giwa"}
    counts = collections.Counter(ours.values())
    refused, passed_on = (collections.Counter(found.reasons[key] for key in found.reasons if key[0] == "giwa" and found.of[key] == outcome)
                          for outcome in ("skipped", "passed on"))
    print(f"{counts['passed']} passed, {counts['passed on']} passed with calls that went to PyTorch, {counts['failed']} failed, "
          f"{counts['skipped']} skipped: {sum(refused.values())} refused by giwa_torch, {counts['skipped'] - sum(refused.values())} by the "
          f"tests; {counts['expected an error']} expect an error or a time of a kernel of PyTorch; {found.late} not run in time or memory, "
          f"{found.not_compiled} without compiled kernels")
    names = collections.Counter(re.sub(r"\[.*", "", name.split("::")[-1]) if "[" in name else "" for name, x in ours.items() if x == "passed")
    print("   passed by function: " + ", ".join(f"{name} {count} of {found.cases.get(name, '?')}" for name, count in names.most_common() if name))
    for title, reasons in (("refused", refused), ("to PyTorch", passed_on)):
        for reason, count in reasons.most_common():
            print(f"   {count:6} {title}: {reason}")
    for kind in ("failed", "expected an error"):
        failed = sorted(name for name, x in ours.items() if x == kind)
        for name in failed[:40]:
            print(f"   {kind.upper()} {name.split('::', 1)[-1]}: {found.texts.get(('giwa', name), '')}")
        if len(failed) > 40:
            print(f"   and {len(failed) - 40} more")
    return 1 if counts["failed"] else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=("flash_attn", "flash_attn_3", "sdpa", "flashinfer", "transformer_engine", "xformers"))
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--each", type=int)
    parser.add_argument("--only", nargs="+", default=(), metavar="PARAMETER=VALUES")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--compiled", action="store_true")
    chosen, arguments = parser.parse_known_args()
    chosen.end = BEGIN + chosen.seconds
    if chosen.suite != "sdpa" and not torch.cuda.is_available():
        sys.exit("peer_tests.py: flash_attn's tests are for a GPU, and PyTorch sees none")
    found = run(chosen, arguments)
    if chosen.suite == "sdpa":
        theirs = collections.Counter(x for (side, _), x in found.of.items() if side == "PyTorch")
        begun = sum(x == "passed" and ("giwa", name) not in found.of for (side, name), x in found.of.items() if side == "PyTorch")
        found.late += max(0, begun - found.not_compiled)
        print(f"with PyTorch's own: {theirs['passed']} passed, {theirs['failed'] + theirs['expected an error']} failed, "
              f"{theirs['skipped']} skipped; those that passed, with giwa's:")
    return tell(found)


if __name__ == "__main__":
    sys.exit(main())
