// The one place where the non-template parts of Asio and Beast are compiled, their parser among them.
#include <boost/asio/impl/src.hpp>

// An assertion of Beast 1.81 does not hold (basic_parser::parse_chunk_header: n >= 5): a chunked message
// without content whose trailer arrives in small pieces is read rightly, but would end the process of a
// build with assertions.
#define BOOST_DISABLE_ASSERTS
#include <boost/assert.hpp>
#include <boost/beast/src.hpp>
