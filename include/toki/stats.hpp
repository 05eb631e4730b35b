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
TOKI_EXPORT std::string_view to_string(CacheClass value) noexcept;

/// Counters only grow; gauges are the state now. Times in milliseconds, sizes in bytes, the rest
/// are numbers of things.
struct Stats {
  std::uint64_t requests_total = 0, requests_completed = 0, requests_failed = 0,
                requests_cancelled = 0;
  std::uint64_t requests_refused = 0;
  std::uint64_t class_hit = 0, class_soft_hit = 0, class_miss = 0, class_bypass = 0,
                class_unreported = 0;
  std::uint64_t prompt_tokens_total = 0, available_tokens_total = 0, predicted_tokens_total = 0;
  std::uint64_t reused_tokens_total = 0, computed_tokens_total = 0;
  double saved_ms_total = 0;
  std::uint64_t tokenization_mismatch_total = 0, integrity_faults_total = 0,
                upstream_restarts_total = 0;
  std::uint64_t queue_full_total = 0, queue_timeouts_total = 0, slot_waits_total = 0;
  std::uint64_t progress_timeouts_total = 0, passthrough_total = 0;
  std::uint64_t slots_total = 0, slots_busy = 0, slots_fenced = 0, queue_length = 0;
  std::uint64_t tree_blocks = 0, tree_bytes = 0, prompts_known = 0, prompt_bytes = 0;
  std::uint64_t source_slot = 0, source_tree = 0, source_similar = 0, source_none = 0;
  std::uint64_t source_disk = 0, source_copy = 0;
  std::uint64_t similar_searches_total = 0, similar_gained_tokens_total = 0;
  std::uint64_t embeddings_total = 0, embeddings_late_total = 0, embeddings_failed_total = 0,
                embeddings_dropped_total = 0;
  std::uint64_t token_cache_whole_total = 0, token_cache_part_total = 0,
                token_cache_tokens_total = 0, token_cache_bytes = 0, token_cache_off = 0;
  std::uint64_t volatile_lines_dropped_total = 0;
  std::uint64_t index_open = 0, index_loaded = 0, index_written_total = 0, index_dropped_total = 0,
                index_set_aside_total = 0, index_queued = 0, index_bytes = 0, index_log_bytes = 0;
  std::uint64_t saves_total = 0, save_failures_total = 0, restores_total = 0,
                restore_failures_total = 0, copies_total = 0, restored_tokens_total = 0;
  std::uint64_t leads_total = 0;
  std::uint64_t kv_segments = 0, kv_bytes = 0, kv_tokens = 0, kv_prompt_tokens = 0,
                kv_evicted_total = 0, kv_quarantined_total = 0, kv_failed_total = 0,
                kv_writable = 0;
  std::uint64_t kv_snapshots = 0;
  double kv_sharing_ratio = 0;
  std::uint64_t can_save = 0, can_cut = 0, can_rewind = 0;
  std::uint64_t named_states = 0, named_limit = 0, named_tokens = 0, named_dropped_total = 0;
  double prefill_ms_per_token = 0;
  std::uint64_t connections = 0, backend_ready = 0, pinning = 0, own_cache = 0;
  std::uint64_t coalesced_total = 0;
  double backend_cache_mib = -1;
  std::uint64_t pins_by_hand = 0, pins_hot = 0, pins_held = 0;
  std::uint64_t audits_total = 0, audit_identical_total = 0, audit_whitespace_total = 0,
                audit_noise_total = 0, audit_substantive_total = 0, audits_dropped_total = 0;
  std::uint64_t recorded_total = 0, recording = 0;
  std::uint64_t kv_limit_bytes = 0;
  std::uint64_t unauthorized_total = 0, forbidden_total = 0, tenant_limited_total = 0;
};

/// One line of the statistics: the name that JSON and Prometheus use, what it means, and its value.
struct StatRow {
  std::string_view name;
  std::string_view help;
  bool counter;
  double value;
};
inline constexpr std::size_t kStatRows = 104;

/// All of `stats` in a fixed order. `rows` must have room for kStatRows; returns how many were
/// written.
TOKI_EXPORT std::size_t stat_rows(const Stats& stats, std::span<StatRow> rows) noexcept;

}  // namespace toki
