# SPDX-License-Identifier: MIT
# giwa_compile_once: a library with the calls of a project, each compiled once, for files that only declare them.

# giwa_compile_once(<target> <file.cu> <instance>...) adds a static library that compiles the file once for each instance, in
# parallel. The macro GIWA_INSTANCE is the instance there, such as "128, giwa::causal", and the file ends with
#   template giwa::status attend<GIWA_INSTANCE>(cudaStream_t, ...);
# Files that call attend() need its declaration and no nvcc; their targets link the library.
function(giwa_compile_once target file)
  cmake_path(ABSOLUTE_PATH file)
  set(number 0)
  foreach(instance IN LISTS ARGN)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}/instance_${number}.cu)
    file(CONFIGURE OUTPUT ${source} CONTENT "#define GIWA_INSTANCE ${instance}\n#include \"${file}\"\n" @ONLY)
    list(APPEND sources ${source})
    math(EXPR number "${number} + 1")
  endforeach()
  if(NOT sources)
    message(FATAL_ERROR "giwa_compile_once(${target} ...): name at least one instance, such as \"128, giwa::causal\"")
  endif()
  add_library(${target} STATIC ${sources})
  target_link_libraries(${target} PUBLIC giwa::giwa)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON) # shared libraries may link it
endfunction()
