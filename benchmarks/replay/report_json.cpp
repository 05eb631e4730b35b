#include <toki/version.hpp>

#include <algorithm>
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

json::object share(double value, const toki::Interval& range) {
  return {{"share", value}, {"low", range.low}, {"high", range.high}};
}

json::object counts(const toki::DivergenceCounts& found) {
  using toki::Divergence;
  json::object result{{"pairs", found.pairs()}};
  for (const auto& [name, kind] : {std::pair("identical", Divergence::identical),
                                   std::pair("whitespace_only", Divergence::whitespace_only),
                                   std::pair("restore_noise", Divergence::restore_noise),
                                   std::pair("substantive", Divergence::substantive)}) {
    result[name] = found.count(kind);
  }
  const double pairs = static_cast<double>(std::max<std::uint64_t>(1, found.pairs()));
  result["divergent_of_pairs"] = share(static_cast<double>(found.divergent()) / pairs,
                                       toki::wilson(found.divergent(), found.pairs()));
  result["substantive_of_divergent"] =
      share(found.substantive_share(), found.substantive_interval());
  return result;
}

json::object parted_pair(const PartedPair& pair) {
  const toki::Comparison& found = pair.found;
  json::object one{{"repeat", pair.repeat},
                   {"request", pair.index},
                   {"class", to_string(found.kind)},
                   {"reason", to_string(found.reason)},
                   {"equal_characters", found.parting.characters},
                   {"equal_tokens", count(pair.tokens)},
                   {"equal_words", found.parting.words},
                   {"words_a", found.words_a},
                   {"words_b", found.words_b},
                   {"words_changed", found.words_changed},
                   {"start_a", to_string(pair.start_a)},
                   {"start_b", to_string(pair.start_b)},
                   {"cached_a", count(pair.cached_a)},
                   {"cached_b", count(pair.cached_b)}};
  if (found.reason == toki::DivergenceReason::similarity) one["cosine"] = found.cosine;
  return one;
}

json::array comparisons(const Report& report) {
  json::array list;
  for (const ArmPairs& pairs : report.comparisons) {
    json::object one{{"a", pairs.a}, {"b", pairs.b}};
    for (const auto& [name, value] : counts(pairs.counts)) one[name] = value;
    json::array groups;
    for (const PairGroup& group : pairs.groups) {
      json::object part = counts(group.counts);
      part["start_a"] = to_string(group.a);
      part["start_b"] = to_string(group.b);
      part["equal_reuse"] = group.equal_reuse;
      groups.push_back(std::move(part));
    }
    json::array parted;
    for (const PartedPair& pair : pairs.parted) parted.push_back(parted_pair(pair));
    one["groups"] = std::move(groups);
    one["other_prompts"] = pairs.other_prompts;
    one["parted"] = std::move(parted);
    list.push_back(std::move(one));
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
                         {"comparisons", comparisons(report)},
                         {"undecided_pairs_are", report.meaning},
                         {"undecided_without_embedding", report.undecided}};
  return json::serialize(all) + "\n";
}

}  // namespace replay
