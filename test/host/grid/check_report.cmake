# SPDX-License-Identifier: MIT
# Runs PROGRAM CASE under its sanitizer. With REPORT, it has to fail with that text and with the file and line of SOURCE that
# ends in `// flaw: CASE`; without, it has to succeed and the sanitizer has to be silent.

set(ENV{TSAN_OPTIONS} "halt_on_error=1") # the first report is the one to look at
set(ENV{ASAN_OPTIONS} "")
execute_process(COMMAND ${PROGRAM} ${CASE} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(output MATCHES "unexpected memory mapping")
  # Older ThreadSanitizers cannot start where the kernel randomises addresses over more than 28 bits.
  execute_process(COMMAND setarch -R ${PROGRAM} ${CASE} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
endif()

if(REPORT STREQUAL "")
  if(NOT result EQUAL 0 OR output MATCHES "Sanitizer|runtime error")
    message(FATAL_ERROR "${PROGRAM} ${CASE} has to succeed without a report; it ended with ${result}:\n${output}")
  endif()
  return()
endif()

# Up to the marker, as one string: the number of its line is the number of line ends before it, plus one.
file(READ ${SOURCE} text)
string(FIND "${text}" "// flaw: ${CASE}\n" position)
if(position EQUAL -1)
  message(FATAL_ERROR "${SOURCE} has no line with `// flaw: ${CASE}`")
endif()
string(SUBSTRING "${text}" 0 ${position} text)
string(REGEX REPLACE "[^\n]" "" text "${text}")
string(LENGTH "${text}" flawed)
math(EXPR flawed "${flawed} + 1")
get_filename_component(file ${SOURCE} NAME)
if(result EQUAL 0 OR NOT output MATCHES "${REPORT}" OR NOT output MATCHES "${file}:${flawed}[^0-9]")
  message(FATAL_ERROR "${PROGRAM} ${CASE} has to fail with '${REPORT}' at ${file}:${flawed}; it ended with ${result}:\n${output}")
endif()
