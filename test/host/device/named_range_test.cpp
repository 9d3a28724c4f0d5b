// SPDX-License-Identifier: MIT
// named_range: an NVTX range with GIWA_ENABLE_NVTX, nothing without, and two types, so that both can be linked together.
#include <giwa/device/named_range.hpp>

#undef GIWA_DEVICE_NAMED_RANGE_HPP
#define GIWA_ENABLE_NVTX
#include <giwa/device/named_range.hpp>

#include <string>
#include <type_traits>

#include "support/catch.hpp"

static_assert(!std::is_same_v<giwa::nvtx_on::named_range, giwa::nvtx_off::named_range>);
static_assert(std::is_empty_v<giwa::nvtx_off::named_range>);
static_assert(!std::is_move_constructible_v<giwa::nvtx_on::named_range>);

namespace {

std::string events;  // what a profiler would have been told

int push(const char* name) {
  events += std::string("<").append(name);
  return 0;
}
int pop() {
  events += ">";
  return 0;
}

// Attaches to NVTX as a profiler does.
int attach(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

}  // namespace

TEST_CASE("a profiler sees the ranges of files that are compiled with them, nested as their scopes are") {
  InitializeInjectionNvtx2_fnptr = &attach;
  {
    const giwa::nvtx_on::named_range outer("attention");
    { const giwa::nvtx_on::named_range inner("merge"); }
    const giwa::nvtx_off::named_range silent("nobody hears this");
    CHECK(events == "<attention<merge>");
  }
  CHECK(events == "<attention<merge>>");
}
