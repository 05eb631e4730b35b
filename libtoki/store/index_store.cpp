#include <toki/index_store.hpp>
#include <toki/result.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "store/database.hpp"
#include "store/prompt_table.hpp"
#include "store/write_queue.hpp"

#include <sqlite3.h>

namespace toki {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// One transaction takes so much: the log can grow past its limit by no more, and the end of the
// program waits for no more.
constexpr std::size_t kTransactionWrites = 256;
constexpr std::size_t kTransactionBytes = std::size_t{4} << 20;
constexpr std::uint64_t kUsualLogBytes = std::uint64_t{4} << 20;

constexpr milliseconds kGather{20};            // from the first write to its transaction
constexpr milliseconds kLastWrites{2000};      // for what is queued at the end
constexpr milliseconds kLockedPause{5};        // first pause when locked; doubles
constexpr milliseconds kLongLockedPause{100};  // up to this
constexpr milliseconds kLongPause{30000};      // the longest after other faults
constexpr milliseconds kWorthSaying{1000};     // a shorter lock is not worth a log line

Clock::time_point after(Clock::time_point start, milliseconds time) {
  return start + std::min<milliseconds>(time, std::chrono::hours(24 * 365));
}

/// The working folder may change, and SQLite gives some relative names a meaning of their own.
std::string absolute(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::absolute(path, ignored).string();
}

/// SQLite puts the log beside the file that a link names.
std::string without_links(const std::string& path) {
  std::error_code reason;
  const auto real = std::filesystem::weakly_canonical(path, reason);
  return reason ? path : real.string();
}

/// NaN would be stored as NULL, and -0 as 0, which has other bits.
double storable(double use) noexcept {
  return std::isfinite(use) ? use + 0.0 : 0.0;
}

}  // namespace

struct TOKI_HIDDEN IndexStore::Impl {
  Impl(IndexStoreOptions settings, LogSink sink,
       std::function<void(std::vector<PromptRecord>)> receiver);
  ~Impl();

  bool add(Write write);
  bool drop();
  void wipe(bool all);
  bool flush(milliseconds limit);
  IndexStoreStats stats() const;

 private:
  // The thread. What it calls may throw SQLite::Exception; round() catches it.
  void run();
  bool wait();
  void gather(std::unique_lock<std::mutex>& lock);
  bool full() const { return 2 * queue_.size() >= options_.queue_length; }
  void round();
  void open();
  void close();
  void load();
  void deliver(std::vector<PromptRecord> records);
  void write();
  bool take();
  void write_transaction();
  void limit_log();
  void maintain();
  void note_sizes();
  void succeeded();
  void failed(bool locked, bool damaged, const std::string& reason);
  bool put_aside(const std::string& reason);
  std::uint64_t drop_all();
  void say(LogLevel level, const std::string& text);

  const IndexStoreOptions options_;
  const LogSink log_;

  // Shared, under the mutex.
  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the thread waits here
  std::condition_variable settled_;  // flush() and the destructor wait here
  WriteQueue queue_;
  std::size_t flushing_ = 0;    // calls of flush() that wait
  std::size_t in_flight_ = 0;   // taken from the queue, not written yet
  std::uint64_t accepted_ = 0;  // writes, since the start
  std::uint64_t done_ = 0;      // of these, written or lost; they are so in order
  std::uint64_t losses_ = 0;    // how often queued writes were lost
  std::uint64_t clears_ = 0;    // how often all was to be removed
  std::uint64_t cleared_ = 0;   // up to which of these it was
  std::uint64_t wipes_ = 0;     // how often the log was to be emptied
  std::uint64_t wiped_ = 0;
  IndexStoreStats stats_;
  sqlite3* interruptible_ = nullptr;
  bool ended_ = false;
  Clock::time_point stop_by_{};
  std::atomic<bool> stopping_{false};  // set under the mutex, read by the thread also without

  // The thread's own.
  DatabaseOptions database_options_;
  std::function<void(std::vector<PromptRecord>)> loaded_;
  std::unique_ptr<SQLite::Database> database_;
  std::optional<PromptTable> table_;
  std::vector<Write> batch_;  // taken from the queue
  std::size_t next_ = 0;      // in batch_; those before are written
  std::uint64_t batch_end_ = 0;
  std::uint64_t batch_clears_ = 0;  // of clears_, those that come before the batch
  std::uint64_t batch_wipes_ = 0;   // of wipes_, those that come with it
  bool delivered_ = false;
  bool bad_index_ = false;
  Clock::time_point maintain_at_;
  // A run of failed attempts.
  unsigned failures_ = 0;
  bool soon_ = false;  // the last of them is likely to be over soon
  bool said_ = false;
  std::uint64_t dropped_before_ = 0;
  Clock::time_point failing_since_{};
  Clock::time_point retry_at_{};

  std::jthread thread_;  // last: it uses everything above
};

IndexStore::Impl::Impl(IndexStoreOptions settings, LogSink sink,
                       std::function<void(std::vector<PromptRecord>)> receiver)
    : options_(std::move(settings)),
      log_(std::move(sink)),
      database_options_{.path = absolute(options_.path),
                        .vfs = options_.vfs,
                        .application = PromptTable::kApplication,
                        .version = PromptTable::kVersion,
                        .schema = PromptTable::kSchema,
                        .usual_log_bytes = std::min(kUsualLogBytes, options_.max_log_bytes / 2)},
      loaded_(std::move(receiver)),
      maintain_at_(Clock::now()) {
  thread_ = std::jthread([this] { run(); });
}

IndexStore::Impl::~Impl() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  stop_by_ = Clock::now() + kLastWrites;
  wake_.notify_all();
  settled_.wait_until(lock, stop_by_, [this] { return ended_; });
  while (!ended_) {  // an interrupt between two statements has no effect
    if (interruptible_ != nullptr) {
      sqlite3_interrupt(interruptible_);
    }
    settled_.wait_for(lock, kLockedPause);
  }
}

bool IndexStore::Impl::add(Write write) {
  std::unique_lock lock(mutex_);
  const std::size_t length = options_.queue_length;
  if (!queue_.add(write, length - std::min(in_flight_, length))) {
    ++stats_.dropped;
    return false;
  }
  ++accepted_;
  const bool wanted = queue_.size() == 1 || full();
  lock.unlock();
  if (wanted) {
    wake_.notify_one();
  }
  return true;
}

bool IndexStore::Impl::drop() {
  const std::lock_guard lock(mutex_);
  ++stats_.dropped;
  return false;
}

// Counts as one write, so that flush() waits for it.
void IndexStore::Impl::wipe(bool all) {
  std::vector<Write> waiting;  // freed without the lock
  {
    const std::lock_guard lock(mutex_);
    if (all) {
      waiting = queue_.take();
      ++clears_;
    }
    ++wipes_;
    ++accepted_;
  }
  wake_.notify_one();
}

bool IndexStore::Impl::flush(milliseconds limit) {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = accepted_;
  const std::uint64_t losses = losses_;
  ++flushing_;
  wake_.notify_one();
  settled_.wait_until(lock, after(Clock::now(), limit), [&] { return done_ >= target; });
  --flushing_;
  return done_ >= target && losses_ == losses;
}

IndexStoreStats IndexStore::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  IndexStoreStats stats = stats_;
  stats.queued = queue_.size() + in_flight_ + (wipes_ != wiped_ ? 1 : 0);
  return stats;
}

void IndexStore::Impl::run() {
  while (wait()) {
    round();
  }
  if (const std::uint64_t lost = drop_all(); lost != 0) {
    say(LogLevel::warn, "closed; " + std::to_string(lost) + " writes were lost");
  }
  close();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  settled_.notify_all();
}

/// A transaction costs much more than a write, and a prompt that is used again takes one write.
void IndexStore::Impl::gather(std::unique_lock<std::mutex>& lock) {
  if (queue_.size() != 0) {
    wake_.wait_for(lock, kGather,
                   [this] { return stopping_ || flushing_ != 0 || wipes_ != wiped_ || full(); });
  }
}

/// Until there is something to do. False: it is time to end.
bool IndexStore::Impl::wait() {
  std::unique_lock lock(mutex_);
  if (failures_ == 0) {
    wake_.wait_until(lock, maintain_at_,
                     [this] { return stopping_ || queue_.size() != 0 || wipes_ != wiped_; });
    gather(lock);
  } else if (!stopping_) {
    wake_.wait_until(lock, retry_at_, [this] { return stopping_.load(); });
  } else if (soon_) {
    wake_.wait_for(lock, kLockedPause);
  }
  if (!stopping_) {
    return true;
  }
  const bool writable = failures_ == 0 || soon_;
  const bool waits = queue_.size() + in_flight_ != 0 || wipes_ != wiped_;
  return writable && waits && Clock::now() < stop_by_;
}

void IndexStore::Impl::round() {
  try {
    if (database_ == nullptr) {
      open();
    }
    maintain();
    write();
    succeeded();
  } catch (const SQLite::Exception& fault) {
    failed(is_locked(fault), is_damage(fault), fault.what());
  } catch (const std::exception& fault) {
    failed(false, false, fault.what());
  }
}

void IndexStore::Impl::open() {
  database_options_.path = without_links(database_options_.path);
  database_ = open_database(database_options_);
  table_.emplace(*database_);
  {
    const std::lock_guard lock(mutex_);
    interruptible_ = database_->getHandle();
    stats_.open = true;
  }
  maintain_at_ = after(Clock::now(), options_.maintenance);
  if (!delivered_) {
    load();
  }
  note_sizes();
}

/// Leaves a long log to the next time: writing it into the database takes long.
void IndexStore::Impl::close() {
  {
    const std::lock_guard lock(mutex_);
    interruptible_ = nullptr;
    stats_.open = false;
  }
  table_.reset();
  if (database_ != nullptr && log_bytes(database_options_.path) > 2 * kUsualLogBytes) {
    keep_log_on_close(*database_, true);
  }
  database_.reset();
}

void IndexStore::Impl::load() {
  std::vector<PromptRecord> records;
  std::vector<std::uint64_t> bad;
  try {
    table_->read(records, bad, stopping_);
  } catch (const SQLite::Exception& fault) {
    if (is_damage(fault)) {  // what was read before is whole, and goes into the next database
      for (const PromptRecord& record : records) {
        batch_.push_back({Write::Kind::put, record});
      }
      deliver(std::move(records));
    }
    throw;
  }
  for (const std::uint64_t id : bad) {
    batch_.push_back({Write::Kind::remove, {.id = id}});
  }
  bad_index_ = !bad.empty();
  if (bad_index_) {
    say(LogLevel::warn, std::to_string(bad.size()) + " damaged prompts are deleted");
    const std::lock_guard lock(mutex_);
    stats_.damaged += bad.size();
  }
  deliver(std::move(records));
}

void IndexStore::Impl::deliver(std::vector<PromptRecord> records) {
  delivered_ = true;
  {
    const std::lock_guard lock(mutex_);
    in_flight_ = batch_.size();  // what load() put there
    if (stopping_) {
      return;
    }
    if (clears_ != cleared_) {
      records.clear();
    }
  }
  std::sort(records.begin(), records.end(), [](const PromptRecord& a, const PromptRecord& b) {
    return std::pair(a.last_used_ms, a.id) > std::pair(b.last_used_ms, b.id);
  });
  records.resize(std::min(records.size(), options_.max_prompts));
  {
    const std::lock_guard lock(mutex_);
    stats_.loaded = records.size();
  }
  if (loaded_) {
    loaded_(std::move(records));
  }
}

void IndexStore::Impl::write() {
  while (next_ < batch_.size() || take()) {
    if (stopping_ && Clock::now() >= stop_by_) {
      return;
    }
    limit_log();
    write_transaction();
    maintain();
  }
}

/// What is queued becomes the batch. False: nothing is.
bool IndexStore::Impl::take() {
  batch_.clear();
  next_ = 0;
  const std::lock_guard lock(mutex_);
  batch_ = queue_.take();
  in_flight_ = batch_.size();
  batch_end_ = accepted_;
  batch_clears_ = clears_;
  batch_wipes_ = wipes_;
  return !batch_.empty() || batch_wipes_ != wiped_;
}

void IndexStore::Impl::write_transaction() {
  SQLite::Transaction transaction(*database_, SQLite::TransactionBehavior::IMMEDIATE);
  if (bad_index_) {
    table_->make_index_again();
  }
  if (cleared_ != batch_clears_) {
    table_->clear();
  }
  std::size_t end = next_;
  for (std::size_t bytes = 0;
       end < batch_.size() && end < next_ + kTransactionWrites && bytes < kTransactionBytes;
       ++end) {
    const auto& [kind, record] = batch_[end];
    switch (kind) {
      case Write::Kind::put: table_->put(record); break;
      case Write::Kind::use: table_->use(record.id, record.use, record.last_used_ms); break;
      case Write::Kind::remove: table_->remove(record.id); break;
    }
    bytes += 4 * (record.tokens.size() + record.embedding.values.size());
  }
  table_->evict(options_.max_prompts);
  transaction.commit();
  bad_index_ = false;
  if (end == batch_.size() && wiped_ != batch_wipes_) {
    (void)empty_log(*database_);  // a reader may keep it; the next one tries again
  }
  note_sizes();

  const std::lock_guard lock(mutex_);
  cleared_ = batch_clears_;
  wiped_ = end == batch_.size() ? batch_wipes_ : wiped_;
  stats_.written += end - next_;
  next_ = end;
  in_flight_ = batch_.size() - next_;
  if (next_ == batch_.size()) {
    done_ = std::max(done_, batch_end_);
    settled_.notify_all();
  }
}

/// A reader that holds a snapshot keeps the log from being started over.
void IndexStore::Impl::limit_log() {
  const std::string& path = database_options_.path;
  if (log_bytes(path) > options_.max_log_bytes && !empty_log(*database_)) {
    throw SQLite::Exception("a reader keeps its log from being shortened", SQLITE_BUSY);
  }
}

void IndexStore::Impl::maintain() {
  if (Clock::now() < maintain_at_ || stopping_) {
    return;
  }
  maintain_at_ = after(Clock::now(), options_.maintenance);
  if (has_moved(*database_)) {
    keep_log_on_close(*database_, true);  // what lies at its path is not ours
    throw SQLite::Exception("its file was moved or deleted", SQLITE_CANTOPEN);
  }
  if (log_bytes(database_options_.path) > database_options_.usual_log_bytes) {
    empty_log(*database_);
  }
  note_sizes();
}

void IndexStore::Impl::note_sizes() {
  const std::uint64_t bytes = file_bytes(database_options_.path);
  const std::uint64_t log = log_bytes(database_options_.path);
  const std::lock_guard lock(mutex_);
  stats_.bytes = bytes;
  stats_.log_bytes = log;
}

void IndexStore::Impl::succeeded() {
  if (said_) {
    const std::uint64_t dropped = stats().dropped - dropped_before_;
    say(LogLevel::info, "works again; " + std::to_string(dropped) + " writes were lost");
  }
  failures_ = 0;
  said_ = false;
}

/// After every fault the connection is closed and made again: so no half-done transaction and no
/// statement is left, and whatever happened to the file is noticed.
void IndexStore::Impl::failed(bool locked, bool damaged, const std::string& reason) {
  close();
  const auto now = Clock::now();
  if (failures_++ == 0) {
    failing_since_ = now;
    dropped_before_ = stats().dropped;
  }
  soon_ = locked || (damaged && put_aside(reason));
  const unsigned doublings = std::min(failures_ - 1, 16U);
  retry_at_ = now + (soon_ ? std::min(kLockedPause * (1U << doublings), kLongLockedPause)
                           : std::min(options_.retry * (1U << doublings), kLongPause));
  if (!said_ && (!soon_ || now - failing_since_ >= kWorthSaying)) {
    said_ = true;
    say(LogLevel::warn, "cannot be used: " + reason + ". Prompts go on being remembered in memory");
  }
  const bool patient = now - failing_since_ < options_.patience;
  if (!delivered_ && !(locked && patient)) {
    deliver({});
  }
  if (!patient) {
    drop_all();
  }
}

bool IndexStore::Impl::put_aside(const std::string& reason) {
  try {
    const std::string name = set_aside(database_options_.path, PromptTable::kApplication);
    say(LogLevel::warn, "set aside as " + name + ": " + reason + ". A new one is begun");
    const std::lock_guard lock(mutex_);
    ++stats_.set_aside;
    return true;
  } catch (const std::exception& fault) {
    if (!said_) {
      said_ = true;
      say(LogLevel::warn, "cannot be used: " + reason + "; " + fault.what());
    }
    return false;
  }
}

/// How many were lost.
std::uint64_t IndexStore::Impl::drop_all() {
  batch_.clear();
  next_ = 0;
  const std::lock_guard lock(mutex_);
  const std::uint64_t lost = std::exchange(in_flight_, 0) + queue_.take().size();
  stats_.dropped += lost;
  done_ = accepted_;
  losses_ += lost != 0 || wipes_ != wiped_ ? 1 : 0;  // a wipe that waits is tried again
  settled_.notify_all();
  return lost;
}

void IndexStore::Impl::say(LogLevel level, const std::string& text) {
  if (log_) {
    log_(level, "prompt index " + options_.path + ": " + text);
  }
}

IndexStore::IndexStore(IndexStoreOptions options, LogSink log,
                       std::function<void(std::vector<PromptRecord>)> loaded) {
  TOKI_CHECK(options.queue_length > 0 && options.maintenance.count() > 0);
  TOKI_CHECK(options.vfs.empty() || sqlite3_vfs_find(options.vfs.c_str()) != nullptr);
  impl_ = std::make_unique<Impl>(std::move(options), std::move(log), std::move(loaded));
}

IndexStore::~IndexStore() = default;

bool IndexStore::put(PromptRecord record) {
  if (!PromptTable::fits(record)) {
    return impl_->drop();
  }
  record.use = storable(record.use);
  return impl_->add({Write::Kind::put, std::move(record)});
}

bool IndexStore::use(std::uint64_t id, double use, std::int64_t last_used_ms) {
  return impl_->add(
      {Write::Kind::use, {.id = id, .use = storable(use), .last_used_ms = last_used_ms}});
}

bool IndexStore::remove(std::uint64_t id) {
  return impl_->add({Write::Kind::remove, {.id = id}});
}

void IndexStore::clear() {
  impl_->wipe(true);
}

void IndexStore::wipe() {
  impl_->wipe(false);
}

bool IndexStore::flush(std::chrono::milliseconds limit) {
  return impl_->flush(limit);
}

IndexStoreStats IndexStore::stats() const {
  return impl_->stats();
}

void IndexStore::add_to(Stats& all) const {
  const IndexStoreStats own = stats();
  all.index_open = own.open ? 1 : 0;
  all.index_loaded = own.loaded;
  all.index_written_total = own.written;
  all.index_dropped_total = own.dropped;
  all.index_set_aside_total = own.set_aside;
  all.index_queued = own.queued;
  all.index_bytes = own.bytes;
  all.index_log_bytes = own.log_bytes;
}

}  // namespace toki
