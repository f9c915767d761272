"""Prefetch of an array element into the CPU caches, as an intrinsic for kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types as _types
from numba.extending import intrinsic

from store.kernels.numba_private import cgutils

types: Any = _types  # its functions are not typed
_WRITE, _ALL_CACHES, _DATA = 1, 3, 1  # the arguments of llvm.prefetch


def _make_prefetch(_typing: Any, array: Any, at: Any) -> Any:
    """Prefetch ``array[at]`` for writing; ``at`` is not bounds-checked."""
    signature = types.void(array, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0",
        )
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        how = [ir.Constant(word, n) for n in (_WRITE, _ALL_CACHES, _DATA)]
        builder.call(prefetch, [address, *how])
        return context.get_dummy_value()

    return signature, generate


prefetch_to_write: Any = intrinsic(_make_prefetch)
