#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compares the CPU time to compile `#include <giwa/...>`, or a file, with that of an empty kernel, measured here and now.
#
#   compile_time.sh <folder for objects> <giwa/header or file.cu> <most, in hundredths of the empty kernel> <nvcc> <flags...>
set -euo pipefail
out=$1 header=$2 most=$3
shift 3

kernel='__global__ void __launch_bounds__(32) empty() {}'
printf '%s\n' "$kernel" > "$out/empty.cu"
if [[ $header == *.cu ]]; then cp "$header" "$out/header.cu"; else printf '#include <%s>\n%s\n' "$header" "$kernel" > "$out/header.cu"; fi

# Sets `now` to the CPU milliseconds of one compilation, its children included.
compile() {
  local TIMEFORMAT='%3U %3S' user system
  if ! { time "${@:2}" -c "$1.cu" -o "$1.o" > "$out/log" 2>&1; } 2> "$out/time"; then
    cat "$out/log"
    exit 1
  fi
  read -r user system < "$out/time"
  now=$((10#${user/./} + 10#${system/./}))
}

best_empty=999999 best_header=999999
for round in {1..12}; do # alternating, so that a slow moment of the machine affects both
  compile "$out/empty" "$@"
  best_empty=$((now < best_empty ? now : best_empty))
  compile "$out/header" "$@"
  best_header=$((now < best_header ? now : best_header))
  ratio=$((100 * best_header / best_empty))
  # Other processes raise a time and never lower it: three rounds that suffice are enough, one that is far below as well.
  ((10 * ratio > 8 * most && (round < 3 || ratio > most))) || break
done

printf '%s: %d ms, an empty kernel: %d ms; ratio %d.%02d, at most %d.%02d\n' "$header" "$best_header" "$best_empty" \
  $((ratio / 100)) $((ratio % 100)) $((most / 100)) $((most % 100))
((ratio <= most))
