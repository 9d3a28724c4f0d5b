# SPDX-License-Identifier: MIT
# Doxygen's filter of the headers: puts the names of each header into the group of its layer, or of its part of attention, and
# shows them as a caller sees them. The numbers of lines stay.
#
# Namespaces: Doxygen does not read `namespace a::inline b`, and checks only the functions of a namespace that has a comment; the
# inline namespaces of architectures are not part of a name. Signatures: the names in detail have no page, so a template parameter
# constrained by one of its concepts is a class, and an overload that only explains errors is left out. Comments: lists of
# parameters become tables, a page of docs/ becomes a link, and cmake/docs_see.txt has links for functions and types.
FNR == 1 {
  path = FILENAME
  sub(/^.*include\/giwa\//, "", path)
  members = group_of(path)
  see = links_of(path)
}
{
  line = $0
  gsub(/::inline GIWA_[A-Z_]*/, "", line)
  if (!in_detail && line ~ /^(inline namespace|}  \/\/ namespace) GIWA_[A-Z_]*( {)?$/) line = ""
  if (in_detail && line ~ /{/) is_short = 0
  if (line ~ /^namespace detail {$/) in_detail = is_short = 1  # nothing in it is on the site
  if (line ~ /^}  \/\/ namespace detail$/ || (is_short && line == "}")) in_detail = 0  # clang-format names no short one at its end
  if (line ~ /^ *\/\/\//)
    line = of_comment(line)
  else {
    list = ""
    line = of_code(line)
  }
  # The links go to the end of a comment, which the next line shows.
  if (see != "" && !in_detail && last ~ /^\/\/\/ / && last !~ /With two head sizes/ && line !~ /^\/\/\/( |$)/) last = last see
  if (FNR > 1) print last
  last = line
}
END {
  print last
  if (path != "version.hpp") exit
  # The groups, in their order.
  group("layer_base", "base: macros, status, exceptions")
  group("layer_numeric", "numeric: indices, extents, views, precisions")
  group("layer_arch", "arch: PTX instructions")
  group("layer_device", "device: GPUs, memory, copies, streams, timing")
  group("layer_grid", "grid: threads, loops, launches")
  group("layer_tile", "tile: tiles, copies, pipelines, products")
  group("layer_softmax", "softmax: the (max, sum) state, rows")
  group("layer_attention", "attention")
  group("attention_forward", "Attention: the call, options, workspace, plans, merging", "layer_attention")
  group("attention_backward", "Gradients of attention", "layer_attention")
  group("attention_cached", "Attention with a cache", "layer_attention")
  group("attention_append", "Appending to a cache, rotary embedding", "layer_attention")
  group("attention_masks", "Masks", "layer_attention")
  group("attention_scores", "Score modifiers and dropout", "layer_attention")
  group("attention_reference", "Plain implementations to compare with", "layer_attention")
  group("layer_multi", "multi: attention on several GPUs")
}

function group(name, title, above, path) {
  path = name
  if (!sub(/^layer_/, "", path)) sub(/_/, "/call/", path)
  printf "/** @defgroup %s %s\n%s%s */\n", name, title, above == "" ? "" : "@ingroup " above "\n", links_of(path)
}

function group_of(path, layer) {
  layer = path
  if (!sub(/\/.*$/, "", layer)) return ""
  if (layer != "attention") return "layer_" layer
  if (path ~ /\/reference\//) return "attention_reference"
  if (path ~ /\/(mask[a-z_]*|coordinate)\.hpp$/) return "attention_masks"
  if (path ~ /\/(score[a-z_]*|dropout)\.hpp$/) return "attention_scores"
  if (path ~ /\/append/) return "attention_append"
  if (path ~ /cache/) return "attention_cached"
  return path ~ /\/backward/ ? "attention_backward" : "attention_forward"
}

# The links of the first line of docs_see.txt with which the path begins.
function links_of(path, entry, word, found) {
  while (found == "" && (getline entry < "cmake/docs_see.txt") > 0) {
    split(entry, word)
    if (index(path, word[1]) == 1) found = " @see " link(word[2]) ", " link(word[3])
  }
  close("cmake/docs_see.txt")
  return found
}

# A link to a page, whose text is its title, or to an example.
function link(file, name, title) {
  name = file
  sub(/\.md$/, "", name)
  gsub(/[^0-9A-Za-z]/, "_", name)
  title = file
  if (file ~ /\.md$/ && (getline title < file) > 0) sub(/^# +/, "", title)
  close(file)
  return "[" title "](@ref " tolower(name) ")"
}

function of_comment(line, page) {
  if (line ~ /^\/\/\/ Explains a call that no other overload takes/) {
    hiding = 1
    return "/** @cond */"
  }
  if (line ~ /^\/\/\/ (Template arguments|Parameters).*:$/) {
    list = line ~ /Template/ ? " @tparam " : " @param "
    return line ~ /(arguments|Parameters):$/ ? "///" : line
  }
  if (list != "" && match(line, /^\/\/\/ +- [A-Za-z_, ]+: /)) {
    page = substr(line, 1, RLENGTH - 2)
    sub(/^\/\/\/ +- /, "", page)
    gsub(/, /, ",", page)
    line = "///" list page " " substr(line, RLENGTH + 1)
  } else if (line ~ /^\/\/\/$/) {
    list = ""
  }
  # Each begins a paragraph.
  if (match(line, /(Errors|Source|Example): /) && substr(line, RSTART - 2, 2) ~ /[.\/] /)
    line = substr(line, 1, RSTART - 1) "<p><b>" substr(line, RSTART, RLENGTH - 1) "</b>" substr(line, RSTART + RLENGTH - 1)
  if (match(line, /docs\/[a-z_0-9]+\.md/)) {
    page = substr(line, RSTART, RLENGTH)
    line = substr(line, 1, RSTART - 1) link(page) substr(line, RSTART + RLENGTH)
  }
  return line
}

function of_code(line) {
  if (hiding && line ~ /^}/) {
    hiding = 0
    line = line " /** @endcond */"
  }
  if (in_detail) return line
  if (line ~ /^namespace giwa(::arch)? {$/)
    return "/** giwa. */ " line (members == "" ? "" : " /** @addtogroup " members " */ /** @{ */")
  if (members != "" && line ~ /^}  \/\/ namespace giwa(::arch)?$/) return "/** @} */ " line
  while (match(line, /detail::[a-z_]+ [A-Z]/))
    line = substr(line, 1, RSTART - 1) "class " substr(line, RSTART + RLENGTH - 1)
  gsub(/detail::/, "", line)
  return line
}
