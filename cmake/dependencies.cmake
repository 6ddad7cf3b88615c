# Third-party packages; their Debian 12 names are in scripts/install_packages.sh.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
pkg_check_modules(fmt REQUIRED IMPORTED_TARGET fmt)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)  # SIMD; Debian ships pkg-config files only
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)  # checksums, identity of a model
if(INFINIGEN_PROGRAM)
  find_package(CLI11 REQUIRED)
  pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)  # line editing of `chat`
endif()
if(INFINIGEN_PROGRAM OR INFINIGEN_DOWNLOADS)
  find_package(OpenSSL REQUIRED)  # TLS of downloads, TLS and keys of `serve`
  find_package(Boost 1.81 REQUIRED)  # headers alone: Beast and Asio, for HTTP
endif()
