# cmake -DOUTPUT=FILE.cc -DFILES="a|b" -P embed.cmake: files as arrays of bytes, for server/web_files.h.
string(REPLACE "|" ";" files "${FILES}")
set(arrays "")
set(table "")
set(number 0)
foreach(file IN LISTS files)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  get_filename_component(name ${file} NAME)
  string(APPEND arrays "const unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${name}\", Bytes(kFile${number}, sizeof(kFile${number}))},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/embed.cmake.
#include \"server/web_files.h\"

#include <array>

namespace infinigen {
namespace {

${arrays}
std::string_view Bytes(const unsigned char* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size - 1};  // without the zero that lets a file be empty
}

}  // namespace

std::span<const WebFile> WebFiles() {
  static const std::array<WebFile, ${number}> files = {{
${table}  }};
  return files;
}

}  // namespace infinigen
")
