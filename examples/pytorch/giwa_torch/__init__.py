# SPDX-License-Identifier: MIT
"""giwa's attention for PyTorch: operators for autograd, autocast and torch.compile, with the interfaces that programs use.

    from giwa_torch import scaled_dot_product_attention        # of torch.nn.functional
    from giwa_torch import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache   # of flash_attn

Importing compiles the operators, once. Kernels are compiled at the first call that needs them, or ahead: python3 -m giwa_torch build.
docs/frameworks.md says which arguments are supported. scaled_dot_product_attention passes calls that giwa does not serve on to PyTorch's
function, with a warning, or raises, as set_unsupported() says. All else that is not supported raises NotImplementedError with the name
of the argument.
"""
import ctypes

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("giwa_torch needs PyTorch, which is not installed: pip install torch") from None

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):  # the oldest that was tried
    raise ImportError(f"giwa_torch needs PyTorch 2.6 or newer, and this is {torch.__version__}: pip install 'torch>=2.6'")

from .build import compiler, operators, precompile  # noqa: E402

torch.ops.load_library(operators())
ctypes.CDLL(str(operators())).giwa_torch_set_compiler(compiler)

from .flash_attn import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,  # noqa: E402
                         flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)
from .flash_mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata  # noqa: E402
from .functional import append_to_cache, attention, attention_cached, scaled_dot_product_attention, set_unsupported  # noqa: E402

__all__ = ["append_to_cache", "attention", "attention_cached", "flash_attn_func", "flash_attn_kvpacked_func",
           "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache", "flash_mla_sparse_fwd", "flash_mla_with_kvcache",
           "get_mla_metadata", "precompile", "scaled_dot_product_attention", "set_unsupported"]
