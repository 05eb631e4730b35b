#include <toki/result.hpp>
#include <toki/stats.hpp>

#include <algorithm>
#include <array>

namespace toki {

std::string_view to_string(CacheClass value) noexcept {
  switch (value) {
    case CacheClass::hit: return "hit";
    case CacheClass::soft_hit: return "soft_hit";
    case CacheClass::miss: return "miss";
    case CacheClass::bypass: return "bypass";
    case CacheClass::unreported: return "unreported";
  }
  return "unreported";
}

std::size_t stat_rows(const Stats& s, std::span<StatRow> rows) noexcept {
  const auto n = [](std::uint64_t value) { return static_cast<double>(value); };
  const std::array<StatRow, kStatRows> all{{
      {"requests_total", "Requests that got a slot and ended, each counted once", true,
       n(s.requests_total)},
      {"requests_completed", "Requests answered whole", true, n(s.requests_completed)},
      {"requests_failed", "Requests that the backend refused, failed or broke off", true,
       n(s.requests_failed)},
      {"requests_cancelled", "Requests whose client left", true, n(s.requests_cancelled)},
      {"requests_refused", "Requests refused before they got a slot", true, n(s.requests_refused)},
      {"class_hit", "Completed requests with reuse of at least min-reuse-for-hit tokens", true,
       n(s.class_hit)},
      {"class_soft_hit", "Completed requests with less reuse", true, n(s.class_soft_hit)},
      {"class_miss", "Completed requests without reuse", true, n(s.class_miss)},
      {"class_bypass", "Completed requests in which toki had no say", true, n(s.class_bypass)},
      {"class_unreported", "Completed requests whose reuse the backend did not report", true,
       n(s.class_unreported)},
      {"prompt_tokens_total", "Prompt tokens of completed requests", true,
       n(s.prompt_tokens_total)},
      {"available_tokens_total", "Prompt tokens that were known before, wherever they lay", true,
       n(s.available_tokens_total)},
      {"predicted_tokens_total", "Prompt tokens expected to be reused in the chosen slot", true,
       n(s.predicted_tokens_total)},
      {"reused_tokens_total", "Prompt tokens that the backend reports as reused", true,
       n(s.reused_tokens_total)},
      {"computed_tokens_total", "Prompt tokens that the backend computed", true,
       n(s.computed_tokens_total)},
      {"saved_ms_total", "Reused tokens times the measured prefill time of one, in ms", true,
       s.saved_ms_total},
      {"tokenization_mismatch_total", "Prompts whose length in the backend differed from ours",
       true, n(s.tokenization_mismatch_total)},
      {"integrity_faults_total", "Answers that claim more reuse than any known prompt allows", true,
       n(s.integrity_faults_total)},
      {"upstream_restarts_total", "Restarts of the backend that were noticed", true,
       n(s.upstream_restarts_total)},
      {"queue_full_total", "Requests refused because the queue was full", true,
       n(s.queue_full_total)},
      {"queue_timeouts_total", "Requests refused because they waited too long", true,
       n(s.queue_timeouts_total)},
      {"slot_waits_total", "Requests that waited for a busy slot with their prefix", true,
       n(s.slot_waits_total)},
      {"progress_timeouts_total", "Requests given up because the backend made no progress", true,
       n(s.progress_timeouts_total)},
      {"passthrough_total", "Requests passed through without a slot", true, n(s.passthrough_total)},
      {"slots_total", "Slots of the backend", false, n(s.slots_total)},
      {"slots_busy", "Slots in use", false, n(s.slots_busy)},
      {"slots_fenced", "Slots that stopped answering and get no work", false, n(s.slots_fenced)},
      {"queue_length", "Requests waiting for a slot", false, n(s.queue_length)},
      {"tree_blocks", "Blocks in the tree of known prompts", false, n(s.tree_blocks)},
      {"tree_bytes", "Memory of that tree in bytes", false, n(s.tree_bytes)},
      {"prompts_known", "Prompts remembered whole", false, n(s.prompts_known)},
      {"prompt_bytes", "Memory of their tokens and embeddings in bytes", false, n(s.prompt_bytes)},
      {"source_slot", "Requests with reuse whose slot held all that was known of them", true,
       n(s.source_slot)},
      {"source_tree", "Requests with reuse of which the tree knew more than their slot held", true,
       n(s.source_tree)},
      {"source_similar", "Requests with reuse of which similarity found more than the tree", true,
       n(s.source_similar)},
      {"source_none", "Requests with reuse of which nothing was known", true, n(s.source_none)},
      {"similar_searches_total", "Requests whose prompt was searched by similarity", true,
       n(s.similar_searches_total)},
      {"similar_gained_tokens_total",
       "Exact prefix tokens that similarity found beyond those the tree knew", true,
       n(s.similar_gained_tokens_total)},
      {"embeddings_total", "Embeddings made by the embedding model", true, n(s.embeddings_total)},
      {"embeddings_late_total",
       "Searches by similarity skipped because the embedding took too long", true,
       n(s.embeddings_late_total)},
      {"embeddings_failed_total", "Embeddings that failed; the hash embedding was used", true,
       n(s.embeddings_failed_total)},
      {"embeddings_dropped_total", "Prompts remembered without a model's embedding, queue full",
       true, n(s.embeddings_dropped_total)},
      {"token_cache_whole_total", "Prompts whose tokens were all known", true,
       n(s.token_cache_whole_total)},
      {"token_cache_part_total", "Prompts of which only the new part was tokenized", true,
       n(s.token_cache_part_total)},
      {"token_cache_tokens_total", "Tokens that did not have to be made again", true,
       n(s.token_cache_tokens_total)},
      {"token_cache_bytes", "Memory of the token cache in bytes", false, n(s.token_cache_bytes)},
      {"token_cache_off", "1 when a mismatch has switched the token cache off", false,
       n(s.token_cache_off)},
      {"volatile_lines_dropped_total", "First lines dropped by --drop-volatile-line", true,
       n(s.volatile_lines_dropped_total)},
      {"index_open", "1 when the index on disk takes writes", false, n(s.index_open)},
      {"index_loaded", "Prompts read from disk at the start", false, n(s.index_loaded)},
      {"index_written_total", "Writes to the index on disk", true, n(s.index_written_total)},
      {"index_dropped_total", "Writes to the index on disk that were lost", true,
       n(s.index_dropped_total)},
      {"index_set_aside_total", "Index files that could not be used and were renamed", true,
       n(s.index_set_aside_total)},
      {"index_queued", "Writes to the index on disk that wait", false, n(s.index_queued)},
      {"index_bytes", "Size of the index on disk in bytes", false, n(s.index_bytes)},
      {"index_log_bytes", "Size of its write-ahead log in bytes", false, n(s.index_log_bytes)},
      {"prefill_ms_per_token", "Measured time to compute one prompt token, in ms", false,
       s.prefill_ms_per_token},
      {"connections", "Client connections open", false, n(s.connections)},
      {"backend_ready", "1 when the backend answers and its trial is over", false,
       n(s.backend_ready)},
      {"pinning", "1 when the backend keeps the prompt of a named slot", false, n(s.pinning)},
      {"own_cache", "1 while the backend's own prompt cache is worth asking", false,
       n(s.own_cache)},
  }};
  TOKI_CHECK(rows.size() >= kStatRows);
  std::copy(all.begin(), all.end(), rows.begin());
  return all.size();
}

}  // namespace toki
