// Runs a coroutine of the library on an io_context that another thread runs, and waits for it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

#include <future>
#include <utility>

namespace toki::test {

template <class T>
boost::asio::awaitable<void> keep_result(boost::asio::awaitable<T> call, std::promise<T>& result) {
  result.set_value(co_await std::move(call));
}

template <class T>
T run_call(boost::asio::io_context& io, boost::asio::awaitable<T> call) {
  std::promise<T> result;
  auto future = result.get_future();
  boost::asio::co_spawn(io, keep_result(std::move(call), result), boost::asio::detached);
  return future.get();
}

}  // namespace toki::test
