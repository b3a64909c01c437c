#include "shim.h"

// LoadGen allocates for every sample on the completing thread, and frees on its log thread: this
// header replaces `new` and `delete` of LoadGen. Libraries opened at run time keep their own.
#include <mimalloc-new-delete.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "issue_query_controller.h"
#include "loadgen.h"
#include "logging.h"
#include "query_sample.h"
#include "query_sample_library.h"
#include "system_under_test.h"
#include "test_settings_internal.h"

// Defined by LoadGen's mlperf_conf.h in one of its sources; no header declares it.
extern const char* mlperf_conf;

// Layouts that the Rust side repeats.
static_assert(sizeof(mlperf::QuerySample) == 16, "QuerySample is {id, index}");
static_assert(offsetof(mlperf::QuerySample, id) == 0 && offsetof(mlperf::QuerySample, index) == 8, "QuerySample");
static_assert(sizeof(mlperf::QuerySampleResponse) == 32, "QuerySampleResponse is {id, data, size, n_tokens}");
static_assert(offsetof(mlperf::QuerySampleResponse, id) == 0, "QuerySampleResponse");
static_assert(offsetof(mlperf::QuerySampleResponse, data) == 8, "QuerySampleResponse");
static_assert(offsetof(mlperf::QuerySampleResponse, size) == 16, "QuerySampleResponse");
static_assert(offsetof(mlperf::QuerySampleResponse, n_tokens) == 24, "QuerySampleResponse");
static_assert(sizeof(mlperf::ResponseId) == 8 && sizeof(mlperf::QuerySampleIndex) == 8, "64-bit only");
static_assert(sizeof(bool) == 1, "bool is one byte on the other side");

// The other side's numbers of scenarios and modes.
constexpr bool Is(mlperf::TestScenario scenario, int number) { return static_cast<int>(scenario) == number; }
static_assert(Is(mlperf::TestScenario::SingleStream, 0) && Is(mlperf::TestScenario::MultiStream, 1), "scenarios");
static_assert(Is(mlperf::TestScenario::Server, 2) && Is(mlperf::TestScenario::Offline, 3), "scenarios");
constexpr bool Is(mlperf::TestMode mode, int number) { return static_cast<int>(mode) == number; }
static_assert(Is(mlperf::TestMode::SubmissionRun, 0) && Is(mlperf::TestMode::AccuracyOnly, 1), "modes");
static_assert(Is(mlperf::TestMode::PerformanceOnly, 2) && Is(mlperf::TestMode::FindPeakPerformance, 3), "modes");

namespace loadgen_bridge {
namespace {

// Thrown through LoadGen's RegisterIssueQueryThread, which owns nothing there; caught in this file.
struct Stopped {};

// Whether this thread is inside lg_register_issue_query_thread.
thread_local bool registered_thread = false;

// Never returns to LoadGen. A registered thread owns nothing that others read, so it may unwind.
// The thread in StartTest must sleep: outstanding responses point to query metadata that it owns.
void Stop() {
  if (registered_thread) throw Stopped();
  for (;;) pause();
}

void Check(int32_t answer) {
  if (answer != LG_GO_ON) Stop();
}

class Sut : public mlperf::SystemUnderTest {
 public:
  explicit Sut(const lg_callbacks& callbacks) : callbacks_(callbacks) {}

  // Calls the callback each time. LoadGen keeps the reference and reads it later on its logging
  // thread, so each name keeps its address while this object lives.
  const std::string& Name() override {
    const char* name = nullptr;
    size_t length = 0;
    Check(callbacks_.get_name(callbacks_.context, &name, &length));
    std::lock_guard<std::mutex> lock(mutex_);
    names_.emplace_back(name, length);
    return names_.back();
  }

  void IssueQuery(const std::vector<mlperf::QuerySample>& samples) override {
    Check(callbacks_.issue_query(callbacks_.context, samples.data(), samples.size()));
  }

  void FlushQueries() override { Check(callbacks_.flush_queries(callbacks_.context)); }

 private:
  const lg_callbacks callbacks_;
  std::mutex mutex_;
  std::deque<std::string> names_;  // A deque does not move its elements.
};

class Qsl : public mlperf::QuerySampleLibrary {
 public:
  explicit Qsl(const lg_callbacks& callbacks) : callbacks_(callbacks), name_(callbacks.qsl_name) {}

  const std::string& Name() override { return name_; }
  size_t TotalSampleCount() override { return callbacks_.total_sample_count; }
  size_t PerformanceSampleCount() override { return callbacks_.performance_sample_count; }

  void LoadSamplesToRam(const std::vector<mlperf::QuerySampleIndex>& samples) override {
    Check(callbacks_.load_samples(callbacks_.context, samples.data(), samples.size()));
  }
  void UnloadSamplesFromRam(const std::vector<mlperf::QuerySampleIndex>& samples) override {
    Check(callbacks_.unload_samples(callbacks_.context, samples.data(), samples.size()));
  }

 private:
  const lg_callbacks callbacks_;
  const std::string name_;
};

// Accesses four private members of LoadGen's controller without a change to LoadGen: an explicit
// instantiation may name them. LoadGen's wait for its issue threads misses registrations, so a late
// thread costs 10 s. On an abort LoadGen does not wake an issue thread that has issued its last
// query.
using Controller = mlperf::loadgen::IssueQueryController;
template <typename Tag, typename Tag::Type Member>
struct Reveal {
  friend typename Tag::Type Get(Tag) { return Member; }
};
#define LG_REVEAL(Tag, type, member)         \
  struct Tag {                               \
    using Type = type Controller::*;         \
    friend Type Get(Tag);                    \
  };                                         \
  template struct Reveal<Tag, &Controller::member>;
LG_REVEAL(Mutex, std::mutex, mtx)
LG_REVEAL(Changed, std::condition_variable, cond_var)
LG_REVEAL(ThreadIds, std::vector<std::thread::id>, thread_ids)
LG_REVEAL(Issuing, bool, issuing)
#undef LG_REVEAL

void FromLoadgen(const mlperf::TestSettings& from, lg_test_settings* to) {
  to->scenario = static_cast<int32_t>(from.scenario);
  to->mode = static_cast<int32_t>(from.mode);
#define LG_COPY(type, name) to->name = static_cast<type>(from.name);
  LG_TEST_SETTINGS_FIELDS(LG_COPY)
#undef LG_COPY
}

void Say(char* error, size_t error_size, const char* what) {
  if (error_size == 0) return;
  std::strncpy(error, what, error_size - 1);
  error[error_size - 1] = '\0';
}

// Runs `work`. Returns 0, or 1 after an exception, with its text in `error`.
template <typename Work>
int32_t Guard(char* error, size_t error_size, Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& exception) {
    Say(error, error_size, exception.what());
  } catch (...) {
    Say(error, error_size, "something that is no std::exception");
  }
  return 1;
}

}  // namespace

mlperf::TestSettings ToLoadgen(const lg_test_settings& from) {
  mlperf::TestSettings to{};
  to.scenario = static_cast<mlperf::TestScenario>(from.scenario);
  to.mode = static_cast<mlperf::TestMode>(from.mode);
#define LG_COPY(type, name) to.name = static_cast<decltype(to.name)>(from.name);
  LG_TEST_SETTINGS_FIELDS(LG_COPY)
#undef LG_COPY
  return to;
}

}  // namespace loadgen_bridge

using namespace loadgen_bridge;

extern "C" {

void lg_default_test_settings(lg_test_settings* out) {
  // The braces initialize token_latency_scaling_factor, which has no default.
  FromLoadgen(mlperf::TestSettings{}, out);
}

size_t lg_test_settings_layout(const lg_field** fields) {
#define LG_DESCRIBE(type, name) {#name, offsetof(lg_test_settings, name), sizeof(type)},
  static const lg_field table[] = {LG_DESCRIBE(int32_t, scenario) LG_DESCRIBE(int32_t, mode)
                                       LG_TEST_SETTINGS_FIELDS(LG_DESCRIBE)};
#undef LG_DESCRIBE
  *fields = table;
  return sizeof(table) / sizeof(table[0]);
}

const char* lg_mlperf_conf(void) { return mlperf_conf; }

int32_t lg_from_config(lg_test_settings* settings, const char* path, const char* model, const char* scenario,
                       int32_t conf_type, char* error, size_t error_size) {
  int code = 0;
  int32_t threw = Guard(error, error_size, [&] {
    mlperf::TestSettings converted = ToLoadgen(*settings);
    code = converted.FromConfig(path, model, scenario, conf_type);
    FromLoadgen(converted, settings);
  });
  return threw != 0 ? threw : code;
}

int32_t lg_effective_settings(const lg_test_settings* settings, size_t performance_sample_count,
                              size_t total_sample_count, lg_effective* out, char* error, size_t error_size) {
  return Guard(error, error_size, [&] {
    const mlperf::loadgen::TestSettingsInternal s(ToLoadgen(*settings), performance_sample_count, total_sample_count);
    const auto ms = [](std::chrono::milliseconds time) { return static_cast<uint64_t>(time.count()); };
    *out = {s.samples_per_query, s.target_qps,        s.target_latency_percentile, s.max_async_queries,
            ms(s.target_duration), ms(s.min_duration), ms(s.max_duration),          s.min_query_count,
            s.max_query_count,     s.min_sample_count, s.performance_sample_count,  s.accuracy_sample_count};
  });
}

uint64_t lg_arrivals(double qps, uint64_t seed, uint64_t duration_ns) {
  // Draws as GenerateQueries does.
  std::mt19937 rng(seed);
  std::exponential_distribution<> between(qps);
  const std::chrono::nanoseconds end(duration_ns);
  std::chrono::nanoseconds next(0);
  uint64_t count = 0;
  for (std::chrono::nanoseconds last(0); last < end; count++) {
    last = next;
    next += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(between(rng)));
  }
  return count;
}

int32_t lg_start_test(const lg_callbacks* callbacks, const lg_test_settings* settings, const char* outdir,
                      bool enable_trace, const char* audit_config, char* error, size_t error_size) {
  return Guard(error, error_size, [&] {
    // The objects are on this thread's stack, which Stop() never leaves.
    Sut sut(*callbacks);
    Qsl qsl(*callbacks);
    mlperf::LogSettings log{};
    log.log_output.outdir = outdir;
    log.enable_trace = enable_trace;
    mlperf::StartTest(&sut, &qsl, ToLoadgen(*settings), log, audit_config);
  });
}

int32_t lg_abort_test(char* error, size_t error_size) {
  return Guard(error, error_size, [] {
    mlperf::AbortTest();
    // Issue threads that are done wait for shares of the others, which LoadGen no longer issues.
    Controller& controller = Controller::GetInstance();
    {
      std::lock_guard<std::mutex> lock(controller.*Get(Mutex()));
      controller.*Get(Issuing()) = false;
    }
    (controller.*Get(Changed())).notify_all();
  });
}

size_t lg_registered_threads(void) {
  Controller& controller = Controller::GetInstance();
  std::lock_guard<std::mutex> lock(controller.*Get(Mutex()));
  return (controller.*Get(ThreadIds())).size();
}

// Releases registered threads, and those about to register, of a test that will not begin.
void lg_end_issue_threads(void) { Controller::GetInstance().EndThreads(); }

int32_t lg_register_issue_query_thread(char* error, size_t error_size) {
  registered_thread = true;
  int32_t threw = Guard(error, error_size, [] {
    try {
      mlperf::RegisterIssueQueryThread();
    } catch (const Stopped&) {
      // The test was stopped: this thread returns to its caller.
    }
  });
  registered_thread = false;
  return threw;
}

int32_t lg_complete(const void* responses, size_t count) {
  // LoadGen takes mutable responses because of its callback, which the shim does not use: it only
  // reads them.
  auto* first = const_cast<mlperf::QuerySampleResponse*>(static_cast<const mlperf::QuerySampleResponse*>(responses));
  return Guard(nullptr, 0, [&] { mlperf::QuerySamplesComplete(first, count); });
}

// Weak, so that a test can stand in for it and see how a sample got here.
__attribute__((weak, alias("lg_complete"))) int32_t lg_query_samples_complete(const void* responses, size_t count);

int32_t lg_first_token_complete(const void* responses, size_t count) {
  auto* first = const_cast<mlperf::QuerySampleResponse*>(static_cast<const mlperf::QuerySampleResponse*>(responses));
  return Guard(nullptr, 0, [&] { mlperf::FirstTokenComplete(first, count); });
}

int32_t lg_outgrow_log(size_t room) {
  return Guard(nullptr, 0, [&] {
    for (size_t i = 0; i <= room; i++) {
      mlperf::logging::Log([](mlperf::logging::AsyncLog&) {});
    }
  });
}

}  // extern "C"
