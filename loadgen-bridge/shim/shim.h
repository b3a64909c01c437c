// A C face for LoadGen's C++ classes: what crosses is plain data, and no exception does.
//
// LoadGen's own bindings/c_api.h will not do: its SUT has a fixed name, its logs a fixed place, and it has neither
// FromConfig nor AbortTest.
#ifndef LOADGEN_BRIDGE_SHIM_H_
#define LOADGEN_BRIDGE_SHIM_H_

#include <stddef.h>
#include <stdint.h>

// Every field of mlperf::TestSettings that is a number or a flag, in the order of lg_test_settings. `scenario` and
// `mode` stand before them. Adding a field here adds it to the struct and to both conversions.
#define LG_TEST_SETTINGS_FIELDS(F)                        \
  F(double, single_stream_expected_latency_ns)            \
  F(double, single_stream_target_latency_percentile)      \
  F(double, multi_stream_expected_latency_ns)             \
  F(double, multi_stream_target_latency_percentile)       \
  F(uint64_t, multi_stream_samples_per_query)             \
  F(double, server_target_qps)                            \
  F(uint64_t, server_target_latency_ns)                   \
  F(double, server_target_latency_percentile)             \
  F(bool, server_coalesce_queries)                        \
  F(int32_t, server_find_peak_qps_decimals_of_precision)  \
  F(double, server_find_peak_qps_boundary_step_size)      \
  F(uint64_t, server_max_async_queries)                   \
  F(uint64_t, server_num_issue_query_threads)             \
  F(double, offline_expected_qps)                         \
  F(bool, sample_concatenate_permutation)                 \
  F(uint64_t, min_duration_ms)                            \
  F(uint64_t, max_duration_ms)                            \
  F(uint64_t, min_query_count)                            \
  F(uint64_t, max_query_count)                            \
  F(uint64_t, qsl_rng_seed)                               \
  F(uint64_t, sample_index_rng_seed)                      \
  F(uint64_t, schedule_rng_seed)                          \
  F(uint64_t, accuracy_log_rng_seed)                      \
  F(double, accuracy_log_probability)                     \
  F(uint64_t, accuracy_log_sampling_target)               \
  F(bool, test05)                                         \
  F(uint64_t, test05_qsl_rng_seed)                        \
  F(uint64_t, test05_sample_index_rng_seed)               \
  F(uint64_t, test05_schedule_rng_seed)                   \
  F(bool, print_timestamps)                               \
  F(bool, performance_issue_unique)                       \
  F(bool, performance_issue_same)                         \
  F(uint64_t, performance_issue_same_index)               \
  F(uint64_t, performance_sample_count_override)          \
  F(uint64_t, accuracy_sample_count_override)             \
  F(bool, use_token_latencies)                            \
  F(uint64_t, server_ttft_latency)                        \
  F(uint64_t, server_tpot_latency)                        \
  F(bool, infer_token_latencies)                          \
  F(uint64_t, token_latency_scaling_factor)

extern "C" {

// LoadGen's TestScenario: 0 SingleStream, 1 MultiStream, 2 Server, 3 Offline.
// LoadGen's TestMode: 0 SubmissionRun, 1 AccuracyOnly, 2 PerformanceOnly, 3 FindPeakPerformance.
struct lg_test_settings {
  int32_t scenario;
  int32_t mode;
#define LG_DECLARE(type, name) type name;
  LG_TEST_SETTINGS_FIELDS(LG_DECLARE)
#undef LG_DECLARE
};

// mlperf::LogSettings. The strings belong to the caller, or, when lg_default_log_settings wrote them, to the program.
struct lg_log_settings {
  const char* outdir;
  const char* prefix;
  const char* suffix;
  bool prefix_with_datetime;
  bool copy_detail_to_stdout;
  bool copy_summary_to_stdout;
  bool enable_trace;
  int32_t log_mode;  // LoadGen's LoggingMode: 0 AsyncPoll, 1 EndOfTestOnly, 2 Synchronous.
  uint64_t log_mode_async_poll_interval_ms;
};

// Where a field of lg_test_settings lies, for a check against the other side's declaration.
struct lg_field {
  const char* name;
  size_t offset;
  size_t size;
};

// What a callback may answer: go on, or never come back to LoadGen from here.
enum { LG_GO_ON = 0, LG_STOP = 1 };

// The SUT and the QSL, as functions over `context`. None of them may unwind. `get_name` writes where the name lies and
// how long it is; it is copied before anything else is called.
struct lg_callbacks {
  void* context;
  int32_t (*get_name)(void* context, const char** name, size_t* length);
  int32_t (*issue_query)(void* context, const void* samples, size_t count);
  int32_t (*flush_queries)(void* context);
  int32_t (*load_samples)(void* context, const size_t* indices, size_t count);
  int32_t (*unload_samples)(void* context, const size_t* indices, size_t count);
  // The QSL's name and sizes do not change during a run. LoadGen asks for them from its logging thread, which must
  // not be kept waiting, so they are given beforehand.
  const char* qsl_name;
  size_t total_sample_count;
  size_t performance_sample_count;
};

void lg_default_test_settings(lg_test_settings* out);
void lg_default_log_settings(lg_log_settings* out);
size_t lg_test_settings_layout(const lg_field** fields);
// The embedded mlperf.conf, from LoadGen's own mlperf_conf.h.
const char* lg_mlperf_conf(void);

// TestSettings::FromConfig. 0, or a negative errno from LoadGen, or 1 when it threw (what it said is then in `error`).
int32_t lg_from_config(lg_test_settings* settings, const char* path, const char* model, const char* scenario,
                       int32_t conf_type, char* error, size_t error_size);

// mlperf::loadgen::TestSettingsInternal, the fields that decide how much is run.
struct lg_effective {
  uint64_t samples_per_query;
  double target_qps;
  double target_latency_percentile;
  uint64_t max_async_queries;
  uint64_t target_duration_ms;
  uint64_t min_duration_ms;
  uint64_t max_duration_ms;
  uint64_t min_query_count;
  uint64_t max_query_count;
  uint64_t min_sample_count;
  uint64_t performance_sample_count;
  uint64_t accuracy_sample_count;
};

// What LoadGen makes of the settings over a QSL of these sizes, none of which is 0. 0, or 1 when it threw.
int32_t lg_effective_settings(const lg_test_settings* settings, size_t performance_sample_count,
                              size_t total_sample_count, lg_effective* out, char* error, size_t error_size);
// How many arrivals at `qps` LoadGen draws in Server before one lies at `duration_ns` or behind it.
uint64_t lg_arrivals(double qps, uint64_t seed, uint64_t duration_ns);

// StartTest: 0 when it returned, 1 when it threw. An empty `audit_config` reads none. `callbacks` is copied. A
// callback that answers LG_STOP ends the use of this thread for good: it sleeps until the process ends, so that all
// that LoadGen keeps on its stack stays valid for those who still complete samples.
int32_t lg_start_test(const lg_callbacks* callbacks, const lg_test_settings* settings, const lg_log_settings* log,
                      const char* audit_config, char* error, size_t error_size);
// AbortTest: ends the logs, and lets the issue threads go. Call it once, and never when StartTest may still come to its end by itself.
int32_t lg_abort_test(char* error, size_t error_size);
// RegisterIssueQueryThread: returns when the test has ended, or when a callback answered LG_STOP on this thread.
int32_t lg_register_issue_query_thread(char* error, size_t error_size);
// How many threads have registered.
size_t lg_registered_threads(void);
// Lets threads go that have registered, and those that are yet to. For a test that will not begin.
void lg_end_issue_threads(void);

// QuerySamplesComplete and FirstTokenComplete: 0, or 1 when they threw.
int32_t lg_query_samples_complete(const void* responses, size_t count);
int32_t lg_first_token_complete(const void* responses, size_t count);
// As many entries in LoadGen's log as it has room for, of this thread, and one more; none of them says anything. 0, or 1
// when it threw.
int32_t lg_outgrow_log(size_t room);

}  // extern "C"

#ifdef __cplusplus
#include "test_settings.h"

namespace loadgen_bridge {
mlperf::TestSettings ToLoadgen(const lg_test_settings& from);
mlperf::LogSettings ToLoadgen(const lg_log_settings& from);
}  // namespace loadgen_bridge
#endif

#endif  // LOADGEN_BRIDGE_SHIM_H_
