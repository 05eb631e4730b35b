# Writes the page PAGE as the C++ file OUT, with the hashes by which its script and style are allowed.
cmake_minimum_required(VERSION 3.25)
file(READ "${PAGE}" page)

# The text between the only <tag> and the only </tag>, hashed as browsers want it.
function(source_of tag result)
  string(FIND "${page}" "<${tag}>" begin)
  string(FIND "${page}" "</${tag}>" end)
  string(FIND "${page}" "</${tag}>" last REVERSE)
  string(LENGTH "<${tag}>" skipped)
  math(EXPR begin "${begin} + ${skipped}")
  math(EXPR length "${end} - ${begin}")
  if(begin LESS skipped OR length LESS 0 OR NOT end EQUAL last)
    message(FATAL_ERROR "${PAGE} must have one <${tag}>")
  endif()
  string(SUBSTRING "${page}" ${begin} ${length} text)
  string(SHA256 hex "${text}")
  base64("${hex}00" coded)  # 32 bytes and one more, so that threes go on
  string(SUBSTRING "${coded}" 0 43 coded)
  set(${result} "sha256-${coded}=" PARENT_SCOPE)
endfunction()

# Three bytes, six hexadecimal digits, become four characters.
function(base64 hex result)
  set(letters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(LENGTH "${hex}" digits)
  math(EXPR last "${digits} - 6")
  foreach(at RANGE 0 ${last} 6)
    string(SUBSTRING "${hex}" ${at} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR letter "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING ${letters} ${letter} 1 letter)
      string(APPEND coded ${letter})
    endforeach()
  endforeach()
  set(${result} ${coded} PARENT_SCOPE)
endfunction()

source_of(script script)
source_of(style style)
file(WRITE "${OUT}" "#include \"dashboard.hpp\"

namespace tokid {

const std::string_view kDashboard = R\"page(${page})page\";
const std::string_view kDashboardScript = \"${script}\";
const std::string_view kDashboardStyle = \"${style}\";

}  // namespace tokid
")
