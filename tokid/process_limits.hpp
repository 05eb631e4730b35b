// What the process asks of its machine once, at the start: memory and descriptors.
#pragma once

#include <cstddef>

namespace tokid {

/// Large buffers go back to the system when they are freed.
void give_back_large_buffers();

/// As many descriptors as the process may have.
void raise_descriptor_limit();

/// How many connections of clients the descriptors suffice for, each with one to the backend.
std::size_t most_connections();

}  // namespace tokid
