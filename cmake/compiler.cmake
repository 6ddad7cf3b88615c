# Warnings are errors, everywhere. Sanitizers and ccache are switched here and nowhere else.
find_program(INFINIGEN_CCACHE ccache)
if(INFINIGEN_CCACHE)
  # Precompiled headers are kept only by a ccache that may overlook their time stamps.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${INFINIGEN_CCACHE})
endif()

add_library(infinigen_options INTERFACE)
target_include_directories(infinigen_options INTERFACE ${PROJECT_SOURCE_DIR}/src/json/wrapper ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
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

# The linker of LLVM links an instrumented binary in a fraction of the time.
find_program(INFINIGEN_LLD ld.lld)
if(INFINIGEN_SANITIZE AND INFINIGEN_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_link_options(-fuse-ld=lld)
endif()

# What most files read, precompiled: it is half the work of compiling a small file. Compilers want one precompiled file for each level of
# optimisation. Where each file is compiled alone (preset dev) there is none, so that a missing include is seen there.
set(INFINIGEN_COMMON_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem> <fstream>
    <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <string> <string_view> <thread> <utility>
    <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>)
function(infinigen_headers name)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/headers.cc)
  target_link_libraries(${name} PRIVATE infinigen_options)
  target_compile_options(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE ${INFINIGEN_COMMON_HEADERS})
endfunction()

# Parsers of foreign bytes and what they stand on. For the fuzz targets they are instrumented for coverage, in place: the other tests of
# that build use the same libraries.
set(INFINIGEN_FUZZED_LIBRARIES infinigen_base infinigen_json infinigen_jinja infinigen_text infinigen_hub_input infinigen_loader infinigen_model_input
    infinigen_kv infinigen_eval_input infinigen_cli_input infinigen_server_input infinigen_http infinigen_http_client infinigen_server)

# How a library is optimised. Release: -O3, and -O1 where it computes little (LIGHT), which saves a third of the compile time. With
# sanitizers: not at all, which saves more than half, and -O1 where the tests spend their time (HOT).
set(INFINIGEN_LIGHT_OPTIONS)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(INFINIGEN_LIGHT_OPTIONS -O1)
endif()
if(CMAKE_UNITY_BUILD)
  infinigen_headers(infinigen_headers_plain)
  if(INFINIGEN_LIGHT_OPTIONS)
    infinigen_headers(infinigen_headers_light ${INFINIGEN_LIGHT_OPTIONS})
  endif()
  if(INFINIGEN_FUZZ)
    infinigen_headers(infinigen_headers_fuzzed -fsanitize=fuzzer-no-link)
  endif()
endif()
function(infinigen_optimise name kind)
  if(INFINIGEN_FUZZ AND name IN_LIST INFINIGEN_FUZZED_LIBRARIES)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(kind STREQUAL "hot")
    target_compile_options(${name} PRIVATE -O1)
    return()  # no precompiled headers of its level
  endif()
  if(kind STREQUAL "light" AND INFINIGEN_LIGHT_OPTIONS)
    target_compile_options(${name} PRIVATE ${INFINIGEN_LIGHT_OPTIONS})
  elseif(INFINIGEN_FUZZ AND name IN_LIST INFINIGEN_FUZZED_LIBRARIES)
    set(kind fuzzed)
  else()
    set(kind plain)
  endif()
  if(CMAKE_UNITY_BUILD)
    target_precompile_headers(${name} REUSE_FROM infinigen_headers_${kind})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 12 has false positives in the standard library too, which it holds back only where the header is not precompiled.
      target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds> $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>)
    endif()
  endif()
endfunction()

# infinigen_library(NAME [LIGHT] [HOT] SOURCES... ): one static library per module directory.
function(infinigen_library name)
  cmake_parse_arguments(ARG "LIGHT;HOT" "" "" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC infinigen_options)
  if(ARG_HOT AND INFINIGEN_SANITIZE)
    infinigen_optimise(${name} hot)
  elseif(ARG_LIGHT)
    infinigen_optimise(${name} light)
  else()
    infinigen_optimise(${name} plain)
  endif()
endfunction()
