#include "support/fault_vfs.hpp"

#include <atomic>
#include <limits>

#include <sqlite3.h>

namespace toki::test {
namespace {

constexpr long kNever = std::numeric_limits<long>::max();
std::atomic<long> calls_made{0};
std::atomic<long> first_fault{kNever};
std::atomic<bool> faults_go_on{false};
std::atomic<bool> disk_full{false};

bool fails() {
  const long call = calls_made++;
  const long first = first_fault;
  return call == first || (call > first && faults_go_on);
}

sqlite3_vfs* real_vfs() {
  static sqlite3_vfs* const vfs = sqlite3_vfs_find(nullptr);
  return vfs;
}

/// Followed in memory by the real file.
struct File {
  sqlite3_file base;
};

sqlite3_file* real(sqlite3_file* file) {
  return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1);
}

// The io_methods: a fault, or what the real file does.
int close(sqlite3_file* file) {
  return real(file)->pMethods->xClose(real(file));
}
int read(sqlite3_file* file, void* to, int size, sqlite3_int64 offset) {
  return fails() ? SQLITE_IOERR_READ : real(file)->pMethods->xRead(real(file), to, size, offset);
}
int write(sqlite3_file* file, const void* from, int size, sqlite3_int64 offset) {
  if (disk_full) return SQLITE_FULL;
  const bool fault = fails();
  const int code = real(file)->pMethods->xWrite(real(file), from, fault ? size / 2 : size, offset);
  return fault ? SQLITE_IOERR_WRITE : code;
}
int truncate(sqlite3_file* file, sqlite3_int64 size) {
  return fails() ? SQLITE_IOERR_TRUNCATE : real(file)->pMethods->xTruncate(real(file), size);
}
int sync(sqlite3_file*, int) {
  return fails() ? SQLITE_IOERR_FSYNC : SQLITE_OK;
}
int file_size(sqlite3_file* file, sqlite3_int64* size) {
  return fails() ? SQLITE_IOERR_FSTAT : real(file)->pMethods->xFileSize(real(file), size);
}
int lock(sqlite3_file* file, int level) {
  return fails() ? SQLITE_IOERR_LOCK : real(file)->pMethods->xLock(real(file), level);
}
int unlock(sqlite3_file* file, int level) {
  return real(file)->pMethods->xUnlock(real(file), level);
}
int check_reserved(sqlite3_file* file, int* held) {
  return fails() ? SQLITE_IOERR_CHECKRESERVEDLOCK
                 : real(file)->pMethods->xCheckReservedLock(real(file), held);
}
int control(sqlite3_file* file, int what, void* argument) {
  return real(file)->pMethods->xFileControl(real(file), what, argument);
}
int sector_size(sqlite3_file* file) {
  return real(file)->pMethods->xSectorSize(real(file));
}
int characteristics(sqlite3_file* file) {
  return real(file)->pMethods->xDeviceCharacteristics(real(file));
}
int shm_map(sqlite3_file* file, int region, int size, int extend, volatile void** memory) {
  return fails() ? SQLITE_IOERR_SHMMAP
                 : real(file)->pMethods->xShmMap(real(file), region, size, extend, memory);
}
int shm_lock(sqlite3_file* file, int offset, int count, int flags) {
  const bool fault = (flags & SQLITE_SHM_LOCK) != 0 && fails();
  return fault ? SQLITE_IOERR_SHMLOCK
               : real(file)->pMethods->xShmLock(real(file), offset, count, flags);
}
void shm_barrier(sqlite3_file* file) {
  real(file)->pMethods->xShmBarrier(real(file));
}
int shm_unmap(sqlite3_file* file, int remove) {
  return real(file)->pMethods->xShmUnmap(real(file), remove);
}

const sqlite3_io_methods kMethods{2,
                                  close,
                                  read,
                                  write,
                                  truncate,
                                  sync,
                                  file_size,
                                  lock,
                                  unlock,
                                  check_reserved,
                                  control,
                                  sector_size,
                                  characteristics,
                                  shm_map,
                                  shm_lock,
                                  shm_barrier,
                                  shm_unmap,
                                  nullptr,
                                  nullptr};

// The vfs: as the real one but for these.
int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;
  if (fails()) return SQLITE_CANTOPEN;
  const int code = real_vfs()->xOpen(real_vfs(), name, real(file), flags, out_flags);
  if (real(file)->pMethods != nullptr) file->pMethods = &kMethods;
  return code;
}
int remove(sqlite3_vfs*, const char* name, int) {
  return fails() ? SQLITE_IOERR_DELETE : real_vfs()->xDelete(real_vfs(), name, 0);
}
int access(sqlite3_vfs*, const char* name, int flags, int* result) {
  return fails() ? SQLITE_IOERR_ACCESS : real_vfs()->xAccess(real_vfs(), name, flags, result);
}
int full_path(sqlite3_vfs*, const char* name, int size, char* out) {
  return real_vfs()->xFullPathname(real_vfs(), name, size, out);
}

}  // namespace

FaultVfs& FaultVfs::get() {
  static FaultVfs vfs;
  return vfs;
}

FaultVfs::FaultVfs() {
  static sqlite3_vfs vfs = *real_vfs();
  vfs.szOsFile += static_cast<int>(sizeof(File));
  vfs.pNext = nullptr;
  vfs.zName = kFaultVfs;
  vfs.xOpen = open;
  vfs.xDelete = remove;
  vfs.xAccess = access;
  vfs.xFullPathname = full_path;
  sqlite3_vfs_register(&vfs, 0);
}

void FaultVfs::heal() {
  fail(kNever, false);
  disk_full = false;
}

void FaultVfs::fail(long number, bool onwards) {
  faults_go_on = onwards;
  first_fault = number;
  calls_made = 0;
}

void FaultVfs::fill_disk() {
  disk_full = true;
}

long FaultVfs::calls() const {
  return calls_made;
}

}  // namespace toki::test
