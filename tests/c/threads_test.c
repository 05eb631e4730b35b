// One engine, many threads.
#include <pthread.h>
#include <string.h>

#include "check.h"

enum { THREADS = 4, REQUESTS = 200 };

typedef struct bench {
  toki_engine* engine;
  pthread_mutex_t mutex;
  pthread_cond_t freed;
  unsigned long wakes;
} bench;

static void woken(void* user) {
  bench* self = user;
  pthread_mutex_lock(&self->mutex);
  ++self->wakes;
  pthread_cond_broadcast(&self->freed);
  pthread_mutex_unlock(&self->mutex);
}

typedef struct worker {
  bench* shared;
  toki_token first;
  unsigned done;
} worker;

static void* work(void* given) {
  worker* self = given;
  bench* shared = self->shared;
  for (toki_token i = 0; i < REQUESTS; ++i) {
    const prompt asked = counting(self->first + i % 7, 64);
    const toki_query query = query_of(&asked);
    toki_ticket* ticket = NULL;
    for (;;) {
      pthread_mutex_lock(&shared->mutex);
      const unsigned long before = shared->wakes;
      pthread_mutex_unlock(&shared->mutex);
      if (toki_engine_begin(shared->engine, &query, &ticket, NULL) == TOKI_OK) {
        break;
      }
      pthread_mutex_lock(&shared->mutex);
      while (shared->wakes == before) {
        pthread_cond_wait(&shared->freed, &shared->mutex);
      }
      pthread_mutex_unlock(&shared->mutex);
    }
    toki_ticket_sent(ticket);
    toki_outcome outcome;
    toki_init(&outcome);
    outcome.ending = i % 5 == 0 ? TOKI_ENDING_CANCELLED : TOKI_ENDING_COMPLETED;
    outcome.cached_tokens = -1;
    self->done += toki_ticket_finish(ticket, &outcome, NULL, NULL) == TOKI_OK ? 1 : 0;
  }
  return NULL;
}

static void many_threads(void) {
  bench shared = {.engine = new_engine(2, NULL)};
  pthread_mutex_init(&shared.mutex, NULL);
  pthread_cond_init(&shared.freed, NULL);
  CHECK(toki_engine_on_slot_free(shared.engine, woken, &shared, NULL) == TOKI_OK);
  pthread_t threads[THREADS];
  worker workers[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    workers[i] = (worker){.shared = &shared, .first = 1000 * i};
    CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    pthread_join(threads[i], NULL);
    CHECK(workers[i].done == REQUESTS);
  }
  CHECK(shared.wakes >= THREADS * REQUESTS);
  CHECK(stat_of(shared.engine, NULL, "requests_total") == THREADS * REQUESTS);
  CHECK(stat_of(shared.engine, NULL, "slots_busy") == 0);
  CHECK(stat_of(shared.engine, NULL, "requests_cancelled") == THREADS * REQUESTS / 5);
  toki_engine_free(shared.engine);
  pthread_cond_destroy(&shared.freed);
  pthread_mutex_destroy(&shared.mutex);
}

static void* finish_elsewhere(void* given) {
  toki_ticket_abandon(given);
  return NULL;
}

static void note_thread(void* user) {
  *(pthread_t*)user = pthread_self();
}

static void other_thread(void) {
  toki_engine* engine = new_engine(1, NULL);
  pthread_t seen = pthread_self();
  CHECK(toki_engine_on_slot_free(engine, note_thread, &seen, NULL) == TOKI_OK);
  const prompt asked = counting(1, 64);
  const toki_query query = query_of(&asked);
  toki_ticket* ticket = NULL;
  CHECK(toki_engine_begin(engine, &query, &ticket, NULL) == TOKI_OK);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, finish_elsewhere, ticket) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(pthread_equal(seen, thread));
  toki_engine_free(engine);
}

void threads_tests(void) {
  run_case("many threads share one engine, and every slot comes back", many_threads);
  run_case("who waits is woken by the thread that frees the slot", other_thread);
}
