#include <toki/version.hpp>

#include <cmath>

#include "report.hpp"

namespace replay {
namespace {

json::value number(double value) {
  if (std::isnan(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

json::value count(std::int64_t value) {
  return value < 0 ? json::value(nullptr) : json::value(value);
}

json::object figures(const Run& run) {
  const Figures values = figures_of(run);
  json::object result;
  for (const FigureName& name : kFigures) result[name.key] = number(values.*name.value);
  return result;
}

json::object spread(const ArmReport& arm) {
  json::object result;
  for (const FigureName& name : kFigures) {
    const Spread s = arm.spread(name);
    result[name.key] =
        json::object{{"min", number(s.min)}, {"median", number(s.median)}, {"max", number(s.max)}};
  }
  return result;
}

json::array requests(const Run& run) {
  json::array list;
  for (const Outcome& o : run.outcomes) {
    json::object one{{"request", o.index},
                     {"sent_ms", o.sent_ms},
                     {"late_ms", o.late_ms},
                     {"first_token_ms", o.first_ms},
                     {"latency_ms", o.total_ms},
                     {"status", o.status},
                     {"prompt_tokens", count(o.prompt_tokens)},
                     {"cached_tokens", count(o.cached_tokens)},
                     {"output_tokens", count(o.output_tokens)},
                     {"oracle_tokens", count(o.oracle_tokens)},
                     {"source", source_of(o)}};
    if (!o.failure.empty()) one["failure"] = o.failure;
    list.push_back(std::move(one));
  }
  return list;
}

json::array samples(const Run& run) {
  json::array list;
  for (const Sample& sample : run.samples) {
    list.push_back(json::object{{"requests", sample.requests},
                                {"wall_ms", sample.wall_ms},
                                {"data_mib", sample.data_mib},
                                {"slots_mib", sample.slots_mib}});
  }
  return list;
}

json::array comparisons(const Report& report) {
  json::array list;
  for (const Comparison& pairs : report.comparisons) {
    json::array parted;
    for (const PartedPair& pair : pairs.parted) {
      parted.push_back(json::object{{"repeat", pair.repeat},
                                    {"request", pair.index},
                                    {"verdict", pair.verdict.name},
                                    {"common_chars", pair.verdict.common_chars},
                                    {"cached_a", count(pair.cached_a)},
                                    {"cached_b", count(pair.cached_b)}});
    }
    list.push_back(json::object{{"a", pairs.a},
                                {"b", pairs.b},
                                {"pairs", pairs.pairs},
                                {"identical", pairs.identical},
                                {"other_prompts", pairs.other_prompts},
                                {"parted", std::move(parted)}});
  }
  return list;
}

}  // namespace

std::string as_json(const Report& report) {
  json::object settings;
  for (const auto& [name, value] : report.settings) settings[name] = value;
  json::array arms;
  for (const ArmReport& arm : report.arms) {
    json::array runs;
    for (const Run& run : arm.runs) {
      json::object one{{"repeat", run.repeat},
                       {"figures", figures(run)},
                       {"requests", requests(run)},
                       {"disk", samples(run)}};
      if (!run.failed.empty()) one["failed"] = run.failed;
      if (!run.no_oracle.empty()) one["no_oracle"] = run.no_oracle;
      runs.push_back(std::move(one));
    }
    arms.push_back(json::object{{"name", arm.settings.name},
                                {"said", arm.settings.said},
                                {"llama_server", arm.facts.build},
                                {"model", arm.facts.model},
                                {"slots", arm.facts.slots},
                                {"context", arm.facts.context},
                                {"spread", spread(arm)},
                                {"runs", std::move(runs)}});
  }
  const json::object all{{"toki_replay", toki::version()},
                         {"tokid", report.tokid_version},
                         {"machine", report.machine},
                         {"system", report.system},
                         {"begun", report.begun},
                         {"own_cpu_s", report.own_cpu_s},
                         {"interrupted", report.interrupted},
                         {"settings", std::move(settings)},
                         {"arms", std::move(arms)},
                         {"comparisons", comparisons(report)}};
  return json::serialize(all) + "\n";
}

}  // namespace replay
