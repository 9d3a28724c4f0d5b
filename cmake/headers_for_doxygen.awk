# SPDX-License-Identifier: MIT
# Doxygen's filter of the headers: puts the names of each header into the group of its layer. The numbers of lines stay.
#
# Doxygen does not read `namespace a::inline b`, and checks only the functions of a namespace that has a comment, so the filter
# changes the first and adds the second.
FNR == 1 {
  layer = FILENAME
  in_detail = 0
  sub(/^.*include\/giwa\//, "", layer)
  if (layer == "version.hpp") {  # the layers, in their order
    group("base", "Macros, compiler checks, status and exceptions")
    group("numeric", "Integers, indices, extents, views, precisions, random numbers")
    group("arch", "PTX instructions, one family in each header")
    group("device", "GPUs, streams, events, memory, copies, timing, tensor maps")
    group("grid", "Thread coordinates, stride loops, launches, for_all, the host executor")
    group("tile", "Tiles in shared memory and registers, copies, pipelines, matrix products")
    group("softmax", "The (max, sum) state, the online update, softmax of rows")
    group("attention", "Masks, score modifiers, options, attention on GPU and CPU")
    group("multi", "Attention on several ranks: slices, communicators, rings, head-parallel")
  }
  if (!sub(/\/.*$/, "", layer)) layer = ""
}
{
  line = $0
  if (line ~ /^(inline namespace|}  \/\/ namespace) GIWA_/) sub(/GIWA_[A-Z_]*/, "archs", line)
  gsub(/::inline GIWA_[A-Z_]*/, "", line)
  if (line ~ /^namespace detail {$/) in_detail = 1  # nothing in it is on the site
  if (line ~ /^}  \/\/ namespace detail$/) in_detail = 0
  if (!in_detail && line ~ /^(namespace giwa(::arch)?|inline namespace archs) {$/)
    line = "/** giwa. */ " line (layer == "" ? "" : " /** @addtogroup layer_" layer " */ /** @{ */")
  else if (!in_detail && layer != "" && line ~ /^}  \/\/ namespace (giwa(::arch)?|archs)$/)
    line = "/** @} */ " line
  print line
}
function group(name, text) {
  printf "/** @defgroup layer_%s %s: %s */ ", name, name, text
}
