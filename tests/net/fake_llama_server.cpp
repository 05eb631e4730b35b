// A stand-in for the llama-server program: takes its options, behaves like it on the wire, and
// writes how it was called to the file named by FAKE_LLAMA_LOG, one line a start: "PID ARG ARG
// ...". FAKE_LLAMA_MODE: "old" has no --cache-ram in --help (and refuses it), "dies" ends at once,
// "dies when told" when there is a file FAKE_LLAMA_LOG.die.
#include <cstdio>
#include <cstdlib>
#include <signal.h>
#include <string>
#include <unistd.h>

#include "scripted_upstream.hpp"

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

constexpr const char* kHelp =
    "----- common params -----\n"
    "\n"
    "-h,    --help, --usage                  print usage and exit\n"
    "-c,    --ctx-size N                     size of the prompt context\n"
    "-m,    --model FNAME                    model path to load\n"
    "\n"
    "----- server params -----\n"
    "\n"
    "%s"
    "-np,   --parallel N                     number of server slots (default: -1, -1 = auto)\n"
    "--host HOST                             ip address to listen\n"
    "--port PORT                             port to listen (default: 8080)\n"
    "--metrics                               enable prometheus compatible metrics endpoint\n"
    "--slot-save-path PATH                   path to save slot kv cache (default: disabled)\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = environment("FAKE_LLAMA_MODE");
  std::string line = std::to_string(::getpid());
  int port = 8080;
  toki::test::Behaviour behaviour;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    line += " " + option;
    if (option == "--help" || option == "-h") {
      std::printf(kHelp, mode == "old" ? ""
                                       : "-cram, --cache-ram N                    set the maximum "
                                         "cache size in MiB (default: 8192)\n");
      return 0;
    }
    if (option == "--cache-ram" && mode == "old") {
      std::fprintf(stderr, "error: invalid argument: --cache-ram\n");
      return 1;
    }
    if (i + 1 >= argc) continue;
    if (option == "--port") port = std::atoi(argv[i + 1]);
    if (option == "-np" || option == "--parallel") behaviour.slots = std::atoi(argv[i + 1]);
  }
  if (std::FILE* log = std::fopen(environment("FAKE_LLAMA_LOG").c_str(), "a")) {
    std::fprintf(log, "%s\n", line.c_str());
    std::fclose(log);
  }
  const std::string told = environment("FAKE_LLAMA_LOG") + ".die";
  if (mode == "dies" || (mode == "dies when told" && ::access(told.c_str(), F_OK) == 0)) return 7;
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTERM);
  ::sigaddset(&stop, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  try {
    const toki::test::ScriptedUpstream upstream(behaviour, port);
    int number = 0;
    ::sigwait(&stop, &number);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
