# SPDX-License-Identifier: MIT
# Checks that failing assertions fail, and what they report: -DPROGRAM=<reports> -P reports.cmake.

execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(NOT failed EQUAL 1)
  message(FATAL_ERROR "the exit status is ${failed}, and has to be 1:\n${text}")
endif()
foreach(part IN ITEMS
    "of(1) == 2" "1 == 2" "3 < 2" "\"left\" == \"right\"" "{ 1, 2 } == { 1, 3 }" "0.5 >= 0.75" "CHECK_FALSE" "no exception"
    "REQUIRE( of(5) != 5 )" "5 != 5" "REQUIRE_FALSE" "stop 8" "thrown nine" "before the exception"
    "a number 13, a string s" "x := 10" "of(y) := 11" "14 == 15" "only once 16" "21 == 22" "23 == 24" "first" "second"
    "types - int" "types - (pair_of<1, 2>)" "list - 0" "list - 1" "a warning 26"
    "1 passed | 11 failed")
  string(FIND "${text}" "${part}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "the report lacks `${part}`:\n${text}")
  endif()
endforeach()
foreach(part IN ITEMS "gone 12" "6 == 7")
  string(FIND "${text}" "${part}" position)
  if(NOT position EQUAL -1)
    message(FATAL_ERROR "the report has `${part}`, which it must not:\n${text}")
  endif()
endforeach()
string(REGEX MATCHALL "only once 16" times "${text}")
list(LENGTH times times)
if(NOT times EQUAL 1)
  message(FATAL_ERROR "what is told once is told ${times} times:\n${text}")
endif()
