// An inference program with llama.cpp in its own process: conversations, more of them than
// sequences, whose KV cache is kept on disk, each token's once, for all prompts that share it.
//
//     in_process MODEL.gguf FOLDER [--cold] < turns
//
// A line of `turns` is "conversation<TAB>role<TAB>text"; what a `user` says is answered, one turn at a
// time, as the backend wants it. FOLDER keeps the KV cache, also for the next run. --cold reuses
// nothing, to compare with.
#include <toki/toki.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "llama_backend.hpp"

namespace {

constexpr std::uint32_t kSequences = 4;
constexpr std::size_t kAnswer = 16;  // tokens

std::int32_t cores() {
  return static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency() / 2));
}

class Program {
 public:
  Program(const std::string& model, const std::string& folder, bool cold)
      : llama_({.model = model,
                .state_folder = folder + "/states",
                .sequences = kSequences,
                .threads = cores()}),
        scope_({llama_.identity()}),
        engine_({}, &std::chrono::steady_clock::now),
        cold_(cold) {
    open_store(folder);
    // [setup]
    engine_.backend_changed({.slots = kSequences,
                             .slots_used = std::vector<bool>(kSequences, false),
                             .context = llama_.context(),
                             .own_cache = false});
    engine_.set_abilities({.saves = true, .cuts = llama_.rewinds(), .rewinds = llama_.rewinds()});
    engine_.use_store([this](const toki::Scope& scope, toki::TokenSpan prompt) {
      return store_->match(scope, prompt);
    });
    // [/setup]
  }

  // [answer]
  /// `boundary`: where other prompts may part from this one, the end of its system message.
  toki::Tokens answer(const toki::Tokens& prompt, std::uint64_t boundary) {
    auto ticket = engine_.begin(
        {.scope = scope_, .tokens = prompt, .from_ids = true, .boundaries = {&boundary, 1}});
    if (!ticket) throw std::runtime_error(ticket.error().detail);  // one at a time: never
    if (!cold_) toki::run_steps(*ticket, llama_, store_.get());
    ticket->sent();
    const toki::SlotId slot = *ticket->slot();
    if (cold_ || !ticket->may_reuse()) llama_.clear(slot);
    const toki::Prefilled done = llama_.compute(slot, prompt);
    const toki::Tokens answer = llama_.generate(slot, kAnswer);
    std::printf("%-11s %4zu tokens, %4llu reused: %s\n",
                std::string(to_string(ticket->reason())).c_str(), prompt.size(),
                static_cast<unsigned long long>(done.cached), one_line(answer).c_str());
    std::move(*ticket).finish({.ending = toki::Ending::completed,
                               .computed = true,
                               .prompt_tokens = prompt.size(),
                               .cached_tokens = done.cached,
                               .prompt_ms = done.ms,
                               .generated_tokens = answer.size(),
                               .generated = answer});
    return answer;
  }
  // [/answer]

  // [save]
  /// What the sequences hold is worth keeping for the next run.
  void save_all() {
    while (auto chore = engine_.begin_chore()) {  // Errc::not_found: nothing is left to do
      toki::run_steps(*chore, llama_, store_.get());
      std::move(*chore).dismiss({}, toki::SlotContent::unknown);
    }
  }
  // [/save]

  LlamaBackend& llama() { return llama_; }

 private:
  std::string one_line(const toki::Tokens& answer) const {
    std::string text = llama_.text(answer);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  void open_store(const std::string& folder) {
    std::filesystem::create_directories(folder + "/states");
    auto store = toki::KvStore::open(
        {.dir = folder + "/kv", .slot_dir = folder + "/states"},
        [](toki::LogLevel, std::string_view line) { std::cerr << line << '\n'; });
    if (!store) throw std::runtime_error(store.error().detail);
    store_ = std::move(*store);
  }

  LlamaBackend llama_;
  toki::Scope scope_;
  std::unique_ptr<toki::KvStore> store_;
  toki::Engine engine_;
  bool cold_;
};

// A conversation as tokens. The answers' own tokens stay, so that each prompt goes on exactly from what
// the model computed. ChatML; other models want llama_chat_apply_template().
struct Conversation {
  toki::Tokens tokens;
  std::uint64_t system = 0;  // tokens of its system message

  void add(const LlamaBackend& llama, const std::string& text) {
    const toki::Tokens more = llama.tokenize(text, tokens.empty());
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
};

// The least that a cache computes which knows every prompt but no answer: each distinct prefix once.
class Oracle {
 public:
  void add(const toki::Tokens& prompt) {
    std::uint64_t prefix = 0;
    for (const toki::Token token : prompt) {
      prefix = (prefix ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15ULL;
      prefix ^= prefix >> 29;
      seen_.insert(prefix);
    }
  }
  std::size_t tokens() const { return seen_.size(); }

 private:
  std::unordered_set<std::uint64_t> seen_;
};

void run(Program& program, std::istream& turns) {
  LlamaBackend& llama = program.llama();
  std::map<std::string, Conversation> conversations;
  Oracle oracle;
  std::string name, role, text;
  while (std::getline(turns, name, '\t') && std::getline(turns, role, '\t') &&
         std::getline(turns, text)) {
    Conversation& conversation = conversations[name];
    conversation.add(llama, "<|im_start|>" + role + '\n' + text + "<|im_end|>\n");
    if (role != "user") {
      conversation.system = conversation.tokens.size();
      continue;
    }
    conversation.add(llama, "<|im_start|>assistant\n");
    oracle.add(conversation.tokens);
    const toki::Tokens said = program.answer(conversation.tokens, conversation.system);
    conversation.tokens.insert(conversation.tokens.end(), said.begin(), said.end());
    conversation.add(llama, "<|im_end|>\n");
  }
  const auto computed = static_cast<double>(llama.computed());
  std::printf("computed %llu, oracle %zu, ratio %.3f\n",
              static_cast<unsigned long long>(llama.computed()), oracle.tokens(),
              computed / static_cast<double>(oracle.tokens()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2) {
    std::fputs("usage: in_process MODEL.gguf FOLDER [--cold] < turns\n", stderr);
    return 2;
  }
  try {
    const bool cold = arguments.size() > 2 && arguments[2] == "--cold";
    Program program(arguments[0], arguments[1], cold);
    run(program, std::cin);
    if (!cold) program.save_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "in_process: %s\n", error.what());
    return 1;
  }
}
