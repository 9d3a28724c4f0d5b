# SPDX-License-Identifier: MIT
"""FlexAttention's BlockMask as a mask of giwa: the map of its lists, and the mask that its partial blocks ask."""
import torch
from torch.nn.attention.flex_attention import noop_mask


@torch.library.register_fake("giwa::make_block_map")
def _(counts, indices, full_counts, full_indices, blocks):
    batch, heads, queries, keys, block_queries, block_keys, by_keys = blocks
    rows, columns = -(-queries // block_queries), -(-keys // block_keys)
    return counts.new_empty(4 * batch * heads * (rows * (columns // 32 + 1) + by_keys * columns * (rows // 32 + 1)))


def inner_of(block_mask, inner):
    """(causal, window, top_left, mask, ids of queries, ids of keys) of the mask that partial blocks ask."""
    def known(causal=False, window=(-1, -1), top_left=True, mask=None, segment_ids=None):
        return causal, window, top_left, mask, *(2 * (segment_ids,) if isinstance(segment_ids, torch.Tensor) else segment_ids or (None, None))

    if inner is None and block_mask.mask_mod not in (None, noop_mask):
        name = getattr(block_mask.mask_mod, "__name__", repr(block_mask.mask_mod))
        raise NotImplementedError(f"giwa_torch: the BlockMask's mask_mod {name} is Python code, which giwa does not compile. Say what it "
                                  "computes: inner={'causal': True}, {'causal': True, 'window': (128, 0)}, {'segment_ids': ids}, or as a "
                                  "tensor {'mask': mask}; {} if partial blocks are visible as a whole")
    try:
        return known(**(inner or {}))
    except TypeError as error:
        raise ValueError(f"giwa_torch: inner has causal, window, top_left, mask and segment_ids: {error}") from None


def map_of(block_mask, queries, keys, by_keys):
    """The map of a BlockMask and its numbers, as call.hpp has them. It is made once for all calls on a stream, as long as the lists are
    the same memory that nothing has written since; writes by `.data` or by other libraries are not seen, as autograd does not see them."""
    blocks = block_mask.BLOCK_SIZE
    for length, said, block in zip((queries, keys), block_mask.seq_lengths, blocks):
        if said < length or -(-said // block) != -(-length // block):
            raise ValueError(f"giwa_torch: the BlockMask is of {block_mask.seq_lengths[0]} queries and {block_mask.seq_lengths[1]} keys, q "
                             f"and k have {queries} and {keys}")
    lists = [x if x is None else x[(None,) * (n - x.dim())] for n, x in (
        (3, block_mask.kv_num_blocks), (4, block_mask.kv_indices), (3, block_mask.full_kv_num_blocks), (4, block_mask.full_kv_indices))]
    first = lists[0]
    numbers = [*first.shape[:2], queries, keys, *blocks, int(by_keys)]
    make = torch.ops.giwa.make_block_map.default
    # A graph of the GPU reads the lists anew whenever it is replayed, and what it makes is there only then.
    if (torch.compiler.is_compiling() or any(x is not None and x.is_inference() for x in lists)
            or first.is_cuda and torch.cuda.is_current_stream_capturing()):
        return make(*lists, numbers), numbers
    seen = id(block_mask), *(x if x is None else (x.data_ptr(), x._version, x.shape, x.stride()) for x in lists)
    if getattr(block_mask, "_giwa_maps", (None,))[0] != seen:
        block_mask._giwa_maps = seen, lists, {}  # which holds the lists, so that no other memory gets their addresses
    maps = block_mask._giwa_maps[2]
    key = (torch.cuda.current_stream(first.device).cuda_stream if first.is_cuda else 0, *numbers[:-1])
    if key not in maps or by_keys > maps[key][1][-1]:  # a map by keys too serves calls without gradients
        maps[key] = make(*lists, numbers), numbers
    return maps[key]
