// How long no request has run, told by looks at the engine every now and then.
#pragma once

#include <toki/engine.hpp>

#include <cstdint>

namespace toki::http {

class IdleLooks {
 public:
  // Looks; whether nothing ran at this look and the one before, nor since the one before that: a
  // request may come and end between two looks.
  bool idle(const Engine& engine) {
    const std::uint64_t ended = engine.stats().requests_total;
    const bool still = engine.idle_slots() == engine.slots() && ended == ended_;
    ended_ = ended;
    quiet_ = still ? quiet_ + 1 : 0;
    return quiet_ >= 2;
  }

 private:
  std::uint64_t ended_ = 0;  // requests, at the last look
  int quiet_ = 0;            // looks in a row
};

}  // namespace toki::http
