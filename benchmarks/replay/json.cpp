// The one place where Boost.JSON, used from its headers only, is compiled.
#include <boost/json/src.hpp>
