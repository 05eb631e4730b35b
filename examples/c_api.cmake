# The C API, from C and from Python.
enable_language(C)
add_executable(example_c_prefix c_prefix.c)
set_target_properties(example_c_prefix PROPERTIES OUTPUT_NAME c_prefix C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(example_c_prefix PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${TOKI_DEVELOPER}>:-Werror>)
target_link_libraries(example_c_prefix PRIVATE toki::toki)
add_test(NAME example/c_prefix COMMAND example_c_prefix)
set_tests_properties(example/c_prefix PROPERTIES LABELS unit TIMEOUT 60 PASS_REGULAR_EXPRESSION
  "^900 tokens, 0 of them reused: miss\n1000 tokens, 900 of them reused: hit\n$")

# A library with sanitizers does not load into a Python without them.
find_package(Python3 COMPONENTS Interpreter)
if(TARGET toki_shared AND Python3_FOUND AND NOT CMAKE_CXX_FLAGS_DEBUG MATCHES "-fsanitize")
  add_test(NAME example/python_ctypes COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/python_ctypes.py
    $<TARGET_FILE:toki_shared>)
  set_tests_properties(example/python_ctypes PROPERTIES LABELS unit TIMEOUT 60 PASS_REGULAR_EXPRESSION
    "the tree knows 80 of 83 tokens\nreused of the pinned system prompt: 500 500\n$")
endif()
