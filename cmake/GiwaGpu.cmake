# SPDX-License-Identifier: MIT
# What only a GPU executes: whether it is built, for which architectures, and how device code that never runs is compiled.
include_guard(GLOBAL)

set(GIWA_GPU AUTO CACHE STRING
  "Build and register what only a GPU executes: ON, OFF, or AUTO, which is ON where nvidia-smi finds a GPU or GIWA_REQUIRE_GPU is set")
set(GIWA_GPU_SLICE "" CACHE STRING "Without a GPU, build this part of what only a GPU executes; 2/8 is the third of eight")

execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
  RESULT_VARIABLE giwa_smi_failed OUTPUT_VARIABLE giwa_capabilities ERROR_QUIET)
string(REGEX MATCHALL "[0-9]+\\.[0-9]" giwa_capabilities "${giwa_capabilities}")
if(giwa_smi_failed)
  set(giwa_capabilities "")
endif()

set(GIWA_ON_GPU ${GIWA_GPU})
if(GIWA_GPU STREQUAL "AUTO")
  set(GIWA_ON_GPU OFF)
  if(giwa_capabilities OR NOT "$ENV{GIWA_REQUIRE_GPU}" MATCHES "^0?$")
    set(GIWA_ON_GPU ON)
  endif()
endif()

# CMAKE_CUDA_ARCHITECTURES=native is an error on a machine without a GPU. Here that machine gets the architectures giwa has
# code for.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  list(REMOVE_DUPLICATES giwa_capabilities)
  list(TRANSFORM giwa_capabilities REPLACE "\\." "")
  list(TRANSFORM giwa_capabilities REPLACE "^90$" "90a") # compute_90 alone has no wgmma
  list(TRANSFORM giwa_capabilities APPEND "-real")
  if(giwa_capabilities)
    message(STATUS "giwa: building for the GPU of this machine: ${giwa_capabilities}")
  else()
    set(giwa_capabilities 80-real 90a-real)
    message(STATUS "giwa: no GPU found: GPU programs are for ${giwa_capabilities}")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${giwa_capabilities} CACHE STRING "architectures to build for")
endif()

# The kernels of this program never run: one architecture, and as few optimisations as nvcc allows. What ptxas warns of is
# not about such code.
include(CheckCompilerFlag)
function(giwa_device_code_never_runs target)
  check_compiler_flag(CUDA --Ofast-compile=max GIWA_HAS_FAST_COMPILE)
  if(GIWA_HAS_FAST_COMPILE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:--Ofast-compile=max>)
  endif()
  set(kind virtual) # PTX alone, without ptxas
  if(GIWA_ON_GPU)
    set(kind real) # a driver would compile PTX when the program starts
  endif()
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 80-${kind} GIWA_LOCAL_MEMORY ON)
endfunction()

# Compiles the host's part of this program in half the time; where a GPU is, so are cores. A .cu has -O1 anyway, see
# giwa_compile_cuda_quickly.
function(giwa_compile_quickly target)
  if(NOT GIWA_ON_GPU)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# The host's part of all .cu files, once CUDA is enabled: nvcc puts its own -O3 behind an -O1 of -Xcompiler, and warns of two -O
# of its own. Device code is compiled as before.
macro(giwa_compile_cuda_quickly)
  if(NOT GIWA_ON_GPU)
    string(REPLACE "-O3" "-O1" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
  endif()
endmacro()

# Takes this program out of `all`, unless it belongs to the slice; the target gpu_programs builds it. A second argument is set to
# whether it belongs to it.
function(giwa_only_compile target)
  # At -O1 g++ follows fewer paths, and warns of more variables; a warning it stays.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wno-error=maybe-uninitialized>)
  get_property(programs GLOBAL PROPERTY GIWA_GPU_PROGRAMS)
  list(LENGTH programs index)
  set_property(GLOBAL APPEND PROPERTY GIWA_GPU_PROGRAMS ${target})
  giwa_in_slice(chosen ${index})
  if(chosen)
    set_property(GLOBAL APPEND PROPERTY GIWA_GPU_PROGRAMS_OF_SLICE ${target})
  else()
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  if(ARGC GREATER 1)
    set(${ARGV1} ${chosen} PARENT_SCOPE)
  endif()
endfunction()

# Whether the slice has the item of this index.
function(giwa_in_slice variable index)
  set(${variable} OFF PARENT_SCOPE)
  if(GIWA_GPU_SLICE MATCHES "^([0-9]+)/([1-9][0-9]*)$")
    math(EXPR rest "(${index} - ${CMAKE_MATCH_1}) % ${CMAKE_MATCH_2}")
    if(rest EQUAL 0)
      set(${variable} ON PARENT_SCOPE)
    endif()
  elseif(NOT GIWA_GPU_SLICE STREQUAL "")
    message(FATAL_ERROR "giwa: GIWA_GPU_SLICE=${GIWA_GPU_SLICE} is not of the form 2/8")
  endif()
endfunction()

# To be called last: the targets of all programs that only a GPU executes and of everything, and what was left out.
function(giwa_report_gpu_programs)
  get_property(programs GLOBAL PROPERTY GIWA_GPU_PROGRAMS)
  get_property(slice GLOBAL PROPERTY GIWA_GPU_PROGRAMS_OF_SLICE)
  add_custom_target(gpu_programs)
  if(programs)
    add_dependencies(gpu_programs ${programs})
    list(LENGTH programs count)
    list(LENGTH slice built)
    math(EXPR left "${count} - ${built}")
    message(STATUS "giwa: no GPU: ${count} programs that only a GPU executes are no tests of this build; ${left} of them are not "
      "compiled: the target gpu_programs does, or -DGIWA_GPU=ON")
    if(slice)
      list(JOIN slice " " slice)
      message(STATUS "giwa: compiled of them, slice ${GIWA_GPU_SLICE}: ${slice}")
    endif()
  endif()
  # All programs and headers of this build, and of the examples all that .ci/architectures.py compiles by turns.
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(NOT Python3_FOUND)
    return() # the tests do not need it
  endif()
  add_custom_target(everything COMMAND ${CMAKE_COMMAND} -E env CUDACXX=${CMAKE_CUDA_COMPILER}
    ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/.ci/architectures.py --slice 0/1 USES_TERMINAL VERBATIM)
  set(folders ${PROJECT_SOURCE_DIR}/test)
  foreach(name IN ITEMS examples bench)
    string(TOUPPER GIWA_BUILD_${name} built)
    if(${built})
      list(APPEND folders ${PROJECT_SOURCE_DIR}/${name})
    endif()
  endforeach()
  while(folders)
    list(POP_FRONT folders folder)
    get_property(inner DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    list(APPEND folders ${inner})
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
      get_target_property(type ${target} TYPE)
      if(type MATCHES "EXECUTABLE|LIBRARY")
        add_dependencies(everything ${target})
      endif()
    endforeach()
  endwhile()
endfunction()
