// llama.cpp in this process as a toki::Backend: a slot is a sequence (llama_seq_id), its state a file
// of llama_state_seq_save_file(), which KvStore reads.
//
// Threads: one at a time, as llama_context wants it: all sequences share one. A program that runs
// several tickets at once holds a mutex of its own round run_steps(), compute() and generate().
#pragma once

#include <toki/backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <llama.h>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ggml-backend.h>

class LlamaBackend final : public toki::Backend {
 public:
  struct Options {
    std::string model;         // a GGUF file
    std::string state_folder;  // for state files; KvStoreOptions::slot_dir
    std::uint32_t sequences = 4;
    std::uint32_t context = 4096;  // tokens of each
    std::int32_t threads = 1;
  };

  explicit LlamaBackend(const Options& options)
      : folder_(options.state_folder), held_(options.sequences) {
    llama_log_set(
        [](ggml_log_level level, const char* line, void*) {
          if (level == GGML_LOG_LEVEL_ERROR) std::fputs(line, stderr);
        },
        nullptr);
    ggml_backend_load_all();
    model_.reset(llama_model_load_from_file(options.model.c_str(), llama_model_default_params()));
    llama_context_params context = llama_context_default_params();
    context.n_ctx = options.sequences * options.context;
    context.n_seq_max = options.sequences;
    context.n_threads = context.n_threads_batch = options.threads;
    if (model_ != nullptr) context_.reset(llama_init_from_model(model_.get(), context));
    if (context_ == nullptr) throw std::runtime_error("no such model: " + options.model);
    // KV cache is shared by what has the same identity. A program whose models come and go under one
    // name tells them apart by what they compute: toki::Fingerprints.
    char name[128];
    llama_model_desc(model_.get(), name, sizeof name);
    identity_ = options.model + '\n' + name + '\n' + std::to_string(llama_model_size(model_.get()));
  }

  const std::string& identity() const { return identity_; }
  std::uint32_t context() const { return llama_n_ctx_seq(context_.get()); }
  std::uint64_t computed() const { return computed_; }  // prompt tokens, since the start

  /// Whether a sequence can be cut back to a prefix of what it holds. Recurrent layers cannot, and a
  /// sliding window forgets.
  bool rewinds() const {
    return !llama_model_is_recurrent(model_.get()) && !llama_model_is_hybrid(model_.get()) &&
           llama_model_n_swa(model_.get()) == 0;
  }

  toki::Tokens tokenize(std::string_view text, bool first) const {
    const auto length = static_cast<std::int32_t>(text.size());
    toki::Tokens tokens(text.size() + 2);
    const std::int32_t count =
        llama_tokenize(vocabulary(), text.data(), length, tokens.data(),
                       static_cast<std::int32_t>(tokens.size()), first, true);
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
  }

  std::string text(toki::TokenSpan tokens) const {
    std::string text;
    for (const toki::Token token : tokens) {
      char piece[256];
      const std::int32_t length =
          llama_token_to_piece(vocabulary(), token, piece, sizeof piece, 0, false);
      if (length > 0) text.append(piece, static_cast<std::size_t>(length));
    }
    return text;
  }

  // [compute]
  /// Makes the sequence hold `prompt`, computing only what it does not hold yet: at least the last
  /// token, whose logits are wanted.
  toki::Prefilled compute(toki::SlotId slot, toki::TokenSpan prompt) {
    const auto begun = Clock::now();
    const auto sequence = static_cast<llama_seq_id>(slot.index);
    toki::Tokens& held = held_[slot.index];
    std::size_t kept = toki::common_prefix(held, prompt.first(prompt.size() - 1));
    if (!cut(sequence, static_cast<llama_pos>(kept))) {
      clear(slot);
      kept = 0;
    }
    held.resize(kept);
    const std::size_t most = llama_n_batch(context_.get());
    while (held.size() < prompt.size()) {
      decode(slot, prompt.subspan(held.size(), std::min(most, prompt.size() - held.size())));
    }
    computed_ += prompt.size() - kept;
    return {.cached = kept, .computed = prompt.size() - kept, .ms = ms_since(begun)};
  }
  // [/compute]

  void clear(toki::SlotId slot) {
    llama_memory_seq_rm(memory(), static_cast<llama_seq_id>(slot.index), -1, -1);
    held_[slot.index].clear();
  }

  /// Goes on greedily behind what was computed last. The last token is not computed any more.
  toki::Tokens generate(toki::SlotId slot, std::size_t most) {
    toki::Tokens answer;
    while (answer.size() < most) {
      if (!answer.empty()) decode(slot, {&answer.back(), 1});
      const float* logits = llama_get_logits_ith(context_.get(), -1);
      const float* best = std::max_element(logits, logits + llama_vocab_n_tokens(vocabulary()));
      answer.push_back(static_cast<toki::Token>(best - logits));
      if (llama_vocab_is_eog(vocabulary(), answer.back())) break;
    }
    return answer;
  }

  // The control plane: what a ticket's steps ask for.

  void prefill(toki::SlotId slot, toki::TokenSpan prompt,
               toki::Completion<toki::Prefilled> done) override {
    done(compute(slot, prompt));
  }

  void erase(toki::SlotId slot, toki::Completion<toki::Done> done) override {
    clear(slot);
    done(toki::Done{});
  }

  // [states]
  void save(toki::SlotId slot, std::string_view name, toki::Completion<toki::Timed> done) override {
    const auto begun = Clock::now();
    const toki::Tokens& held = held_[slot.index];
    const std::size_t bytes =
        llama_state_seq_save_file(context_.get(), path(name).c_str(),
                                  static_cast<llama_seq_id>(slot.index), held.data(), held.size());
    if (bytes == 0) return done(toki::Error{toki::Errc::backend, "the state was not saved"});
    done(toki::Timed{.tokens = held.size(), .ms = ms_since(begun)});
  }

  void restore(toki::SlotId slot, std::string_view name,
               toki::Completion<toki::Timed> done) override {
    const auto begun = Clock::now();
    toki::Tokens& held = held_[slot.index];
    held.resize(context());
    std::size_t count = 0;
    const std::size_t bytes = llama_state_seq_load_file(context_.get(), path(name).c_str(),
                                                        static_cast<llama_seq_id>(slot.index),
                                                        held.data(), held.size(), &count);
    held.resize(count);
    if (bytes != 0) return done(toki::Timed{.tokens = count, .ms = ms_since(begun)});
    clear(slot);
    done(toki::Error{toki::Errc::backend, "the state was not restored"});
  }
  // [/states]

 private:
  using Clock = std::chrono::steady_clock;
  static double ms_since(Clock::time_point begun) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  }

  llama_memory_t memory() const { return llama_get_memory(context_.get()); }
  const llama_vocab* vocabulary() const { return llama_model_get_vocab(model_.get()); }
  std::string path(std::string_view name) const { return folder_ + '/' + std::string(name); }

  // False: what is left cannot be gone on from. Recurrent layers cannot be cut; a sliding window may
  // have forgotten what lies before the cut.
  bool cut(llama_seq_id sequence, llama_pos kept) {
    const llama_pos needed = std::max(0, kept - llama_model_n_swa(model_.get()));
    return llama_memory_seq_rm(memory(), sequence, kept, -1) &&
           llama_memory_seq_pos_min(memory(), sequence) <= needed;
  }

  // Computes tokens behind what the sequence holds.
  void decode(toki::SlotId slot, toki::TokenSpan tokens) {
    toki::Tokens& held = held_[slot.index];
    toki::Tokens ids(tokens.begin(), tokens.end());
    std::vector<llama_pos> places(ids.size());
    std::iota(places.begin(), places.end(), static_cast<llama_pos>(held.size()));
    auto sequence = static_cast<llama_seq_id>(slot.index);
    std::vector<std::int32_t> one(ids.size(), 1);
    std::vector<llama_seq_id*> sequences(ids.size(), &sequence);
    std::vector<std::int8_t> outputs(ids.size(), 0);
    outputs.back() = 1;
    const llama_batch batch{static_cast<std::int32_t>(ids.size()),
                            ids.data(),
                            nullptr,
                            places.data(),
                            one.data(),
                            sequences.data(),
                            outputs.data()};
    if (llama_decode(context_.get(), batch) != 0) throw std::runtime_error("llama_decode failed");
    held.insert(held.end(), tokens.begin(), tokens.end());
  }

  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
  };

  std::string folder_;
  std::string identity_;
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
  std::vector<toki::Tokens> held_;  // the tokens in each sequence
  std::uint64_t computed_ = 0;
};
