// A SQLite VFS that does what the default one does, until it is told to fail. It never waits for
// the disk: tests end processes, not the power. Registered under kFaultVfs when it is first asked
// for.
#pragma once

namespace toki::test {

inline constexpr const char* kFaultVfs = "toki-fault";

/// Faults are set for all connections that use the VFS, from any thread.
class FaultVfs {
 public:
  static FaultVfs& get();

  /// No faults; starts to count from 0.
  void heal();
  /// The call number `number` (from 0) fails, or that one and all after it. A failing write writes
  /// half of what it was given.
  void fail(long number, bool onwards);
  /// Every write gives SQLITE_FULL.
  void fill_disk();
  /// Calls since heal() or fail().
  long calls() const;

 private:
  FaultVfs();
};

}  // namespace toki::test
