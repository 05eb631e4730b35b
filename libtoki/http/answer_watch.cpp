// SSE in three layers: feed_sse() cuts the bytes into lines (a line that lies whole in the piece is
// not copied), read_line() gathers `data` fields, end_event() looks for the few words that matter
// and parses only then. All three keep their state in members, so a cut between any two bytes
// changes nothing.
//
// Ids of generated tokens come one chunk at a time and are only published when their number is what
// the backend says it generated: llama-server sends one id for a character of several tokens, and a
// placeholder id in its progress chunks.
#include <toki/http/answer_watch.hpp>

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace toki::http {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::size_t kKeptCapacity = std::size_t{64} << 10;  // of buffers between events
constexpr std::array<std::string_view, 5> kWords = {"\"usage\"", "\"timings\"", "\"tokens\"",
                                                    "\"error\"", "\"message_stop\""};

/// Whether the text that starts at a quote starts with one of the words.
bool starts_with_word(std::string_view text) noexcept {
  return std::any_of(kWords.begin(), kWords.end(),
                     [text](std::string_view word) { return text.starts_with(word); });
}

#if defined(__SSE2__)
/// One bit for each of sixteen quotes that has the first letter of a word behind it. Reads
/// seventeen bytes.
unsigned word_bits(const char* at) noexcept {
  const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 1));
  const auto is = [](__m128i bytes, char c) { return _mm_cmpeq_epi8(bytes, _mm_set1_epi8(c)); };
  const __m128i letter = _mm_or_si128(_mm_or_si128(is(next, 'u'), is(next, 't')),
                                      _mm_or_si128(is(next, 'e'), is(next, 'm')));
  return static_cast<unsigned>(_mm_movemask_epi8(_mm_and_si128(is(here, '"'), letter)));
}
#endif

/// Whether `text` may say something: it has one of the words. Keys written with escapes are not
/// found; no known backend writes them.
bool mentions_facts(std::string_view text) noexcept {
  std::size_t at = 0;
#if defined(__SSE2__)
  for (; at + 17 <= text.size(); at += 16) {
    for (unsigned bits = word_bits(text.data() + at); bits != 0; bits &= bits - 1) {
      if (starts_with_word(text.substr(at + static_cast<unsigned>(std::countr_zero(bits))))) {
        return true;
      }
    }
  }
#endif
  for (at = text.find('"', at); at != std::string_view::npos; at = text.find('"', at + 1)) {
    if (starts_with_word(text.substr(at))) {
      return true;
    }
  }
  return false;
}

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<dom::object> object_in(const dom::object& object, std::string_view key) noexcept {
  dom::object found;
  return object[key].get(found) == simdjson::SUCCESS ? std::optional(found) : std::nullopt;
}

bool true_in(const dom::object& object, std::string_view key) noexcept {
  bool found = false;
  return object[key].get(found) == simdjson::SUCCESS && found;
}

std::optional<std::uint64_t> count_in(const dom::object& object, std::string_view key) noexcept {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;  // so that sums do not overflow
  std::uint64_t found = 0;
  return object[key].get(found) == simdjson::SUCCESS && found <= kMost ? std::optional(found)
                                                                       : std::nullopt;
}

std::string_view text_in(const dom::object& object, std::string_view key) noexcept {
  std::string_view found;
  return object[key].get(found) == simdjson::SUCCESS ? found : std::string_view();
}

template <class T>
void set_if(std::optional<T>& fact, const std::optional<T>& said) {
  if (said) {
    fact = said;
  }
}

std::optional<std::uint64_t> sum(std::optional<std::uint64_t> a, std::optional<std::uint64_t> b) {
  if (!a || !b || *a > std::numeric_limits<std::uint64_t>::max() - *b) {
    return std::nullopt;
  }
  return *a + *b;
}

/// Reads one JSON value of an answer into facts.
class FactReader {
 public:
  FactReader(AnswerFacts& facts, Tokens& ids, bool& ids_broken) noexcept
      : facts_(facts), ids_(ids), ids_broken_(ids_broken) {}

  /// The outermost object. What wins stands last: usage over native counts over timings.
  void answer(const dom::object& object) {
    errors(object);
    choices(object);
    if (const auto nested = object_in(object, "response")) {
      errors(*nested);
      usage(*nested);
    }
    timings(object);
    native(object);
    if (const auto native_form = object_in(object, "__verbose")) {
      native(*native_form);
    }
    if (const auto message = object_in(object, "message")) {
      usage(*message);
    }
    usage(object);
    event_type(text_in(object, "type"));
  }

 private:
  void errors(const dom::object& object) {
    dom::element error;
    if (object["error"].get(error) == simdjson::SUCCESS && !error.is_null()) {
      facts_.error = true;
    }
  }

  void choices(const dom::object& object) {
    dom::array choices;
    if (object["choices"].get(choices) != simdjson::SUCCESS) {
      return;
    }
    dom::object first;
    if (choices.size() > 1 || (choices.at(0).get(first) == simdjson::SUCCESS &&
                               count_in(first, "index").value_or(0) > 0)) {
      facts_.several = true;
    }
  }

  void timings(const dom::object& object) {
    const auto timings = object_in(object, "timings");
    if (!timings) {
      return;
    }
    const auto cached = count_in(*timings, "cache_n");
    const auto computed = count_in(*timings, "prompt_n");
    set_if(facts_.cached_tokens, cached);
    set_if(facts_.computed_tokens, computed);
    set_if(facts_.generated_tokens, count_in(*timings, "predicted_n"));
    if (!object_in(object, "prompt_progress")) {  // there prompt_n is what was computed so far
      set_if(facts_.prompt_tokens, sum(cached, computed));
    }
    double ms = 0;
    if ((*timings)["prompt_ms"].get(ms) == simdjson::SUCCESS) {
      facts_.prompt_ms = ms;
    }
  }

  void native(const dom::object& object) {
    set_if(facts_.prompt_tokens, count_in(object, "tokens_evaluated"));
    set_if(facts_.generated_tokens, count_in(object, "tokens_predicted"));
    if (const auto slot = count_in(object, "id_slot");
        slot && *slot <= std::numeric_limits<std::uint32_t>::max()) {
      facts_.slot = static_cast<std::uint32_t>(*slot);
    }
    std::string_view content;
    if (object["content"].get(content) != simdjson::SUCCESS) {
      return;  // another shape: there "index", "stop" and "tokens" would mean something else
    }
    facts_.several = facts_.several || count_in(object, "index").value_or(0) > 0;
    facts_.truncated = facts_.truncated || true_in(object, "truncated");
    facts_.done = facts_.done || true_in(object, "stop");
    if (!object_in(object, "prompt_progress")) {  // there the list holds a placeholder
      ids(object);
    }
  }

  void ids(const dom::object& object) {
    dom::array tokens;
    if (object["tokens"].get(tokens) != simdjson::SUCCESS) {
      return;
    }
    for (const dom::element token : tokens) {
      std::int64_t id = 0;
      if (token.get(id) != simdjson::SUCCESS || id < std::numeric_limits<Token>::min() ||
          id > std::numeric_limits<Token>::max() || ids_.size() == kMaxIds) {
        ids_broken_ = true;
        return;
      }
      ids_.push_back(static_cast<Token>(id));
    }
  }

  /// OpenAI counts reused tokens as part of the prompt, Anthropic apart from it.
  void usage(const dom::object& object) {
    const auto usage = object_in(object, "usage");
    if (!usage) {
      return;
    }
    set_if(facts_.prompt_tokens, count_in(*usage, "prompt_tokens"));
    set_if(facts_.generated_tokens, count_in(*usage, "completion_tokens"));
    set_if(facts_.generated_tokens, count_in(*usage, "output_tokens"));
    for (const std::string_view details : {"prompt_tokens_details", "input_tokens_details"}) {
      if (const auto found = object_in(*usage, details)) {
        set_if(facts_.cached_tokens, count_in(*found, "cached_tokens"));
      }
    }
    const auto reused = count_in(*usage, "cache_read_input_tokens");
    set_if(facts_.cached_tokens, reused);
    const auto written = count_in(*usage, "cache_creation_input_tokens").value_or(0);
    set_if(facts_.prompt_tokens,
           sum(sum(count_in(*usage, "input_tokens"), reused.value_or(0)), written));
  }

  void event_type(std::string_view type) {
    constexpr std::array<std::string_view, 4> kLast = {"message_stop", "response.completed",
                                                       "response.incomplete", "response.failed"};
    facts_.done = facts_.done || std::find(kLast.begin(), kLast.end(), type) != kLast.end();
  }

  static constexpr std::size_t kMaxIds = std::size_t{1} << 22;

  AnswerFacts& facts_;
  Tokens& ids_;
  bool& ids_broken_;
};

}  // namespace

struct AnswerWatch::Reader {
  dom::parser parser;
  Tokens ids;
  bool ids_broken = false;
};

AnswerKind answer_kind(std::string_view content_type) noexcept {
  constexpr std::string_view kSpace = " \t";
  content_type = content_type.substr(0, content_type.find(';'));
  content_type.remove_prefix(std::min(content_type.find_first_not_of(kSpace), content_type.size()));
  content_type = content_type.substr(0, content_type.find_last_not_of(kSpace) + 1);
  if (equal_ignoring_case(content_type, "text/event-stream")) {
    return AnswerKind::sse;
  }
  return equal_ignoring_case(content_type, "application/json") ? AnswerKind::json
                                                               : AnswerKind::other;
}

AnswerWatch::AnswerWatch(AnswerKind kind) : kind_(kind) {}
AnswerWatch::AnswerWatch(AnswerWatch&&) noexcept = default;
AnswerWatch& AnswerWatch::operator=(AnswerWatch&&) noexcept = default;
AnswerWatch::~AnswerWatch() = default;

bool AnswerWatch::at_event_boundary() const noexcept {
  const bool may_get_lf = after_cr_ && crlf_;
  return kind_ == AnswerKind::sse && line_.empty() && !in_event_ && !may_get_lf;
}

void AnswerWatch::feed(std::string_view bytes) {
  if (kind_ == AnswerKind::sse) {
    feed_sse(bytes);
  } else if (kind_ == AnswerKind::json && !too_long_) {
    too_long_ = bytes.size() > kMaxWatchedBytes - data_.size();
    if (too_long_) {
      std::string().swap(data_);
    } else {
      data_.append(bytes);
    }
  }
}

void AnswerWatch::feed_sse(std::string_view bytes) {
  if (bytes.empty()) {
    return;
  }
  if (std::exchange(after_cr_, false)) {
    crlf_ = bytes.front() == '\n';
    bytes.remove_prefix(crlf_ ? 1 : 0);
  }
  // Each of the two is looked for again only when it was passed, so all passes over the piece
  // together read it at most twice.
  std::size_t lf = bytes.find('\n');
  std::size_t cr = bytes.find('\r');
  std::size_t from = 0;
  while (std::min(lf, cr) != std::string_view::npos) {
    const std::size_t end = std::min(lf, cr);
    end_line(bytes.substr(from, end - from));
    from = end + 1;
    if (end == cr) {
      after_cr_ = from == bytes.size();
      if (!after_cr_) {
        crlf_ = lf == from;
        from += crlf_ ? 1 : 0;
      }
      cr = bytes.find('\r', from);
    }
    if (lf < from) {
      lf = bytes.find('\n', from);
    }
  }
  // One byte more than can be read is kept, to know that it was too long.
  line_.append(bytes.substr(from, kMaxWatchedBytes + 1 - line_.size()));
}

/// A line ended; `rest` is the part of it that is not in line_ yet.
void AnswerWatch::end_line(std::string_view rest) {
  if (line_.empty()) {
    read_line(rest);
    return;
  }
  line_.append(rest.substr(0, kMaxWatchedBytes + 1 - line_.size()));
  std::string line = std::exchange(line_, {});
  read_line(line);
  if (line.capacity() <= kKeptCapacity) {
    line.clear();
    line_ = std::move(line);
  }
}

void AnswerWatch::read_line(std::string_view line) {
  if (std::exchange(first_line_, false) && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) {
    end_event();
    return;
  }
  if (line.front() == ':') {
    return;  // a comment
  }
  in_event_ = true;
  const std::string_view name = line.substr(0, line.find(':'));
  if (name == "error") {
    facts_.error = true;  // older llama-server: `error: {...}`
  }
  if (name != "data") {
    return;
  }
  std::string_view value = line.substr(std::min(name.size() + 1, line.size()));
  value.remove_prefix(value.starts_with(' ') ? 1 : 0);
  too_long_ = too_long_ || line.size() > kMaxWatchedBytes ||
              value.size() + 1 > kMaxWatchedBytes - data_.size();
  if (too_long_) {
    data_.clear();
    return;
  }
  data_.append(std::exchange(has_data_, true) ? "\n" : "").append(value);
}

void AnswerWatch::end_event() {
  in_event_ = false;
  has_data_ = false;
  if (std::exchange(too_long_, false)) {
    reader().ids_broken = true;
  }
  facts_.events += data_.empty() ? 0U : 1U;
  if (data_ == "[DONE]") {
    facts_.done = true;
  } else if (mentions_facts(data_)) {
    read_data();
  }
  if (data_.capacity() > kKeptCapacity) {
    data_ = std::string();
    reader().parser = dom::parser();
  }
  data_.clear();
}

/// Parses data_ and reads it. The text of an error says nothing, so codes are only tested.
void AnswerWatch::read_data() {
  const std::size_t size = data_.size();
  data_.append(simdjson::SIMDJSON_PADDING, '\0');
  dom::element root;
  if (reader().parser.parse(data_.data(), size, false).get(root) != simdjson::SUCCESS) {
    reader().ids_broken = true;
    return;
  }
  facts_.done = facts_.done || kind_ == AnswerKind::json;
  FactReader facts(facts_, reader().ids, reader().ids_broken);
  dom::object object;
  dom::array answers;
  if (root.get(object) == simdjson::SUCCESS) {
    facts.answer(object);
  } else if (root.get(answers) == simdjson::SUCCESS) {
    for (const dom::element answer : answers) {
      if (answer.get(object) == simdjson::SUCCESS) {
        facts.answer(object);
      }
    }
    facts_.several = facts_.several || answers.size() > 1;
  }
  if (facts_.several) {
    facts_.slot.reset();
  }
  if (facts_.done) {
    settle_ids();
  }
}

AnswerWatch::Reader& AnswerWatch::reader() {
  if (!reader_) {
    reader_ = std::make_unique<Reader>();
  }
  return *reader_;
}

void AnswerWatch::settle_ids() {
  const bool complete = reader_ && !reader_->ids_broken && !facts_.several &&
                        facts_.generated_tokens == reader_->ids.size();
  facts_.generated = complete ? reader_->ids : Tokens();
}

void AnswerWatch::finish() {
  if (kind_ == AnswerKind::sse) {
    if (!line_.empty()) {
      end_line({});
    }
    end_event();
  } else if (kind_ == AnswerKind::json && !data_.empty()) {
    read_data();
    data_ = std::string();
  }
  settle_ids();
}

}  // namespace toki::http
