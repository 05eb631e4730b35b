#include "service.hpp"

#include <toki/kv_store.hpp>
#include <toki/named_states.hpp>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "data_dir.hpp"
#include "log.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::LogLevel;
using toki::http::KeepAlive;
using toki::http::Millis;

namespace {

KeepAlive keep_alive(const Options& options) {
  return {.grace = Millis(options.keepalive_grace_ms),
          .interval = Millis(options.keepalive_interval_ms),
          .form = options.keepalive_form == "off"    ? KeepAlive::Form::off
                  : options.keepalive_form == "line" ? KeepAlive::Form::line
                                                     : KeepAlive::Form::comment};
}

toki::http::AdmissionLimits queue_limits(const Options& o) {
  return {.length = o.queue_length,
          .wait = Millis(o.queue_wait_ms),
          .slot_wait = Millis(o.slot_wait_ms),
          .lead_wait = Millis(o.lead_wait_ms)};
}

// The only backend's lines need no name.
toki::LogSink sink_for(const std::string& name) {
  if (name.empty()) {
    return log_line;
  }
  return [name](LogLevel level, std::string_view text) {
    log_line(level, fmt::format("{}: {}", name, text));
  };
}

using OpenedStore = toki::Result<std::unique_ptr<toki::StateStore>>;

template <class Store>
OpenedStore as_store(toki::Result<std::unique_ptr<Store>> opened) {
  return opened ? OpenedStore(std::move(*opened)) : OpenedStore(opened.error());
}

// For a folder that only llama-server reaches. Nobody asked for it, so its failing stops nothing.
OpenedStore open_named(const Options& options, const ServiceSetup& setup,
                       const toki::LogSink& log) {
  auto opened = toki::NamedStates::open(
      {.dir = below(setup.data_dir, "named"), .names = options.remote_states}, log);
  if (!opened) {
    log(LogLevel::warn, "no slot states are kept by the backend: " + opened.error().detail);
    return std::unique_ptr<toki::StateStore>();
  }
  return as_store(std::move(opened));
}

// For a folder that both reach.
OpenedStore open_shared(const Options& options, const ServiceSetup& setup,
                        const toki::LogSink& log) {
  auto opened = toki::KvStore::open({.dir = below(setup.data_dir, "kv"),
                                     .slot_dir = setup.slot_dir,
                                     .max_bytes = std::uint64_t{options.kv_gib} << 30},
                                    log);
  if (opened) {
    return as_store(std::move(opened));
  }
  const toki::Error& error = opened.error();
  if (error.code == toki::Errc::unavailable || error.code == toki::Errc::no_space) {
    log(LogLevel::warn, "no KV cache is kept on disk until the next start: " + error.detail);
    return std::unique_ptr<toki::StateStore>();  // a disk that fails is no reason not to serve
  }
  return toki::Error{error.code, fmt::format("--slot-dir {}, --data-dir {}: {}", setup.slot_dir,
                                             setup.data_dir, error.detail)};
}

// Null where nothing is to be kept.
OpenedStore open_store(const Options& options, const ServiceSetup& setup,
                       const toki::LogSink& log) {
  if (!setup.slot_dir.empty()) {
    return options.kv_gib > 0 ? open_shared(options, setup, log)
                              : std::unique_ptr<toki::StateStore>();
  }
  return options.remote_states > 0 ? open_named(options, setup, log)
                                   : std::unique_ptr<toki::StateStore>();
}

}  // namespace

std::int64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Millis>(now).count();
}

toki::Result<std::unique_ptr<Service>> Service::open(asio::io_context& io, const Options& options,
                                                     ServiceSetup setup, Recorder* recorder) {
  auto store = open_store(options, setup, sink_for(setup.name));
  if (!store) {
    return store.error();
  }
  return std::unique_ptr<Service>(
      new Service(io, options, std::move(setup), std::move(*store), recorder));
}

Service::Service(asio::io_context& io, const Options& o, ServiceSetup setup,
                 std::unique_ptr<toki::StateStore> kept, Recorder* recorder)
    : options_(o),
      setup_(std::move(setup)),
      log_(sink_for(setup_.name)),
      recorder_(recorder),
      upstream(io.get_executor(), setup_.address, o.backend_key, o.backend_tls),
      store(std::move(kept)),
      worker(store ? std::make_unique<toki::http::StoreWorker>(*store) : nullptr),
      fingerprints(in_data_dir("fingerprints")),
      pin_file(in_data_dir("pins")),
      embed_upstream(io.get_executor(), o.embed_address.value_or(setup_.address),
                     o.embed_address ? std::string() : o.backend_key, o.backend_tls),
      embedder(embed_upstream),
      backend(io.get_executor(), upstream,
              {.render = Millis(o.tokenize_limit_ms),
               .save = Millis(o.save_limit_ms),
               .restore = Millis(o.restore_limit_ms),
               .token_cache_bytes = o.token_cache_mib << 20}),
      index({.path = in_data_dir("index.db"), .max_prompts = o.max_prompts}, log_,
            [this, &io](std::vector<toki::PromptRecord> prompts) {
              auto adopt = [this, read = std::move(prompts)]() mutable {
                if (!forgot_all_) {
                  engine.adopt(std::move(read));
                }
              };
              asio::post(io, std::move(adopt));
            }),
      engine({.tree = {.max_bytes = o.tree_mib << 20},
              .max_prompts = o.max_prompts,
              .max_prompt_bytes = o.prompts_mib << 20,
              .min_reuse_for_hit = o.min_reuse_for_hit,
              .hot_pins = o.pin_hot,
              .exact_batch = o.exact_batch,
              .isolated = o.keys.any() && !o.share_tenants},
             &std::chrono::steady_clock::now, &unix_ms),
      admission(io.get_executor(), engine, queue_limits(o)),
      monitor(io.get_executor(), backend, upstream, engine, admission,
              {.interval = Millis(o.probe_interval_ms),
               .own_cache = setup_.own_cache,
               .states = states(),
               .exact_batch = o.exact_batch,
               .starts_with_us = !o.server.empty()},
              log_),
      embeddings(io.get_executor(), o.embed_address ? &embedder : nullptr, engine,
                 Millis(o.embed_limit_ms), log_),
      housekeeper(io.get_executor(), engine, backend, worker.get(), log_),
      audit(
          io.get_executor(),
          {upstream, engine, backend, monitor, o.embed_address ? &embedder : nullptr, worker.get()},
          {.every = o.audit_every, .same_meaning = o.audit_cosine}, log_),
      proxy(upstream, backend, monitor, engine, admission, embeddings,
            {.progress_limit = Millis(o.progress_limit_ms),
             .volatile_lines = o.drop_volatile_line,
             .keep_alive = keep_alive(o),
             .audit = o.audit_every > 0 ? &audit : nullptr,
             .store = worker.get(),
             .record = record()},
            [this](const toki::http::RequestReport& report) {
              log_request(report, setup_.name);
              recent.add(report, unix_ms());
            }),
      operations(engine, backend, index, store.get(), worker.get(), housekeeper, recent) {
  if (store) {
    engine.use_store(
        [this](const toki::Scope& scope, toki::TokenSpan tokens) {
          return store->match(scope, tokens);
        },
        [this](const toki::Scope& scope, toki::TokenSpan tokens) { worker->doubt(scope, tokens); });
  }
  adopt_pins();
  engine.on_prompt_change([this](toki::PromptChange change) { keep(std::move(change)); });
}

std::string Service::in_data_dir(const char* file) const {
  return below(setup_.data_dir, file);
}

std::function<void(toki::http::Endpoint, std::string_view)> Service::record() {
  if (recorder_ == nullptr) {
    return {};
  }
  return [this](toki::http::Endpoint endpoint, std::string_view body) {
    recorder_->record(toki::http::path_of(endpoint), body, unix_ms());
  };
}

std::optional<toki::http::StateSetup> Service::states() {
  if (!store) {
    return std::nullopt;
  }
  return toki::http::StateSetup{.trial_dir = in_data_dir("trial"),
                                .slot_dir = setup_.slot_dir,
                                .named = setup_.slot_dir.empty() ? worker.get() : nullptr,
                                .fingerprints = &fingerprints};
}

// Pins are few, and what a person asked for must not wait in a queue: written at once.
void Service::adopt_pins() {
  auto kept = pin_file.read();
  if (kept) {
    engine.adopt_pins(std::move(*kept));
  } else {
    log_(LogLevel::warn, "pins of earlier runs are lost: " + kept.error().detail);
  }
  engine.on_pins_change([this](const std::vector<toki::PinRecord>& pins) {
    if (const auto status = pin_file.write(pins); !status) {
      log_(LogLevel::warn, "pins will not survive a restart: " + status.error().detail);
    }
  });
}

void Service::keep(toki::PromptChange change) {
  toki::PromptRecord& prompt = change.prompt;
  switch (change.kind) {
    case toki::PromptChange::Kind::put: index.put(std::move(prompt)); break;
    case toki::PromptChange::Kind::used:
      index.use(prompt.id, prompt.use, prompt.last_used_ms);
      break;
    case toki::PromptChange::Kind::removed: index.remove(prompt.id); break;
    case toki::PromptChange::Kind::cleared:
      forgot_all_ = true;
      index.clear();
      break;
  }
}

void Service::run(toki::http::TaskGroup& tasks) {
  tasks.spawn(monitor.run());
  tasks.spawn(embeddings.run());
  tasks.spawn(housekeeper.run());
  if (options_.audit_every > 0) {
    tasks.spawn(audit.run());
  }
}

void Service::reload(const Options& o) {
  admission.set_limits(queue_limits(o));
  proxy.set_volatile_lines(o.drop_volatile_line);
}

asio::awaitable<void> Service::save(Millis limit) {
  co_await housekeeper.flush(limit);
}

void Service::close() {
  upstream.keep_none();
  embed_upstream.keep_none();
  if (!index.flush(Millis(2000))) {
    log_(LogLevel::warn, "not all of the index could be written");
  }
}

toki::Stats Service::stats() const {
  toki::Stats all = proxy.stats();
  all.backend_cache_mib = setup_.cache_mib;
  index.add_to(all);
  if (store) {
    store->add_to(all);
  }
  if (recorder_ != nullptr) {
    recorder_->add_to(all);
  }
  return all;
}

}  // namespace tokid
