# SPDX-License-Identifier: MIT
# Configures a consumer with a toolkit of CUDA 12.3: the installed package and the sources must both refuse it, in words.

# What CMake looks at: nvcc's answer to --version, a header that exists, a runtime to link.
file(REMOVE_RECURSE ${FOLDER})
file(WRITE ${FOLDER}/cuda/bin/nvcc "#!/bin/sh\necho 'Cuda compilation tools, release 12.3, V12.3.107'\n")
file(CHMOD ${FOLDER}/cuda/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
file(WRITE ${FOLDER}/cuda/include/cuda_runtime.h "#define CUDART_VERSION 12030\n")
file(WRITE ${FOLDER}/cuda/lib64/libcudart.so "")
file(WRITE ${FOLDER}/cuda/version.json "{\"cuda\": {\"version\": \"12.3.107\"}}\n")

foreach(route IN ITEMS find_package add_subdirectory)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/test/consumer -B ${FOLDER}/${route} -DGIWA_ROUTE=${route}
    -DCMAKE_PREFIX_PATH=${STAGE} -DGIWA_SOURCE=${SOURCE} -DCUDAToolkit_ROOT=${FOLDER}/cuda
    -DCONSUMER_LANGUAGES=CXX -DCONSUMER_SOURCES=host_only.cpp
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " words "${output}") # CMake breaks lines
  if(NOT failed OR NOT words MATCHES "giwa needs the CUDA toolkit 12\\.4 or newer \\(found 12\\.3\\.107, [^ ]*cuda/bin\\)")
    message(FATAL_ERROR "${route} was not refused for its toolkit:\n${output}")
  endif()
endforeach()
