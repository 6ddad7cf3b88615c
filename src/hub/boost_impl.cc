// Boost's function bodies, compiled once here (see CMakeLists.txt) instead of in every file that includes its headers.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
