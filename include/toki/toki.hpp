// Everything of the core, for small programs.
//
// Threads, Ownership, Errors, Cost: see each header.
#pragma once

#include <toki/backend.hpp>
#include <toki/block_tree.hpp>
#include <toki/blocking_driver.hpp>
#include <toki/divergence.hpp>
#include <toki/embedding.hpp>
#include <toki/engine.hpp>
#include <toki/fingerprints.hpp>
#include <toki/index_store.hpp>
#include <toki/kv_store.hpp>
#include <toki/log.hpp>
#include <toki/named_states.hpp>
#include <toki/pin_file.hpp>
#include <toki/pin_record.hpp>
#include <toki/prompt_record.hpp>
#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/similarity_index.hpp>
#include <toki/slot_pool.hpp>
#include <toki/state_store.hpp>
#include <toki/stats.hpp>
#include <toki/token.hpp>
#include <toki/token_cache.hpp>
#include <toki/version.hpp>
