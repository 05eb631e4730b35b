// print_turns: the agents workload of toki-replay, with its default settings, as lines
// "agent<TAB>role<TAB>text" in the order in which it is sent.
#include <cstdio>

#include "json.hpp"
#include "workload.hpp"

int main() {
  replay::Workload workload = replay::make_agents({});
  replay::put_in_order(workload, {});
  for (const replay::Request& request : workload.requests) {
    for (const auto& message : request.body.at("messages").as_array()) {
      std::printf("%zu\t%s\t%s\n", request.session, message.at("role").as_string().c_str(),
                  message.at("content").as_string().c_str());
    }
  }
}
