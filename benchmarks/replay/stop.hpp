// The wish to end early: SIGINT, SIGTERM or SIGHUP. Every wait of the program also waits for it.
// A second signal ends the program at once; its children then die with it.
#pragma once

namespace replay::stop {

void install();
bool requested();
/// Readable once a stop is requested; -1 before install().
int fd();
/// The signal that asked for it, or 0.
int signal_number();

}  // namespace replay::stop
