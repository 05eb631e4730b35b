// Reading workloads from JSONL files.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "random.hpp"
#include "workload.hpp"

namespace replay {
namespace {

namespace fs = std::filesystem;
using toki::Errc;
using toki::Error;
using toki::Status;

// As deep as tokid passes on, and the line around a body.
json::parse_options deep() {
  json::parse_options options;
  options.max_depth = 520;
  return options;
}

// One line and where it stands.
struct Line {
  json::value value;
  std::string place;  ///< FILE:LINE
};

Error bad(const Line& line, std::string_view what) {
  return {Errc::invalid_argument, fmt::format("{}: {}", line.place, what)};
}

/// Calls take(line) for each line that is not blank, until it says that it has enough.
template <class Take>
Status each_line(const std::vector<fs::path>& files, const Take& take) {
  for (const fs::path& file : files) {
    std::ifstream in(file);
    if (!in) {
      return Error{Errc::not_found, fmt::format("{}: {}", file.string(), std::strerror(errno))};
    }
    std::size_t number = 0;
    for (std::string text; std::getline(in, text);) {
      Line line{{}, fmt::format("{}:{}", file.string(), ++number)};
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      boost::system::error_code ec;
      line.value = json::parse(text, ec, {}, deep());
      if (ec == json::error::incomplete) return bad(line, "the line breaks off: half a JSON value");
      if (ec) return bad(line, "no JSON: " + ec.message());
      if (!line.value.is_object()) return bad(line, "no JSON object");
      auto more = take(line);
      if (!more) return std::move(more).error();
      if (!*more) return toki::Done{};
    }
  }
  return toki::Done{};
}

enum class Kind { unknown, text, bodies, mooncake };

Kind kind_of(const json::value& line) {
  const auto has = [&](const char* name) { return !member(line, name).is_null(); };
  if (has("hash_ids")) return Kind::mooncake;
  if (has("session_id") && has("input")) return Kind::text;
  for (const char* name : {"body", "messages", "prompt", "input", "input_prefix"}) {
    if (has(name)) return Kind::bodies;
  }
  return Kind::unknown;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::text: return "text trace";
    case Kind::bodies: return "bodies";
    case Kind::mooncake: return "mooncake trace";
    case Kind::unknown: break;
  }
  return "unknown";
}

// The path that takes such a body.
std::string path_of(const json::object& body) {
  if (body.contains("messages")) return "/v1/chat/completions";
  if (body.contains("input")) return "/v1/responses";
  return body.contains("prompt") ? "/v1/completions" : "/infill";
}

class Reader {
 public:
  explicit Reader(const WorkloadSettings& settings) : settings_(settings) {}

  /// False: enough.
  toki::Result<bool> take(const Line& line) {
    const Kind kind = kind_of(line.value);
    if (kind == Kind::unknown) {
      return bad(line,
                 "neither a text trace (session_id, input), a recorded body (body, messages, "
                 "prompt) nor a Mooncake trace (hash_ids)");
    }
    if (kind_ == Kind::unknown) kind_ = kind;
    if (kind != kind_) {
      return bad(line, fmt::format("a {} among a {}", name_of(kind), name_of(kind_)));
    }
    switch (kind) {
      case Kind::text: return text(line);
      case Kind::bodies: return body(line);
      default: return mooncake(line);
    }
  }

  Workload finish() {
    workload_.kind = name_of(kind_);
    if (kind_ == Kind::text) finish_sessions();
    double earliest = workload_.requests.empty() ? 0 : workload_.requests.front().at_ms;
    for (const Request& request : workload_.requests) earliest = std::min(earliest, request.at_ms);
    for (Request& request : workload_.requests) request.at_ms -= earliest;
    return std::move(workload_);
  }

 private:
  bool enough() const {
    return settings_.max_requests != 0 && workload_.requests.size() >= settings_.max_requests;
  }

  toki::Result<bool> text(const Line& line) {
    const json::value& session = member(line.value, "session_id");
    const json::value& input = member(line.value, "input");
    if (!session.is_string()) return bad(line, "session_id is no string");
    if (!input.is_string()) return bad(line, "input is no string");
    const auto [found, fresh] =
        sessions_.try_emplace(std::string(text_of(session)), sessions_.size());
    if (settings_.sessions != 0 && found->second >= settings_.sessions) return true;
    Request request;
    request.session = found->second;
    request.at_ms = number_of(member(line.value, "timestamp"), 0) / 1000;
    request.body = chat_body(first_chars(text_of(input), settings_.max_chars), settings_);
    workload_.requests.push_back(std::move(request));
    return true;
  }

  // A session's requests in the order of their times, which count from its first; only the first
  // session_requests of them.
  void finish_sessions() {
    workload_.sessions = 0;
    for (const Request& request : workload_.requests) {
      workload_.sessions = std::max(workload_.sessions, request.session + 1);
    }
    std::stable_sort(workload_.requests.begin(), workload_.requests.end(),
                     [](const Request& a, const Request& b) {
                       return std::pair(a.session, a.at_ms) < std::pair(b.session, b.at_ms);
                     });
    std::vector<Request> kept;
    std::vector<std::size_t> taken(workload_.sessions);
    std::vector<double> begun(workload_.sessions);
    for (Request& request : workload_.requests) {
      std::size_t& count = taken[request.session];
      if (count == 0) begun[request.session] = request.at_ms;
      if (settings_.session_requests != 0 && count == settings_.session_requests) continue;
      ++count;
      request.at_ms -= begun[request.session];
      kept.push_back(std::move(request));
    }
    workload_.requests = std::move(kept);
  }

  toki::Result<bool> body(const Line& line) {
    Request request;
    json::value body = line.value;
    if (const json::value& wrapped = member(line.value, "body"); !wrapped.is_null()) {
      body = wrapped;
      if (wrapped.is_string()) {  // the bytes as they came
        boost::system::error_code ec;
        body = json::parse(text_of(wrapped), ec, {}, deep());
        if (ec) return bad(line, "body holds no JSON: " + ec.message());
      }
      request.at_ms = number_of(member(line.value, "at_ms"), 0);
    }
    if (!body.is_object()) return bad(line, "body is no JSON object");
    request.body = std::move(body.as_object());
    request.path = std::string(text_of(member(line.value, "path")));
    if (request.path.empty()) request.path = path_of(request.body);
    if (!request.path.starts_with('/')) return bad(line, "path does not begin with /");
    if (settings_.answer_tokens_given) request.body["max_tokens"] = settings_.answer_tokens;
    request.session = workload_.sessions++;  // nothing tells which belong together
    workload_.requests.push_back(std::move(request));
    return !enough();
  }

  toki::Result<bool> mooncake(const Line& line) {
    const json::array* ids = member(line.value, "hash_ids").if_array();
    if (ids == nullptr || ids->empty()) return bad(line, "hash_ids is no list of numbers");
    constexpr double kBlock = 512;  // tokens of one hash
    const double length =
        number_of(member(line.value, "input_length"), kBlock * static_cast<double>(ids->size()));
    const double last = length - kBlock * static_cast<double>(ids->size() - 1);
    if (last <= 0 || last > kBlock) return bad(line, "input_length does not fit hash_ids");
    std::string text;
    for (std::size_t i = 0; i < ids->size(); ++i) {
      if (!(*ids)[i].is_number()) return bad(line, "hash_ids is no list of numbers");
      const double share = i + 1 == ids->size() ? last / kBlock : 1;
      const double words = share * static_cast<double>(settings_.block_words);
      if (i > 0) text += ' ';
      text += seeded_words(
          std::max<std::size_t>(1, static_cast<std::size_t>(words)),
          settings_.seed + bench::mix(static_cast<std::uint64_t>(integer_of((*ids)[i], 0))));
      if (settings_.max_chars != 0 && text.size() >= settings_.max_chars) break;
    }
    Request request;
    request.session = workload_.sessions++;
    request.at_ms = number_of(member(line.value, "timestamp"), 0);
    request.body = chat_body(first_chars(text, settings_.max_chars), settings_);
    workload_.requests.push_back(std::move(request));
    return !enough();
  }

  const WorkloadSettings& settings_;
  Kind kind_ = Kind::unknown;
  Workload workload_;
  std::map<std::string, std::size_t> sessions_;
};

toki::Result<std::vector<fs::path>> files_of(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return std::vector<fs::path>{path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, ec)) {
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    return Error{Errc::not_found, fmt::format("{}: no *.jsonl in this folder", path.string())};
  }
  return files;
}

}  // namespace

toki::Result<Workload> read_workload(const fs::path& path, const WorkloadSettings& settings) {
  auto files = files_of(path);
  if (!files) return std::move(files).error();
  Reader reader(settings);
  auto status = each_line(*files, [&](const Line& line) { return reader.take(line); });
  if (!status) return std::move(status).error();
  Workload workload = reader.finish();
  if (workload.requests.empty()) {
    return Error{Errc::not_found, fmt::format("{}: no request in it", path.string())};
  }
  return workload;
}

}  // namespace replay
