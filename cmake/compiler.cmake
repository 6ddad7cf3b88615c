# Warnings are errors, everywhere. Sanitizers and ccache are switched here and nowhere else.
find_program(INFINIGEN_CCACHE ccache)
if(INFINIGEN_CCACHE)
  # Precompiled headers are kept only by a ccache that may overlook their time stamps.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${INFINIGEN_CCACHE})
endif()

add_library(infinigen_options INTERFACE)
target_include_directories(infinigen_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
# Of g++ alone: nvcc has others, where its target is made.
function(infinigen_options_for_cxx)
  foreach(flag ${ARGN})
    target_compile_options(infinigen_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${flag}>)
  endforeach()
endfunction()
infinigen_options_for_cxx(
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Wundef -Werror
  -Wno-missing-field-initializers  # designated initialisers leave members at their defaults on purpose
  -fno-math-errno)  # sqrt and friends inline; no value changes
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports false positives for std::string and std::variant under -O2.
  infinigen_options_for_cxx(-Wno-restrict -Wno-maybe-uninitialized)
endif()
# One rounding per written operation: a fused multiply-add appears only where the code asks for it, so a result does not
# depend on the inlining decisions of a compiler.
infinigen_options_for_cxx(-ffp-contract=off)
if(INFINIGEN_SANITIZE)
  target_compile_options(infinigen_options INTERFACE -fsanitize=${INFINIGEN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(infinigen_options INTERFACE -fsanitize=${INFINIGEN_SANITIZE})
  if(INFINIGEN_SANITIZE MATCHES "address")
    target_compile_definitions(infinigen_options INTERFACE INFINIGEN_ASAN)  # read by tensor/buffer.cc
  endif()
  if(INFINIGEN_SANITIZE MATCHES "address.*undefined")
    # The address sanitizer stops at the access that these three announce; they were a third of the compile time.
    target_compile_options(infinigen_options INTERFACE -fno-sanitize=null,object-size,pointer-overflow)
  endif()
endif()

# In a sanitized build a call for each checked access instead of its code in place: compiled in three quarters of the time, and slower,
# so for code that is much to compile and little to run.
function(infinigen_checks_by_call name)
  if(INFINIGEN_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${name} PRIVATE "SHELL:-mllvm -asan-instrumentation-with-call-threshold=0")
  endif()
endfunction()

# infinigen_library(NAME SOURCES... ): one static library per module directory.
function(infinigen_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC infinigen_options)
endfunction()
