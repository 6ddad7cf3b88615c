# xgrammar (Apache-2.0): grammars of answers. Its C++ core is built from the source distribution that
# scripts/get_xgrammar.sh unpacks; without it, the server refuses response_format and grammar.
set(INFINIGEN_XGRAMMAR_VERSION 0.2.8)
option(INFINIGEN_XGRAMMAR "Build grammars of answers where xgrammar's sources are found" ON)
set(INFINIGEN_XGRAMMAR_DIR "" CACHE PATH "Sources of xgrammar; empty: where scripts/get_xgrammar.sh puts them")

if(INFINIGEN_XGRAMMAR AND NOT INFINIGEN_SANITIZE)  # a sanitizer build would compile it a second time
  set(cache $ENV{XDG_CACHE_HOME})
  if(NOT cache)
    set(cache $ENV{HOME}/.cache)
  endif()
  set(xgrammar_dir ${cache}/infinigen/sources/xgrammar-${INFINIGEN_XGRAMMAR_VERSION})
  if(INFINIGEN_XGRAMMAR_DIR)
    set(xgrammar_dir ${INFINIGEN_XGRAMMAR_DIR})
  endif()
  if(EXISTS ${xgrammar_dir}/include/xgrammar/xgrammar.h)
    file(GLOB_RECURSE xgrammar_sources ${xgrammar_dir}/cpp/*.cc)
    list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")  # the Python bindings
    add_library(infinigen_xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
    target_include_directories(infinigen_xgrammar SYSTEM PUBLIC
      ${xgrammar_dir}/include ${xgrammar_dir}/3rdparty/picojson ${xgrammar_dir}/3rdparty/dlpack/include)
    target_compile_definitions(infinigen_xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0)
    target_compile_options(infinigen_xgrammar PRIVATE -w -O2)
    set_target_properties(infinigen_xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD OFF)
    message(STATUS "Grammars of answers: xgrammar ${INFINIGEN_XGRAMMAR_VERSION}")
  else()
    message(STATUS "Grammars of answers: none, no xgrammar in ${xgrammar_dir} (scripts/get_xgrammar.sh)")
  endif()
endif()
