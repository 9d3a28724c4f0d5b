# SPDX-License-Identifier: MIT
# Checks one claim: FILE compiles, and with GIWA_COMPILE_FAIL defined it does not, for the reason its first line states.
# Line 1 is `// EXPECT: part of the message`; line 2 may be `// FLAGS: more compiler flags`.

file(STRINGS ${FILE} lines LIMIT_COUNT 2)
list(POP_FRONT lines expect flags)
if(NOT expect MATCHES "^// EXPECT: (.+)$")
  message(FATAL_ERROR "${FILE}: line 1 has to be `// EXPECT: part of the compiler's message`")
endif()
set(sentence "${CMAKE_MATCH_1}")
set(more_flags "")
if(flags MATCHES "^// FLAGS: (.+)$")
  separate_arguments(more_flags UNIX_COMMAND "${CMAKE_MATCH_1}")
endif()

execute_process(COMMAND ${COMPILE} ${more_flags} ${FILE} RESULT_VARIABLE failed ERROR_VARIABLE message OUTPUT_VARIABLE message)
if(failed)
  message(FATAL_ERROR "${FILE} has to compile where GIWA_COMPILE_FAIL is not defined:\n${message}")
endif()
execute_process(COMMAND ${COMPILE} ${more_flags} -DGIWA_COMPILE_FAIL ${FILE}
  RESULT_VARIABLE failed ERROR_VARIABLE message OUTPUT_VARIABLE message)
if(NOT failed)
  message(FATAL_ERROR "${FILE} compiles with GIWA_COMPILE_FAIL, where it has to fail with: ${sentence}")
endif()
string(FIND "${message}" "${sentence}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "${FILE} fails, but not with: ${sentence}\n${message}")
endif()
