# SPDX-License-Identifier: MIT
"""The cells that measure.py measures: of each section pairs (case, run); run(bench, section, case) measures all sides of the cell."""
import ctypes
from functools import partial

import attention_backward
import attention_cached
import torch
from attention import CAP, HEADS, SHAPES, VARIANT_SIZES, VARIANTS, WINDOW, Flex, Gpu, case_of, numbers, pointer
from torch.nn.functional import scaled_dot_product_attention

from sides import CudnnGraph, empty, flashinfer_decode, flashinfer_latent, lazily, nans


def usual(element):
    return [(element, b, n, n, heads, heads, size, causal) for size, heads in HEADS.items() for causal in (False, True) for b, n in SHAPES]


# {section: (element, batch, queries, keys, heads, kv heads, head size, causal)}; chunk: the last queries of a causal mask
DENSE = {"forward": usual("fp16"), "forward_bf16": usual("bf16"),
         "gqa": [("fp16", b, n, n, 32, 8, 128, True) for b, n in ((4, 4096), (1, 16384))],
         "chunk": [("fp16", b, n, 16384, 32, 8, 128, True) for b, n in ((1, 512), (1, 2048), (4, 512))],
         "head_sizes": [("fp16", 4, 4096, 4096, heads, heads, size, causal)
                        for size, heads in ((40, 16), (80, 16), (96, 16), (160, 16), (192, 16), (512, 4)) for causal in (True, False)]}
# (batch, length, heads, head size, causal)
E4M3 = [(b, n, 2048 // size, size, causal) for size in (128, 64, 96, 256) for causal in (False, True) for b, n in SHAPES if n >= 2048]
# (element, kind, head size, batch, heads, kv heads, length), as in attention_backward.py
BACKWARD = {"backward": attention_backward.USUAL,
            "backward_bf16": tuple(("bf16", *x[1:]) for x in attention_backward.USUAL),
            "backward_more": tuple(x for x in attention_backward.OTHERS if x[0] == "fp16"),
            "backward_flex": attention_backward.FLEX}
WINDOWS = ((1, 16, 16384, 1024),)  # batch, heads, length, keys of the window
PACKED = ((8192, 512, 3000, 1500, 2500, 700, 1024, 600), attention_backward.PACKED)
# Sequences, heads, kv heads, keys, head size
DECODE = ((1, 32, 8, 8192, 128), (1, 32, 8, 32768, 128), (32, 32, 8, 8192, 128), (128, 32, 8, 1024, 128), (32, 32, 8, 8192, 64),
          (1, 8, 1, 32768, 128), (32, 16, 1, 8192, 128), (128, 16, 1, 8192, 128))
DECODE_E4M3 = ((1, 32, 8, 32768, 128), (32, 32, 8, 8192, 128), (128, 32, 8, 8192, 128), (32, 32, 8, 8192, 64), (32, 16, 1, 8192, 128))
PAGES = {"fp16": (64, 16), "e4m3": (64,)}
# Sequences, heads, queries, keys, and numbers of each query's list, or 0: all keys, in pages of 64
LATENT = ((128, 16, 1, 8192, 0), (128, 128, 1, 8192, 0), (64, 128, 2, 8192, 2048), (128, 16, 1, 8192, 2048), (1, 128, 4096, 8192, 2048),
          (128, 64, 1, 8192, 0), (128, 8, 1, 8192, 0), (1, 16, 1, 32768, 0), (1, 128, 1, 32768, 0), (128, 16, 1, 1024, 0),
          (32, 128, 1, 4096, 0))
SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 64)


def part_of(element, size):
    """Which library of bench/report.py has this forward pass."""
    return element if size in HEADS else "fp16_forms" if size == 512 else "fp16_sizes"


def result_of(gpu, name):
    def call(_):
        gpu.calls[name]()
        return gpu.results[name]
    return call


def giwa_side(entry, o, *arguments):
    """A call of a C function with these numbers and tensors and the stream; its result is o."""
    def call(_):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if code := entry(*(pointer(x) if torch.is_tensor(x) else x for x in arguments), stream):
            raise RuntimeError(f"giwa answers {code}")
        return o
    return call


# ---- the forward pass

def dense(sizes, bench, section, case):
    element, batch, queries, keys, heads, kv_heads, size, causal = sizes
    shifted = causal and queries != keys  # PyTorch's masks begin at the first key, all others end at the last
    backends = ["efficient"] if size > 256 else [] if shifted else ["cudnn", *(["flash"] if section == "head_sizes" else [])]
    gpu = Gpu(bench.libraries(part_of(element, size)), backends, *sizes, True)
    work = gpu.flops
    if shifted:
        work = 4 * batch * heads * size * sum(keys - queries + i + 1 for i in range(queries))
    calls = {name: result_of(gpu, name) for name in gpu.calls}
    if shifted and bench.peers.frontend:
        calls["cudnn"] = CudnnGraph(gpu.q, gpu.k, gpu.v, causal=causal)
    calls.update(bench.peers.forward(gpu.q, gpu.k, gpu.v, causal=causal))
    aside = ()
    if section == "chunk" and bench.peers.fa3:
        calls["fa3_splits"] = lambda s: bench.peers.fa3_forward(gpu.q, gpu.k, gpu.v, causal=causal, splits=0)[0]
    bench.measure(section, case, work, "TFLOP/s", gpu.renew, calls, tolerance=4 * torch.finfo(gpu.q.dtype).eps, aside=aside)


def e4m3(sizes, bench, section, case):
    """q, k and v in e4m3 with unit scales, and giwa in fp16 on the same numbers. cuDNN's o is e4m3, that of the others fp16 and bf16."""
    batch, length, heads, size, causal = sizes
    wide = [empty(batch, length, heads, size) for _ in range(3)]
    small = [torch.empty_like(x, dtype=torch.float8_e4m3fn) for x in wide]

    def renew():
        for x, y in zip(wide, small):
            y.copy_(x.normal_())
            x.copy_(y)

    def ours(library, tensors):
        o, given = nans(*wide[0].shape), numbers(batch, length, length, heads, heads, size)
        library.giwa_workspace_bytes.restype = ctypes.c_longlong
        space = torch.zeros(library.giwa_workspace_bytes(*given), device="cuda", dtype=torch.uint8)
        return giwa_side(library.giwa_attention, o, int(causal), *tensors, o, *given, space)
    calls = {name: ours(library, small) for name, library in bench.libraries("e4m3").items()}
    aside = [f"{name}_fp16" for name in calls]
    calls.update({f"{name}_fp16": ours(library, wide) for name, library in bench.libraries(part_of("fp16", size)).items()})
    if size == 128:
        if bench.peers.fa3_e4m3:
            calls["fa3"] = lambda s: bench.peers.forward_e4m3(*small, causal=causal)
        if bench.peers.frontend:
            calls["cudnn"] = CudnnGraph(*small, causal=causal)
    reference = lambda: scaled_dot_product_attention(*(x.transpose(1, 2) for x in wide), is_causal=causal).transpose(1, 2)
    work = 4 * batch * heads * size * length * length * (0.5 if causal else 1)
    seconds = bench.alternate(section, case, renew, calls, 0.1, aside=aside, reference=reference)
    bench.report(section, case, work, "TFLOP/s", seconds, aside)


class Window(Gpu):
    """A causal window of so many keys."""

    def entry(self, library, *call):
        return library.giwa_attention_variant(VARIANTS.index("window"), ctypes.c_float(0), None, self.window, *call)


def window(sizes, bench, section, case):
    batch, heads, length, keys = sizes
    gpu = Window(bench.libraries("fp16"), [], "fp16", batch, length, length, heads, heads, 128, True, True)
    gpu.window = keys
    calls = {name: result_of(gpu, name) for name in gpu.calls}
    if bench.peers.frontend:
        calls["cudnn"] = CudnnGraph(gpu.q, gpu.k, gpu.v, window=keys)
    calls["flash"] = lambda s: torch.ops.aten._flash_attention_forward(gpu.q, gpu.k, gpu.v, None, None, length, length, 0.0, True, False,
                                                                       window_size_left=keys - 1, window_size_right=0)[0]
    calls.update(bench.peers.forward(gpu.q, gpu.k, gpu.v, window=keys))
    work = 4 * batch * heads * 128 * sum(min(i + 1, keys) for i in range(length))
    bench.measure(section, case, work, "TFLOP/s", gpu.renew, calls, tolerance=4 * torch.finfo(gpu.q.dtype).eps)


def packed(lengths, bench, section, case):
    rows, heads, longest = sum(lengths), 16, max(lengths)
    q, k, v = (empty(rows, heads, 128) for _ in range(3))
    offsets = torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], device="cuda", dtype=torch.int32)
    calls = {}
    for name, library in bench.libraries("fp16_forms").items():
        o, sizes = nans(*q.shape), numbers(len(lengths), rows, heads, heads)
        library.giwa_packed_workspace_bytes.restype = ctypes.c_longlong
        space = torch.zeros(library.giwa_packed_workspace_bytes(*sizes), device="cuda", dtype=torch.uint8)
        calls[name] = giwa_side(library.giwa_attention_packed, o, q, k, v, o, offsets, *sizes, *numbers(longest), space)
    if bench.peers.frontend:
        calls["cudnn"] = CudnnGraph(q, k, v, causal=True, lengths=list(lengths))
    calls["flash"] = lambda s: torch.ops.aten._flash_attention_forward(q, k, v, offsets, offsets, longest, longest, 0.0, True, False)[0]
    calls.update(bench.peers.forward(q, k, v, causal=True, offsets=offsets, longest=longest))
    renew = lambda: [x.normal_() for x in (q, k, v)]
    work = 4 * heads * 128 * sum(n * n / 2 for n in lengths)
    bench.measure(section, case, work, "TFLOP/s", renew, calls, tolerance=4 * torch.finfo(q.dtype).eps)


def value_size(causal, bench, section, case):
    """Head size 192 of q and k, 128 of v and o."""
    batch, length, heads = 4, 4096, 16
    q, k, v = (empty(batch, length, heads, size) for size in (192, 192, 128))
    calls = {}
    for name, library in bench.libraries("fp16_forms").items():
        o, sizes = nans(*v.shape), numbers(batch, length, length, heads, heads)
        library.giwa_workspace_bytes.restype = ctypes.c_longlong
        space = torch.zeros(library.giwa_workspace_bytes(*sizes, *numbers(192)), device="cuda", dtype=torch.uint8)
        calls[name] = giwa_side(library.giwa_attention_192_128, o, int(causal), q, k, v, o, *sizes, space)
    if bench.peers.frontend:
        calls["cudnn"] = CudnnGraph(q, k, v, causal=causal)
    calls.update(bench.peers.forward(q, k, v, causal=causal))
    renew = lambda: [x.normal_() for x in (q, k, v)]
    work = 2 * batch * heads * (192 + 128) * length * length * (0.5 if causal else 1)
    bench.measure(section, case, work, "TFLOP/s", renew, calls, tolerance=4 * torch.finfo(q.dtype).eps)


def flex(variant, bench, section, case):
    """Score modifiers and masks that giwa, FlexAttention and FlashAttention-4 compile in, as far as the others have them."""
    gpu = Flex(bench.libraries("fp16"), "fp16", variant, True)
    calls = {name: result_of(gpu, name) for name in gpu.calls}
    mask = {"plain": {}, "causal": {"causal": True}, "window": {"window": WINDOW}, "softcap": {"softcap": CAP}}.get(variant)
    if mask is not None:
        calls.update(bench.peers.forward(gpu.q, gpu.k, gpu.v, **mask))
        if bench.peers.frontend and "softcap" not in mask:
            calls["cudnn"] = CudnnGraph(gpu.q, gpu.k, gpu.v, **mask)
    bench.measure(section, case, gpu.flops, "TFLOP/s", gpu.renew, calls, tolerance=4 * torch.finfo(gpu.q.dtype).eps)


# ---- gradients

def backward(sizes, bench, section, case):
    c = attention_backward.Case(*sizes, flex=section == "backward_flex")
    found = {}
    for part in ("backward", "backward_more", "backward_bf16"):
        for name, library in bench.libraries(part).items():
            for entry in (library.giwa_forward, library.giwa_backward, library.giwa_backward_workspace, library.giwa_forward_workspace):
                entry.restype, entry.argtypes = ctypes.c_longlong, [ctypes.POINTER(attention_backward.Call)]
            found.setdefault(name, []).append(library)
    ours = {f"{name}{mode}": libraries for mode in ("", f", {attention_backward.ANY_ORDER}", f", {attention_backward.HEADS_SPLIT}")
            for name, libraries in found.items()}
    c.make({x: ours[x] for x in bench.chosen(ours)}, bench.chosen(["flex"] if c.is_flex else ["cudnn", "flash"]))
    theirs = ["fa3", "fa4"] + ["fa3_fixed", "fa4_fixed"] * bench.arguments.fixed
    made = {x: bench.peers.backward(x, c) for x in bench.chosen(theirs)}
    c.sides.update({x: side for x, side in made.items() if side})
    try:
        if bench.arguments.rounds:
            seconds, errors, _ = c.measure(bench.arguments.rounds, 10)
            bench.report(section, case, c.flops, "TFLOP/s", seconds, aside=[x for x in theirs if x.endswith("_fixed")])
            bench.note("relative errors:", *(f"{x} {error:.1e}" for x, error in errors.items()))
        else:
            for name, side in c.sides.items():
                bench.attempt(section, case, name, lambda side=side: (side.forward(), side.backward()))
    finally:
        c.sides = {}


# ---- decoding

def decode(element, sizes, bench, section, case):
    """Each kind of cache, contiguous and in pages, is a cell."""
    batch, heads, kv_heads, keys, size = sizes
    libraries, p, pages = bench.libraries("cached" if element == "fp16" else "cached_e4m3"), bench.peers, PAGES[element]
    cudnn = ["cudnn", *(f"cudnn_page_{x}" for x in pages if p.frontend)] if element == "fp16" else []
    point = attention_cached.Point(None, cudnn, *sizes, element=element)
    for name, library in libraries.items():
        library.giwa_cached_workspace_bytes.restype = ctypes.c_longlong
        for page in (0, *pages):
            point.add(f"{name}_page_{page}" if page else name, library, page)

    def returning(name):
        def call(s):
            point.calls[name](s)
            return point.results[name]
        return call
    calls = {name: returning(name) for name in sorted(point.calls, key=lambda x: x in cudnn)}
    view = lambda s, page: [x.view(-1, page, kv_heads, size) for x in point.caches[s]]
    aside = ()
    if element == "e4m3" and p.fa3_e4m3 and size == 128:  # which takes q in e4m3 only
        def convert():
            small = point.q.to(torch.float8_e4m3fn)
            return lambda s: p.forward_e4m3(small, *point.caches[s], splits=0)
        calls["fa3_e4m3"], aside = lazily(convert), ("fa3_e4m3",)
    if element == "fp16" and p.fa3:
        for page in (0, *pages):
            suffix = f"_page_{page}" if page else ""
            more = {"seqused_k": point.lengths, **({"page_table": point.table(page)} if page else {})}
            caches = lambda s, page=page: view(s, page) if page else point.caches[s]

            def planned(page=page, more=more, caches=caches):
                plan = p.fa3.get_scheduler_metadata(batch, 1, keys, heads, kv_heads, size, size, torch.float16, point.lengths,
                                                    **({"page_size": page} if page else {}))
                return lambda s: p.fa3_forward(point.q, *caches(s), splits=0, scheduler_metadata=plan, **more)[0]
            calls["fa3_lengths" + suffix] = lambda s, more=more, caches=caches: p.fa3_forward(point.q, *caches(s), splits=0, **more)[0]
            calls["fa3_planned" + suffix] = lazily(planned)
        for n in (0, *(SPLITS if bench.arguments.splits else ())):
            calls[f"fa3_{n}_splits" if n else "fa3"] = lambda s, n=n: p.fa3_forward(point.q, *point.caches[s], splits=n)[0]
    for page in pages if p.flashinfer else ():
        for kind in ("", "tc", "xqa"):
            def made(kind=kind, page=page):
                run = flashinfer_decode(p.flashinfer, kind, point.q, point.table(page), page, keys, kv_heads, point.caches[0][0].dtype)
                return lambda s: run(*view(s, page))
            name = f"flashinfer{'_' * bool(kind)}{kind}_page_{page}"
            calls[name] = lazily(made)
            if element == "e4m3" and kind == "xqa":  # multiplies in e4m3: 4 % from the reference
                aside += (name,)
    reference = None
    if element == "e4m3":  # the same numbers in fp16; cuDNN and FlashAttention-2 take no e4m3 with q in fp16
        k, v = (x.half().transpose(1, 2) for x in point.caches[0])
        reference = lambda: scaled_dot_product_attention(point.q.transpose(1, 2), k, v, enable_gqa=heads != kv_heads).transpose(1, 2)
    count = point.sets * -(-max(1, min(20, (8 << 30) // point.bytes)) // point.sets)
    seconds = bench.alternate(section, case, point.q.normal_, calls, 8 * 2 ** -10, calls=count, sets=point.sets, warm=True, aside=aside,
                              reference=reference)
    for page in (0, *pages):
        suffix = f"_page_{page}" if page else ""
        some = {x.removesuffix(suffix): t for x, t in seconds.items() if (x.endswith(suffix) if page else "_page_" not in x)}
        bench.report(section, case + (f"/page_{page}" if page else ""), point.bytes, "GB/s", some, [x.removesuffix(suffix) for x in aside])


# ---- latent rows

def rows_of_656(rows):
    """Random rows of bytes, and the numbers of bf16 that they stand for: the first 512 in e4m3 with a scale for each 128."""
    groups = empty(rows, 4, 128, dtype=torch.float32).normal_()
    scales = groups.abs().amax(-1, keepdim=True) / 448
    codes, rest = (groups / scales).to(torch.float8_e4m3fn), empty(rows, 64, dtype=torch.bfloat16).normal_()
    numbers = torch.cat([(codes.float() * scales).bfloat16().flatten(1), rest], 1)
    return torch.cat([x.contiguous().view(torch.uint8).flatten(1) for x in (codes, scales.squeeze(-1), rest)], 1), numbers


def latent(element, sizes, bench, section, case):
    """Each query of the lists is a sequence of the peers, whose pages are keys."""
    (sequences, heads, queries, keys, listed), p, scale = sizes, bench.peers, 0.07
    page, seen, tokens, small = (1 if listed else 64), listed or keys, sequences * queries, element == "rows_656"
    stored = sequences * keys * (656 if small else 1152)
    read = stored if not listed else tokens * listed * (656 if small else 1152)
    sets = max(1, -(-(400 << 20) // max(stored, read)))  # lists may find their keys in the L2 cache
    made = [rows_of_656(sequences * keys) for _ in range(sets)]
    caches, numbers_of = [x[0 if small else 1] for x in made], [x[1] for x in made]
    del made
    q, o = empty(sequences, queries, heads, 576, dtype=torch.bfloat16), nans(sequences, queries, heads, 512, dtype=torch.bfloat16)
    if listed:
        table = torch.randint(keys, (tokens, listed), device="cuda", dtype=torch.int32)
        table += torch.arange(sequences, device="cuda", dtype=torch.int32).repeat_interleave(queries)[:, None] * keys
    else:
        table = torch.randperm(sequences * keys // page, device="cuda").to(torch.int32).view(sequences, -1)
    lengths, calls = torch.full((tokens,), seen, device="cuda", dtype=torch.int32), {}
    null, shape = ctypes.c_void_p(), numbers(sequences, queries, heads, sequences * keys // 64, 64, keys // 64, listed)
    for name, library in bench.libraries("latent_656" if small else "latent").items():
        library.giwa_latent_workspace_bytes.restype = ctypes.c_longlong
        count = ctypes.c_int(torch.cuda.get_device_properties(0).multi_processor_count)
        space = empty(max(1, library.giwa_latent_workspace_bytes(*shape, count)), dtype=torch.uint8)
        where = [null, null, table] if listed else [table, lengths, null]
        of_set = [giwa_side(library.giwa_attention_latent, o, q, x, *where, o, *shape, space, *numbers(space.numel())) for x in caches]
        calls[name] = lambda s, of_set=of_set: of_set[s](s)
    flat = q.view(tokens, 1, heads, 576)
    if p.fa3 and not small:
        def fa3(s):
            rows = numbers_of[s].view(-1, page, 1, 576)
            return p.fa3_forward(flat[..., 512:], rows[..., 512:], rows[..., :512], splits=0, q_v=flat[..., :512], page_table=table,
                                 seqused_k=lengths, scale=scale)[0].view_as(o)
        calls["fa3"] = fa3
    if p.flashinfer and not small:
        def planned():
            run = flashinfer_latent(p.flashinfer, flat[:, 0], table, page, seen, scale)
            return lambda s: run(numbers_of[s].view(-1, page, 576)).view_as(o)
        calls["flashinfer"] = lazily(planned)

    def reference():
        found = torch.empty_like(o).view(tokens, heads, 512)
        rows = numbers_of[0].view(-1, page, 576)
        for i in range(0, tokens, 8):
            x = rows[table[i:i + 8].long()].flatten(1, 2).float()
            weights = (flat[i:i + 8, 0].float() @ x.transpose(1, 2) * scale).softmax(-1)
            found[i:i + 8] = (weights @ x[..., :512]).bfloat16()
        return found.view_as(o)
    count = sets * -(-max(1, min(20, (2 << 30) // read)) // sets)
    seconds = bench.alternate(section, case, q.normal_, calls, 4 * torch.finfo(q.dtype).eps, calls=count, sets=sets, warm=True,
                              reference=reference)
    work, unit = (2 * tokens * heads * seen * 1088, "TFLOP/s") if heads > 32 else (read, "GB/s")
    bench.report(section, case, work, unit, seconds)


def latent_case(element, sizes):
    sequences, heads, queries, keys, listed = sizes
    return f"{element}/D576_512/{sequences}x{heads}(1)x{keys}" + f"_{queries}_queries" * (queries > 1) + f"_top_{listed}" * (listed > 0)


def cells(section):
    """[(case, run)]"""
    if section in DENSE:
        found = [(case_of(*x), partial(dense, x)) for x in DENSE[section]]
        if section == "head_sizes":
            found += [(f"fp16/{mask}/D192_128/4x16x4096", partial(value_size, mask == "causal")) for mask in ("causal", "full")]
        return found
    if section in BACKWARD:
        is_flex = section == "backward_flex"  # whose cases have the names of section flex
        return [(attention_backward.Case(*x, flex=is_flex).name + "/backward" * is_flex, partial(backward, x)) for x in BACKWARD[section]]
    if section.startswith("decode"):
        element, points = ("e4m3", DECODE_E4M3) if section == "decode_e4m3" else ("fp16", DECODE)
        return [(attention_cached.case_of(*x, element=element), partial(decode, element, x)) for x in points]
    if section == "latent":
        return [(latent_case(e, x), partial(latent, e, x)) for x in LATENT for e in ("bf16", "rows_656")]
    if section == "e4m3":
        return [(case_of("e4m3", b, n, n, heads, heads, size, causal), partial(e4m3, (b, n, heads, size, causal)))
                for b, n, heads, size, causal in E4M3]
    if section == "window":
        return [(f"fp16/window{keys}/D128/{b}x{h}x{n}", partial(window, (b, h, n, keys))) for b, h, n, keys in WINDOWS]
    if section == "packed":
        return [(f"fp16/causal/D128/{len(x)}_sequences_{sum(x)}", partial(packed, x)) for x in PACKED]
    batch, length, heads, size = VARIANT_SIZES
    return [(f"fp16/flex/{x}/D{size}/{batch}x{heads}x{length}", partial(flex, x)) for x in VARIANTS]
