# SPDX-License-Identifier: MIT
# Tests of what the sanitizers see of an op on the host executor: each flaw at its line, and nothing in a right op.

set(dir ${CMAKE_CURRENT_LIST_DIR})

# A program of sources in this folder with further flags; skipped, and said so, where the compiler has no such library.
include(CheckCXXSourceCompiles)
function(giwa_add_flagged_program name source flags)
  string(MAKE_C_IDENTIFIER "GIWA_HAS_${flags}" available)
  list(JOIN flags " " CMAKE_REQUIRED_FLAGS)
  check_cxx_source_compiles("int main() {}" ${available})
  if(${available})
    add_executable(${name} ${dir}/${source})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/test)
    target_compile_options(${name} PRIVATE ${flags})
    target_link_options(${name} PRIVATE ${flags})
    target_link_libraries(${name} PRIVATE giwa::giwa giwa_warnings ${ARGN})
  else()
    message(STATUS "giwa: ${CMAKE_CXX_COMPILER} has no ${flags}: ${name} is left out")
  endif()
endfunction()

# Runs one case of sanitizer_cases; `report` is part of the sanitizer's sentence, or empty for a case without a flaw.
function(giwa_add_sanitizer_test program case report)
  if(TARGET ${program})
    add_test(NAME sanitizer.${program}.${case} COMMAND ${CMAKE_COMMAND} "-DPROGRAM=$<TARGET_FILE:${program}>"
      -DCASE=${case} "-DREPORT=${report}" -DSOURCE=${dir}/sanitizer_cases.cpp -P ${dir}/check_report.cmake)
    set_tests_properties(sanitizer.${program}.${case} PROPERTIES LABELS "host;sanitizer")
  endif()
endfunction()

set(asan "-O1;-g;-fsanitize=address,undefined")
set(tsan "-O1;-g;-fsanitize=thread")
giwa_add_flagged_program(tsan_cases sanitizer_cases.cpp "${tsan}")
giwa_add_flagged_program(asan_cases sanitizer_cases.cpp "${asan}")
# Fortified, _longjmp aborts a jump between stacks; distributions switch it on.
giwa_add_flagged_program(fortified_cases sanitizer_cases.cpp "-O2;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3")

giwa_add_sanitizer_test(tsan_cases none "")
foreach(case IN ITEMS sync sync_warp blocks grid phase)
  giwa_add_sanitizer_test(tsan_cases ${case} "ThreadSanitizer: data race")
endforeach()
giwa_add_sanitizer_test(asan_cases none "")
foreach(case IN ITEMS overflow underflow memory)
  giwa_add_sanitizer_test(asan_cases ${case} "AddressSanitizer: heap-buffer-overflow")
endforeach()
giwa_add_sanitizer_test(fortified_cases none "")

# The tests themselves. Not host_executor_test under ThreadSanitizer: its ops share variables without a barrier.
giwa_add_flagged_program(asan_host_executor host_executor_test.cpp "${asan}" giwa_test_main)
giwa_add_flagged_program(asan_host_for_all host_for_all_test.cpp "${asan}" giwa_test_main)
giwa_add_flagged_program(tsan_host_for_all host_for_all_test.cpp "${tsan}" giwa_test_main)
foreach(program IN ITEMS asan_host_executor asan_host_for_all tsan_host_for_all)
  if(TARGET ${program})
    add_test(NAME sanitizer.${program} COMMAND ${CMAKE_COMMAND} "-DPROGRAM=$<TARGET_FILE:${program}>" -DCASE= -DREPORT=
      -P ${dir}/check_report.cmake)
    set_tests_properties(sanitizer.${program} PROPERTIES LABELS "host;sanitizer")
  endif()
endforeach()

# Numbers that attention reads from memory, INT_MIN among them. Without AddressSanitizer, which takes three times as long to
# compile.
giwa_add_flagged_program(ubsan_hostile_numbers ../attention/hostile_numbers_test.cpp "-O1;-g1;-fsanitize=undefined"
  giwa_test_main)
if(TARGET ubsan_hostile_numbers)
  add_test(NAME sanitizer.ubsan_hostile_numbers COMMAND ${CMAKE_COMMAND}
    "-DPROGRAM=$<TARGET_FILE:ubsan_hostile_numbers>" -DCASE= -DREPORT= -P ${dir}/check_report.cmake)
  set_tests_properties(sanitizer.ubsan_hostile_numbers PROPERTIES LABELS "host;sanitizer")
endif()

# Ops of tiles, softmax and attention under ThreadSanitizer: two threads that write one element, or a missing barrier. The
# host compiler compiles those that include portable headers alone, as docs/host_executor.md says; nvcc compiles the others,
# for one architecture, because only their host part runs.
if(TARGET tsan_host_for_all)
  foreach(test IN ITEMS tile/copy tile/pipeline tile/transpose tile/matmul softmax/row_op softmax/online
      attention/simt)
    string(REPLACE "/" "_" name tsan_${test})
    set(source ${dir}/../${test}_test.cu)
    if(test MATCHES "copy|pipeline|transpose")
      file(CONFIGURE OUTPUT ${name}.cpp CONTENT "#include \"${source}\"\n")
      set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
    endif()
    add_executable(${name} ${source})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/test)
    target_compile_definitions(${name} PRIVATE GIWA_TEST_HOST_ONLY)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1;-g1;-fsanitize=thread>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-O1,-g1,-fsanitize=thread>)
    target_link_options(${name} PRIVATE -fsanitize=thread)
    target_link_libraries(${name} PRIVATE giwa::giwa giwa_warnings giwa_test_main CUDA::cudart_static)
    giwa_device_code_never_runs(${name})
    add_test(NAME sanitizer.${name} COMMAND ${CMAKE_COMMAND} -E env GIWA_TEST_SMALL=1
      ${CMAKE_COMMAND} "-DPROGRAM=$<TARGET_FILE:${name}>" -DCASE= -DREPORT= -P ${dir}/check_report.cmake)
    set_tests_properties(sanitizer.${name} PROPERTIES LABELS "host;sanitizer")
  endforeach()
endif()
