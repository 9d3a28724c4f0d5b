#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compares the registers of the library's kernels with a committed table, which shapes of wgmma they multiply, and how
# many bytes of local memory the attention kernels use and spill. No other kernel may use local memory.
#
#   registers.sh check|update <table> <folder for objects> <folder of sources> <nvcc> <flags...>
set -euo pipefail
action=$1 table=$2 out=$3 sources=$4
shift 4
tolerance=4 # registers or bytes above the table: what another ptxas may make of the same code
sm80=-gencode=arch=compute_80,code=sm_80 sm90=-gencode=arch=compute_90a,code=sm_90a

compile() { # what to make of which source, with which flags more; the log grows
  local kind=$1 name=$2
  shift 2
  if ! "$@" -Xptxas=-v,-warn-double-usage -Werror=all-warnings --keep --keep-dir "$out" "$kind" "$sources/$name.cu" \
    -o "$out/$name.o" >> "$out/kernels.log" 2>&1; then
    c++filt < "$out/kernels.log"
    exit 1
  fi
}
: > "$out/kernels.log"
compile -c kernels "$@" "$sm80" "$sm90"
compile -cubin kernels_sm90 "$@" "$sm90"
# ptxas reports only as notes what costs a wgmma kernel its speed: C7504, C7508, C7509, C7510.
if grep '(C75' "$out/kernels.log"; then exit 1; fi

# Local memory is for the tensor-core kernels of attention alone. Those of the forward pass keep there what long sequences have
# summed so far (chunks.cuh), those of the backward pass and of 8-bit caches what they have no registers for.
if ! c++filt < "$out/kernels.log" | awk '
  /Function properties for/ { name = $0; sub(/.*Function properties for /, "", name) }
  /bytes stack frame/ && $1 > 0 && name !~ /sm[89]0_(attention|backward)_op|few_rows_op|latent_wide_op/ { print $1 " bytes of local memory: " name; bad = 1 }
  END { exit bad }'; then exit 1; fi

# One line a kernel: architecture, registers, name; and one each for its bytes of local memory and its spilled bytes.
c++filt < "$out/kernels.log" | awk '
  /Compiling entry function/ {
    name = $0; sub(/.*entry function \047(void )?/, "", name)
    arch = name; sub(/.*\047 for \047/, "", arch); sub(/\047.*/, "", arch)
    sub(/\047 for \047.*/, "", name); gsub(/giwa::v[0-9_]+::|archs_[0-9]+::|detail::/, "", name)
    depth = 0
    for (i = length(name); i > 0; --i) { # without the list of parameters
      depth += (substr(name, i, 1) == ")") - (substr(name, i, 1) == "(")
      if (depth == 0) break
    }
    name = substr(name, 1, i - 1)
  }
  /bytes stack frame/ && $1 > 0 { printf "local %5d  %s %s\n", $1, arch, name }
  /bytes spill stores/ && $5 > 0 { printf "spill %5d  %s %s\n", $5, arch, name }
  /Used [0-9]+ registers/ { registers = $0; sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
    printf "%-7s %3d  %s\n", arch, registers, name }' > "$out/registers.txt"
# What TMA stores must be visible to it: of the last write to shared memory and the last proxy fence before a store, the fence is later.
# On a GPU a fence that comes too early is hardly ever seen.
if ! cat "$out/kernels.compute_90a.ptx" "$out/kernels_sm90.ptx" | c++filt | awk '
  /^\.(visible|weak) \.entry/ { name = $0; last = "nothing" }
  /fence\.proxy\.async/ { last = "fence" }
  /stmatrix|st\.shared/ { last = $0 }
  /async\.bulk.*\.global\.shared::cta/ { ++stores; if (last != "fence") { print "stored by TMA without a fence: " last " in " name; bad = 1 } }
  END { exit bad || stores == 0 }'; then exit 1; fi
# One line for each kernel of wgmma: how many shapes (columns of the product), and which. An instruction of PTX is one of SASS.
cat "$out/kernels.compute_90a.ptx" "$out/kernels_sm90.ptx" | c++filt | awk '
  /^\.(visible|weak) \.entry/ { name = $0; sub(/.*\.entry (void )?/, "", name)
    gsub(/giwa::v[0-9_]+::|archs_[0-9]+::|detail::/, "", name); sub(/>\(.*/, ">", name); delete seen }
  /wgmma\.mma_async/ { match($0, /m64n[0-9]+/); n = substr($0, RSTART + 3, RLENGTH - 3)
    if (!seen[n]++) { shapes[name] = shapes[name] " " n; ++count[name] } }
  END { for (k in shapes) printf "wgmma   %3d %s  %s\n", count[k], shapes[k], k }' >> "$out/registers.txt"
LC_ALL=C sort -u -o "$out/registers.txt" "$out/registers.txt"

if [[ $action == update ]]; then
  cp "$out/registers.txt" "$table"
  echo "wrote $table"
  exit
fi
awk -v tolerance=$tolerance '
  { kernel = $0; sub(/ +[0-9]+  /, " ", kernel) }
  NR == FNR { expected[kernel] = $2; next }
  !(kernel in expected) { print "not in the table: " $0; bad = 1; next }
  { if ($2 > expected[kernel] + tolerance) { print "more than " expected[kernel] " in the table: " $0; bad = 1 }
    delete expected[kernel]; ++count }
  END { for (kernel in expected) { print "in the table, but not compiled: " kernel; bad = 1 }
    print count + 0 " kernels with the registers of the table"
    if (bad) print "If that is as it should be: cmake --build <build folder> --target update_registers"
    exit bad || count == 0 }' "$table" "$out/registers.txt"
