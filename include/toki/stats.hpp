// What toki counts. Every request that got a ticket is counted exactly once, when it ends; a hit is
// what the backend reports, not what was planned.
//
// Threads:   plain data.
// Ownership: values only.
// Errors:    none.
// Cost:      none.
#pragma once

#include <toki/export.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace toki {

/// How much of a prompt was reused, by the backend's own word (`cache_n`).
enum class CacheClass : std::uint8_t {
  hit,         ///< at least EngineOptions::min_reuse_for_hit tokens
  soft_hit,    ///< fewer, but some
  miss,        ///< none
  bypass,      ///< toki had no say: the prompt could not be read, or the client wanted no cache
  unreported,  ///< the backend did not say
};
/// The name of the enumerator. Static string.
TOKI_EXPORT std::string_view to_string(CacheClass value) noexcept;

/// Counters only grow; gauges are the state now. Times in milliseconds, sizes in bytes, the rest
/// are numbers of things.
struct Stats {
  std::uint64_t requests_total = 0;      ///< requests that got a slot and ended, each counted once
  std::uint64_t requests_completed = 0;  ///< requests answered whole
  std::uint64_t requests_failed = 0;     ///< requests that the backend refused, failed or broke off
  std::uint64_t requests_cancelled = 0;  ///< requests whose client left
  std::uint64_t requests_refused = 0;    ///< requests refused before they got a slot
  /// Completed requests with reuse of at least min-reuse-for-hit tokens
  std::uint64_t class_hit = 0;
  std::uint64_t class_soft_hit = 0;  ///< completed requests with less reuse
  std::uint64_t class_miss = 0;      ///< completed requests without reuse
  std::uint64_t class_bypass = 0;    ///< completed requests in which toki had no say
  /// Completed requests whose reuse the backend did not report
  std::uint64_t class_unreported = 0;
  std::uint64_t prompt_tokens_total = 0;  ///< prompt tokens of completed requests
  /// Prompt tokens that were known before, wherever they lay
  std::uint64_t available_tokens_total = 0;
  /// Prompt tokens expected to be reused in the chosen slot
  std::uint64_t predicted_tokens_total = 0;
  std::uint64_t reused_tokens_total = 0;    ///< prompt tokens that the backend reports as reused
  std::uint64_t computed_tokens_total = 0;  ///< prompt tokens that the backend computed
  double saved_ms_total = 0;  ///< reused tokens times the measured prefill time of one, in ms
  /// Prompts whose length in the backend differed from ours
  std::uint64_t tokenization_mismatch_total = 0;
  /// Answers that claim more reuse than any known prompt allows
  std::uint64_t integrity_faults_total = 0;
  std::uint64_t upstream_restarts_total = 0;  ///< restarts of the backend that were noticed
  std::uint64_t queue_full_total = 0;         ///< requests refused because the queue was full
  std::uint64_t queue_timeouts_total = 0;     ///< requests refused because they waited too long
  std::uint64_t slot_waits_total = 0;  ///< requests that waited for a busy slot with their prefix
  /// Requests given up because the backend made no progress
  std::uint64_t progress_timeouts_total = 0;
  std::uint64_t passthrough_total = 0;  ///< requests passed through without a slot
  std::uint64_t slots_total = 0;        ///< slots of the backend
  std::uint64_t slots_busy = 0;         ///< slots in use
  std::uint64_t slots_fenced = 0;       ///< slots that stopped answering and get no work
  std::uint64_t queue_length = 0;       ///< requests waiting for a slot
  std::uint64_t tree_blocks = 0;        ///< blocks in the tree of known prompts
  std::uint64_t tree_bytes = 0;         ///< memory of that tree in bytes
  std::uint64_t prompts_known = 0;      ///< prompts remembered whole
  std::uint64_t prompt_bytes = 0;       ///< memory of their tokens and embeddings in bytes
  /// Requests with reuse whose slot held all that was known of them
  std::uint64_t source_slot = 0;
  /// Requests with reuse of which the tree knew more than their slot held
  std::uint64_t source_tree = 0;
  /// Requests with reuse of which similarity found more than the tree
  std::uint64_t source_similar = 0;
  std::uint64_t source_none = 0;  ///< requests with reuse of which nothing was known
  std::uint64_t source_disk = 0;  ///< requests with reuse of a prefix restored from the store
  std::uint64_t source_copy = 0;  ///< requests with reuse of a prefix copied from another slot
  std::uint64_t similar_searches_total = 0;  ///< requests whose prompt was searched by similarity
  /// Exact prefix tokens that similarity found beyond those the tree knew
  std::uint64_t similar_gained_tokens_total = 0;
  std::uint64_t embeddings_total = 0;  ///< embeddings made by the embedding model
  /// Searches by similarity skipped because the embedding took too long
  std::uint64_t embeddings_late_total = 0;
  /// Embeddings that failed; the hash embedding was used
  std::uint64_t embeddings_failed_total = 0;
  /// Prompts remembered without a model's embedding, queue full
  std::uint64_t embeddings_dropped_total = 0;
  std::uint64_t token_cache_whole_total = 0;   ///< prompts whose tokens were all known
  std::uint64_t token_cache_part_total = 0;    ///< prompts of which only the new part was tokenized
  std::uint64_t token_cache_tokens_total = 0;  ///< tokens that did not have to be made again
  std::uint64_t token_cache_bytes = 0;         ///< memory of the token cache in bytes
  std::uint64_t token_cache_off = 0;  ///< 1 when a mismatch has switched the token cache off
  std::uint64_t volatile_lines_dropped_total = 0;  ///< first lines dropped by --drop-volatile-line
  std::uint64_t index_open = 0;                    ///< 1 when the index on disk takes writes
  std::uint64_t index_loaded = 0;                  ///< prompts read from disk at the start
  std::uint64_t index_written_total = 0;           ///< writes to the index on disk
  std::uint64_t index_dropped_total = 0;           ///< writes to the index on disk that were lost
  std::uint64_t index_set_aside_total = 0;  ///< index files that could not be used and were renamed
  std::uint64_t index_queued = 0;           ///< writes to the index on disk that wait
  std::uint64_t index_bytes = 0;            ///< size of the index on disk in bytes
  std::uint64_t index_log_bytes = 0;        ///< size of its write-ahead log in bytes
  std::uint64_t saves_total = 0;            ///< slot states saved
  std::uint64_t save_failures_total = 0;    ///< saves that failed
  std::uint64_t restores_total = 0;         ///< stored prefixes restored into a slot
  /// Restores that failed, or of which the next request reused less than half
  std::uint64_t restore_failures_total = 0;
  std::uint64_t copies_total = 0;  ///< slots saved so that another could take over their prefix
  std::uint64_t restored_tokens_total = 0;  ///< tokens that were restored
  /// Long prompts computed in a step of their own, for others to copy
  std::uint64_t leads_total = 0;
  std::uint64_t kv_segments = 0;  ///< segments of KV cache on disk
  std::uint64_t kv_bytes = 0;     ///< their size in bytes
  std::uint64_t kv_tokens = 0;    ///< tokens that they hold, each once
  /// Sum of the lengths of the prompts they hold: over kv_tokens, the sharing
  std::uint64_t kv_prompt_tokens = 0;
  std::uint64_t kv_evicted_total = 0;      ///< segments that gave way to others
  std::uint64_t kv_quarantined_total = 0;  ///< segments that failed their checksum
  std::uint64_t kv_failed_total = 0;       ///< takes and composes of the store that failed
  std::uint64_t kv_writable = 0;           ///< 1 when the store's last write worked
  /// Segments that hold a whole state, usable only for all its tokens
  std::uint64_t kv_snapshots = 0;
  /// kv_prompt_tokens over kv_tokens: 1 when no two prompts share anything
  double kv_sharing_ratio = 0;
  std::uint64_t can_save = 0;  ///< 1 when slot states can be saved and restored exactly
  std::uint64_t can_cut = 0;  ///< 1 when a saved state serves prompts that share only its beginning
  /// 1 when a slot keeps the common prefix of a prompt that parts from it
  std::uint64_t can_rewind = 0;
  std::uint64_t named_states = 0;  ///< slot states under fixed names in the backend's own folder
  std::uint64_t named_limit = 0;   ///< most of them
  std::uint64_t named_tokens = 0;  ///< tokens that they hold
  /// Of them, forgotten because the backend did not have them
  std::uint64_t named_dropped_total = 0;
  double prefill_ms_per_token = 0;  ///< measured time to compute one prompt token, in ms
  std::uint64_t connections = 0;    ///< client connections open
  std::uint64_t backend_ready = 0;  ///< 1 when the backend answers and its trial is over
  std::uint64_t pinning = 0;        ///< 1 when the backend keeps the prompt of a named slot
  std::uint64_t own_cache = 0;      ///< 1 while the backend's own prompt cache is worth asking
  /// Requests that waited for a prefix another computed, and got a copy
  std::uint64_t coalesced_total = 0;
  /// Limit of the backend's own prompt cache; 0: it has none, -1: no limit, or not known
  double backend_cache_mib = -1;
  std::uint64_t pins_by_hand = 0;  ///< prefixes pinned by hand, those of other models included
  std::uint64_t pins_hot = 0;      ///< prefixes pinned because many prompts begin with them
  std::uint64_t pins_held = 0;     ///< slots that keep a pin
  std::uint64_t audits_total = 0;  ///< hits that were repeated without cache and compared
  std::uint64_t audit_identical_total = 0;   ///< audits whose answers were equal
  std::uint64_t audit_whitespace_total = 0;  ///< audits whose answers differed in white space only
  std::uint64_t audit_noise_total = 0;  ///< audits whose answers differed in words, not in meaning
  std::uint64_t audit_substantive_total = 0;  ///< audits whose answers may differ in meaning
  /// Audits given up: no time, no slot, or no answer to compare
  std::uint64_t audits_dropped_total = 0;
  std::uint64_t recorded_total = 0;  ///< request bodies written to the file of --record
  std::uint64_t recording = 0;       ///< 1 while request bodies are recorded
  /// Most bytes that segments of KV cache may take on disk; 0: none are kept
  std::uint64_t kv_limit_bytes = 0;
  std::uint64_t unauthorized_total = 0;  ///< requests turned away for want of a good key
  /// Requests turned away because the key is not for them, or for their Host
  std::uint64_t forbidden_total = 0;
  std::uint64_t tenant_limited_total = 0;  ///< requests above the limits of their tenant
};

/// One line of the statistics: the name that JSON and Prometheus use, what it means, and its value.
struct StatRow {
  std::string_view name;  ///< as in /toki/stats; Prometheus: with "toki_" before it. Static string
  std::string_view help;  ///< what it counts. Static string
  bool counter;           ///< false: a gauge
  double value;           ///< now
};
/// Rows that stat_rows() writes.
inline constexpr std::size_t kStatRows = 104;

/// All of `stats` in a fixed order. `rows` must have room for kStatRows; returns how many were
/// written.
TOKI_EXPORT std::size_t stat_rows(const Stats& stats, std::span<StatRow> rows) noexcept;

}  // namespace toki
