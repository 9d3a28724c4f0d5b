# SPDX-License-Identifier: MIT
# Every header of giwa with its kind, in the order in which they may include each other.
#
# A file includes only files of lower layers, or files above it in its own folder. The kinds:
#   P  pure     .hpp   host and device; g++ alone, nvcc and NVRTC; includes P
#   H  host     .hpp   CUDA runtime API; g++ is enough;            includes P, H
#   D  device   .cuh   nvcc and NVRTC;                             includes P, D
#   L  launch   .cuh   nvcc; also the public headers;             includes all
#   N  NCCL     .hpp   a public header that needs NCCL's;         includes all; in the package, and not in the tests of all headers
# The package, the header tests and .ci/check_layers.py read this table.
set(GIWA_HEADERS
  P giwa/version.hpp

  P giwa/base/macros.hpp
  P giwa/base/arch.hpp
  P giwa/base/std.hpp
  P giwa/base/assert.hpp
  P giwa/base/status.hpp
  P giwa/base/uninitialized.hpp
  H giwa/base/cuda_status.hpp
  H giwa/base/throw.hpp

  P giwa/numeric/integer.hpp
  P giwa/numeric/constants.hpp
  P giwa/numeric/maximum.hpp
  P giwa/numeric/multiply_add.hpp
  P giwa/numeric/vector_access.hpp
  P giwa/numeric/index.hpp
  P giwa/numeric/extents.hpp
  P giwa/numeric/fast_division.hpp
  P giwa/numeric/stride_range.hpp
  P giwa/numeric/tensor_view.hpp
  P giwa/numeric/overlap.hpp
  P giwa/numeric/trigonometry.hpp
  P giwa/numeric/philox.hpp
  P giwa/numeric/dual.hpp
  P giwa/numeric/precision.hpp
  P giwa/numeric/fp8.hpp
  P giwa/numeric/split.hpp

  P giwa/arch/swizzle.hpp
  P giwa/arch/matrix_descriptor.hpp
  P giwa/arch/tensor_map.hpp
  P giwa/arch/math.hpp
  P giwa/arch/early_read.hpp
  P giwa/arch/round_fp8.hpp
  P giwa/arch/byte_signs.hpp
  D giwa/arch/convert_fp8.cuh
  D giwa/arch/shared_address.cuh
  D giwa/arch/cluster.cuh
  D giwa/arch/copy_async.cuh
  D giwa/arch/elect.cuh
  D giwa/arch/dependent_launch.cuh
  D giwa/arch/acquire_release.cuh
  D giwa/arch/global_add.cuh
  D giwa/arch/matrix_load.cuh
  D giwa/arch/mma.cuh
  D giwa/arch/named_barrier.cuh
  D giwa/arch/reduce_warp.cuh
  D giwa/arch/registers.cuh
  D giwa/arch/mbarrier.cuh
  D giwa/arch/tensor_copy.cuh
  D giwa/arch/vector_store.cuh
  D giwa/arch/wgmma.cuh

  P giwa/device/host.hpp
  P giwa/device/dlpack.hpp
  H giwa/device/properties.hpp
  H giwa/device/stream.hpp
  H giwa/device/pointer.hpp
  H giwa/device/copy.hpp
  H giwa/device/array.hpp
  H giwa/device/pinned_array.hpp
  H giwa/device/memory.hpp
  H giwa/device/timer.hpp
  P giwa/device/split_batch.hpp
  H giwa/device/for_each_device.hpp
  H giwa/device/named_range.hpp
  H giwa/device/tensor_map.hpp
  L giwa/device/environment.cuh

  P giwa/grid/launch_config.hpp
  H giwa/grid/occupancy.hpp
  P giwa/grid/grid_barrier.hpp
  P giwa/grid/op.hpp
  P giwa/grid/reduce.hpp
  P giwa/grid/tile_order.hpp
  D giwa/grid/scope.cuh
  D giwa/grid/device_block.cuh
  H giwa/grid/carried_exception.hpp
  H giwa/grid/sanitizer.hpp
  H giwa/grid/fiber.hpp
  H giwa/grid/host_block.hpp
  H giwa/grid/host_executor.hpp
  H giwa/grid/for_all_checks.hpp
  H giwa/grid/host_for_all.hpp
  H giwa/grid/host_loop.hpp
  H giwa/grid/elementwise.hpp
  L giwa/grid/explain_launch.cuh
  L giwa/grid/launch.cuh
  L giwa/grid/for_all.cuh
  L giwa/grid/elementwise.cuh

  P giwa/tile/shape.hpp
  P giwa/tile/layout.hpp
  P giwa/tile/shared_tile.hpp
  P giwa/tile/fragment.hpp
  P giwa/tile/element_run.hpp
  P giwa/tile/walk.hpp
  P giwa/tile/copy_checks.hpp
  D giwa/tile/instructions.cuh
  D giwa/tile/copy_runs.cuh
  D giwa/tile/copy.cuh
  D giwa/tile/whole_tiles.cuh
  P giwa/tile/tensor_box.hpp
  H giwa/tile/tile_map.hpp
  D giwa/tile/copy_sm90.cuh
  D giwa/tile/pipeline.cuh
  D giwa/tile/pipeline_sm90.cuh
  P giwa/tile/operand.hpp
  P giwa/tile/register_map.hpp
  P giwa/tile/register_tile.hpp
  P giwa/tile/mma.hpp
  D giwa/tile/register_copy.cuh
  D giwa/tile/mma_sm80.cuh
  D giwa/tile/mma_sm90.cuh

  P giwa/softmax/exponential.hpp
  P giwa/softmax/state.hpp
  P giwa/softmax/grouped_sum.hpp
  P giwa/softmax/problem.hpp
  P giwa/softmax/row_plan.hpp
  P giwa/softmax/row_packet.hpp
  H giwa/softmax/host_softmax.hpp
  H giwa/softmax/host_rows.hpp
  D giwa/softmax/device_exponential.cuh
  D giwa/softmax/row_group.cuh
  D giwa/softmax/row_op.cuh
  D giwa/softmax/online.cuh
  L giwa/softmax/row_softmax.cuh

  P giwa/attention/problem/coordinate.hpp
  P giwa/attention/problem/mask.hpp
  P giwa/attention/problem/masks.hpp
  P giwa/attention/problem/mask_combinators.hpp
  P giwa/attention/problem/score.hpp
  P giwa/attention/problem/dropout.hpp
  P giwa/attention/problem/kept_tile.hpp
  P giwa/attention/problem/workspace.hpp
  P giwa/attention/split_fp16/rows.hpp
  P giwa/attention/split_fp16/layout.hpp
  P giwa/attention/problem/options.hpp
  P giwa/attention/problem/problem.hpp
  P giwa/attention/problem/view_checks.hpp
  P giwa/attention/problem/views.hpp
  P giwa/attention/problem/checks.hpp
  H giwa/attention/problem/memory_advice.hpp
  P giwa/attention/problem/params.hpp
  P giwa/attention/problem/rows.hpp
  P giwa/attention/cached/cache.hpp
  P giwa/attention/cached/problem.hpp
  P giwa/attention/cached/views.hpp
  P giwa/attention/cached/checks.hpp
  P giwa/attention/cached/params.hpp
  P giwa/attention/cached/rotary.hpp
  P giwa/attention/cached/append_options.hpp
  P giwa/attention/cached/append_params.hpp
  P giwa/attention/cached/append_unit.hpp
  P giwa/attention/cached/append_rows.hpp
  P giwa/attention/cached/leaf_fold.hpp
  P giwa/attention/cached/packed_rows.hpp
  P giwa/attention/cached/many_rows.hpp
  P giwa/attention/cached/runs.hpp
  P giwa/attention/cached/find_run.hpp
  P giwa/attention/cached/workspace.hpp
  P giwa/attention/schedule/work_tiles.hpp
  P giwa/attention/schedule/visible_tiles.hpp
  P giwa/attention/forward/policy.hpp
  P giwa/attention/backward/score_gradient.hpp
  P giwa/attention/backward/options.hpp
  P giwa/attention/backward/params.hpp
  P giwa/attention/backward/checks.hpp
  H giwa/attention/backward/schedules.hpp
  P giwa/attention/backward/backward_sm80_tile.hpp
  P giwa/attention/backward/backward_sm90_policy.hpp
  H giwa/attention/forward/call_types.hpp
  H giwa/attention/forward/forward.hpp
  H giwa/attention/backward/explain_call.hpp
  H giwa/attention/backward/backward.hpp
  H giwa/attention/cached/call_types.hpp
  H giwa/attention/cached/cached.hpp
  H giwa/attention/cached/append_checks.hpp
  H giwa/attention/cached/append.hpp
  H giwa/attention/cached/append_host.hpp
  H giwa/attention/merge.hpp
  H giwa/attention/merge_host.hpp
  P giwa/attention/reference/reference.hpp
  H giwa/attention/reference/backward.hpp
  P giwa/attention/cached/rows.hpp
  P giwa/attention/cached/reference.hpp
  H giwa/attention/cpu/loops.hpp
  H giwa/attention/cpu/product.hpp
  H giwa/attention/cpu/panels.hpp
  H giwa/attention/cpu/worker.hpp
  H giwa/attention/cpu/run.hpp
  H giwa/attention/cpu/forward.hpp
  H giwa/attention/cpu/gradient_rows.hpp
  H giwa/attention/cpu/backward_worker.hpp
  H giwa/attention/cpu/backward.hpp
  H giwa/attention/cached/host_cached.hpp
  D giwa/attention/forward/score_steps.cuh
  D giwa/attention/forward/nonfinite.cuh
  D giwa/attention/cached/e4m3_products.cuh
  D giwa/attention/cached/few_rows_items.cuh
  D giwa/attention/cached/few_rows_types.cuh
  D giwa/attention/cached/few_rows_copies.cuh
  D giwa/attention/cached/few_rows_loader.cuh
  D giwa/attention/cached/few_rows_scaling.cuh
  D giwa/attention/cached/few_rows_scores.cuh
  D giwa/attention/cached/few_rows_output.cuh
  D giwa/attention/cached/few_rows.cuh
  D giwa/attention/cached/merge_runs.cuh
  D giwa/attention/cached/cached_simt.cuh
  D giwa/attention/split_fp16/numbers.cuh
  D giwa/attention/split_fp16/split_pass.cuh
  D giwa/attention/split_fp16/exponents.cuh
  D giwa/attention/split_fp16/rows_pass.cuh
  D giwa/attention/split_fp16/operand.cuh
  D giwa/attention/forward/chunks.cuh
  D giwa/attention/forward/forward_simt.cuh
  D giwa/attention/forward/inputs_sm80.cuh
  D giwa/attention/forward/forward_sm80.cuh
  D giwa/attention/forward/types_sm90.cuh
  D giwa/attention/forward/tile_scheduler_sm90.cuh
  D giwa/attention/forward/loader_sm90.cuh
  D giwa/attention/forward/nan_scrubber_sm90.cuh
  D giwa/attention/forward/consumer_state_sm90.cuh
  D giwa/attention/forward/split_queries_sm90.cuh
  D giwa/attention/forward/consumer_sm90.cuh
  D giwa/attention/forward/epilogue_sm90.cuh
  D giwa/attention/forward/forward_sm90.cuh
  D giwa/attention/cached/many_rows_types.cuh
  D giwa/attention/cached/many_rows_copier.cuh
  D giwa/attention/cached/many_rows_loader.cuh
  D giwa/attention/cached/many_rows_pieces.cuh
  D giwa/attention/cached/many_rows_output.cuh
  D giwa/attention/cached/many_rows.cuh
  D giwa/attention/cached/merge_pieces.cuh
  L giwa/attention/forward/launch.cuh
  L giwa/attention/cached/launch_many_rows.cuh
  L giwa/attention/cached/cached.cuh
  L giwa/attention/forward/launch_sm90.cuh
  L giwa/attention/split_fp16/launch.cuh
  L giwa/attention/split_fp16/rows_launch.cuh
  L giwa/attention/forward/forward.cuh
  L giwa/attention/forward/plan.cuh
  L giwa/attention/reference/reference.cuh
  D giwa/attention/backward/row_terms.cuh
  D giwa/attention/backward/backward_simt.cuh
  D giwa/attention/backward/store_gradient.cuh
  D giwa/attention/backward/backward_sm80_steps.cuh
  D giwa/attention/backward/backward_sm80.cuh
  D giwa/attention/backward/backward_sm80_all_steps.cuh
  D giwa/attention/backward/backward_sm80_dq.cuh
  D giwa/attention/backward/backward_sm80_all.cuh
  D giwa/attention/backward/backward_sm90_types.cuh
  D giwa/attention/backward/backward_sm90_scheduler.cuh
  D giwa/attention/backward/backward_sm90_sharing.cuh
  D giwa/attention/backward/backward_sm90_loader.cuh
  D giwa/attention/backward/backward_sm90_steps.cuh
  D giwa/attention/backward/backward_sm90_dq.cuh
  D giwa/attention/backward/backward_sm90_items.cuh
  D giwa/attention/backward/backward_sm90_consumer.cuh
  D giwa/attention/backward/backward_sm90_halves.cuh
  D giwa/attention/backward/backward_sm90_split.cuh
  D giwa/attention/backward/backward_sm90_wide.cuh
  D giwa/attention/backward/backward_sm90.cuh
  D giwa/attention/backward/dq_of_sums.cuh
  L giwa/attention/backward/launch_sm90.cuh
  L giwa/attention/backward/backward.cuh
  L giwa/attention/merge.cuh
  L giwa/attention/cached/append.cuh

  P giwa/multi/sequence_slices.hpp
  P giwa/multi/slice_mask.hpp
  P giwa/multi/ring_plan.hpp
  H giwa/multi/communicator.hpp
  H giwa/multi/row_groups.hpp
  H giwa/multi/slice_tokens.hpp
  H giwa/multi/host_group.hpp
  H giwa/multi/ring_exchange.hpp
  H giwa/multi/gradient_ring.hpp
  H giwa/multi/ring_checks.hpp
  H giwa/multi/ring_forward.hpp
  H giwa/multi/ring_backward.hpp
  H giwa/multi/head_exchange.hpp
  H giwa/multi/head_forward.hpp
  H giwa/multi/head_backward.hpp

  L giwa/device.hpp
  L giwa/host.hpp
  L giwa/multi.hpp
  L giwa/grid.cuh
  L giwa/tile.cuh
  L giwa/softmax.cuh
  L giwa/attention.cuh
  L giwa/attention_backward.cuh
  L giwa/cache.cuh
  L giwa/host_executor.cuh
  L giwa/giwa.cuh
  N giwa/nccl.hpp
)

# Splits the table: GIWA_HEADERS_<kind> holds the paths of one kind, GIWA_HEADER_FILES those of all but N.
foreach(word IN LISTS GIWA_HEADERS)
  if(word MATCHES "^[PHDLN]$")
    set(kind ${word})
  else()
    if(NOT kind STREQUAL N)
      list(APPEND GIWA_HEADER_FILES ${word})
    endif()
    list(APPEND GIWA_HEADERS_${kind} ${word})
  endif()
endforeach()
