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
  P giwa/attention/problem/traits.hpp
  P giwa/attention/problem/mask.hpp
  P giwa/attention/problem/masks.hpp
  P giwa/attention/problem/mask_combinators.hpp
  P giwa/attention/problem/score.hpp
  P giwa/attention/problem/dropout.hpp
  P giwa/attention/problem/kept_tile.hpp
  P giwa/attention/problem/workspace.hpp
  P giwa/attention/problem/options.hpp
  P giwa/attention/problem/cache.hpp
  P giwa/attention/split_fp16/layout.hpp
  D giwa/attention/split_fp16/numbers.cuh
  D giwa/attention/split_fp16/split_pass.cuh
  D giwa/attention/split_fp16/rows_pass.cuh
  P giwa/attention/problem/problem.hpp
  P giwa/attention/problem/block_map.hpp
  P giwa/attention/problem/data_masks.hpp
  P giwa/attention/problem/views.hpp
  P giwa/attention/problem/checks.hpp
  H giwa/attention/problem/memory_advice.hpp
  P giwa/attention/blocks/sources.hpp
  P giwa/attention/blocks/score_sources.hpp
  P giwa/attention/blocks/rows.hpp
  P giwa/attention/problem/last_arguments.hpp
  P giwa/attention/problem/params.hpp
  P giwa/attention/problem/gradient.hpp
  P giwa/attention/tuning/sm80.hpp
  P giwa/attention/tuning/sm120.hpp
  P giwa/attention/tuning/sm90.hpp
  P giwa/attention/problem/cached_problem.hpp
  P giwa/attention/problem/cached_views.hpp
  P giwa/attention/problem/cached_checks.hpp
  P giwa/attention/problem/cached_params.hpp
  P giwa/attention/problem/score_gradient.hpp
  P giwa/attention/problem/backward_options.hpp
  P giwa/attention/problem/backward_params.hpp
  P giwa/attention/problem/backward_checks.hpp
  P giwa/attention/problem/cached_rows.hpp
  P giwa/attention/sums/row_end.hpp
  P giwa/attention/sums/partial_slot.hpp
  P giwa/attention/sums/merge_parts.hpp
  P giwa/attention/work/packed_rows.hpp
  P giwa/attention/work/many_rows.hpp
  P giwa/attention/work/work_tiles.hpp
  P giwa/attention/work/visible_tiles.hpp
  H giwa/attention/work/backward_schedules.hpp
  D giwa/attention/score/score_steps.cuh
  D giwa/attention/split_fp16/exponents.cuh
  D giwa/attention/nonfinite/nonfinite.cuh
  P giwa/attention/sums/leaf_fold.hpp
  D giwa/attention/sums/row_sums.cuh
  D giwa/attention/sums/finish_rows.cuh
  D giwa/attention/sums/chunks.cuh
  D giwa/attention/sums/merge_partials.cuh
  D giwa/attention/sums/many_rows_partials.cuh
  P giwa/attention/work/splits.hpp
  P giwa/attention/work/find_split.hpp
  D giwa/attention/sums/few_rows_partials.cuh
  P giwa/attention/work/cached_workspace.hpp
  P giwa/attention/append/rotary.hpp
  P giwa/attention/append/append_unit.hpp
  P giwa/attention/append/append_rows.hpp
  H giwa/attention/append/append_checks.hpp
  P giwa/attention/reference/reference.hpp
  H giwa/attention/reference/backward.hpp
  H giwa/attention/cpu/loops.hpp
  H giwa/attention/cpu/product.hpp
  H giwa/attention/cpu/panels.hpp
  H giwa/attention/cpu/worker.hpp
  H giwa/attention/cpu/gradient_rows.hpp
  H giwa/attention/cpu/backward_worker.hpp
  D giwa/attention/kernels/simt/cached_simt.cuh
  D giwa/attention/kernels/simt/forward_simt.cuh
  D giwa/attention/kernels/simt/row_terms.cuh
  D giwa/attention/kernels/simt/backward_simt.cuh
  D giwa/attention/kernels/simt/store_gradient.cuh
  D giwa/attention/kernels/sm80/e4m3_products_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_queue_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_types_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_copies_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_loader_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_scaling_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_scores_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_output_sm80.cuh
  D giwa/attention/kernels/sm80/few_rows_sm80.cuh
  D giwa/attention/kernels/sm80/inputs_sm80.cuh
  D giwa/attention/kernels/sm80/forward_sm80.cuh
  D giwa/attention/kernels/sm80/backward_steps_sm80.cuh
  D giwa/attention/kernels/sm80/backward_sm80.cuh
  D giwa/attention/kernels/sm80/backward_all_steps_sm80.cuh
  D giwa/attention/kernels/sm80/backward_all_sm80.cuh
  D giwa/attention/kernels/sm90/forward_types_sm90.cuh
  D giwa/attention/kernels/sm90/forward_scheduler_sm90.cuh
  D giwa/attention/kernels/sm90/forward_loader_sm90.cuh
  D giwa/attention/kernels/sm90/forward_consumer_state_sm90.cuh
  D giwa/attention/kernels/sm90/forward_products_sm90.cuh
  D giwa/attention/kernels/sm90/forward_consumer_sm90.cuh
  D giwa/attention/kernels/sm90/forward_epilogue_sm90.cuh
  D giwa/attention/kernels/sm90/forward_sm90.cuh
  D giwa/attention/kernels/sm90/many_rows_types_sm90.cuh
  D giwa/attention/kernels/sm90/many_rows_copier_sm90.cuh
  D giwa/attention/kernels/sm90/many_rows_loader_sm90.cuh
  D giwa/attention/kernels/sm90/many_rows_output_sm90.cuh
  D giwa/attention/kernels/sm90/many_rows_sm90.cuh
  D giwa/attention/kernels/sm90/latent_types_sm90.cuh
  D giwa/attention/kernels/sm90/latent_scores_sm90.cuh
  D giwa/attention/kernels/sm90/latent_output_sm90.cuh
  D giwa/attention/kernels/sm90/latent_sm90.cuh
  D giwa/attention/kernels/sm90/backward_types_sm90.cuh
  D giwa/attention/kernels/sm90/backward_scheduler_sm90.cuh
  D giwa/attention/kernels/sm90/backward_sharing_sm90.cuh
  D giwa/attention/kernels/sm90/backward_loader_sm90.cuh
  D giwa/attention/kernels/sm90/backward_steps_sm90.cuh
  D giwa/attention/kernels/sm90/backward_dq_sm90.cuh
  D giwa/attention/kernels/sm90/backward_items_sm90.cuh
  D giwa/attention/kernels/sm90/backward_consumer_sm90.cuh
  D giwa/attention/kernels/sm90/backward_halves_sm90.cuh
  D giwa/attention/kernels/sm90/backward_split_sm90.cuh
  D giwa/attention/kernels/sm90/backward_wide_sm90.cuh
  D giwa/attention/kernels/sm90/backward_sm90.cuh
  H giwa/attention/call/forward_types.hpp
  H giwa/attention/call/call_plan.hpp
  H giwa/attention/call/forward.hpp
  H giwa/attention/call/backward_explain_call.hpp
  H giwa/attention/call/backward.hpp
  H giwa/attention/call/cached.hpp
  H giwa/attention/call/append.hpp
  H giwa/attention/call/merge.hpp
  H giwa/attention/call/block_map.hpp
  L giwa/attention/sums/merge.cuh
  H giwa/attention/cpu/calls.hpp
  L giwa/attention/append/append.cuh
  H giwa/attention/cpu/backward.hpp
  L giwa/attention/choose/gpu.cuh
  H giwa/attention/choose/pointers.hpp
  L giwa/attention/blocks/block_map.cuh
  L giwa/attention/choose/candidates.cuh
  L giwa/attention/choose/launch.cuh
  L giwa/attention/choose/many_rows_sm90.cuh
  L giwa/attention/choose/cached.cuh
  L giwa/attention/choose/forward_sm90.cuh
  L giwa/attention/choose/backward_sm90.cuh
  L giwa/attention/choose/backward_steps.cuh
  L giwa/attention/choose/backward.cuh
  L giwa/attention/choose/forward_split.cuh
  L giwa/attention/choose/forward.cuh
  L giwa/attention/reference/reference.cuh
  L giwa/attention/call/plan.cuh

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
  L giwa/block_map.cuh
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
