// A C interface to LoadGen's C++ classes: plain data crosses it, exceptions do not.
//
// LoadGen's bindings/c_api.h does not suffice: it fixes the SUT's name and the logs' place, and
// lacks FromConfig and AbortTest.
#ifndef LOADGEN_BRIDGE_SHIM_H_
#define LOADGEN_BRIDGE_SHIM_H_

#include <stddef.h>
#include <stdint.h>

// Every number and flag of mlperf::TestSettings, in the order of lg_test_settings, which begins
// with `scenario` and `mode`. A new field here extends the struct and both conversions.
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

// Place of a field in lg_test_settings, to compare it with the Rust declaration.
struct lg_field {
  const char* name;
  size_t offset;
  size_t size;
};

// A callback's answer: continue, or never return to LoadGen from here.
enum { LG_GO_ON = 0, LG_STOP = 1 };

// The SUT and the QSL as functions over `context`, which may not unwind. `get_name` writes address
// and length of the name; the shim copies it before any other call.
struct lg_callbacks {
  void* context;
  int32_t (*get_name)(void* context, const char** name, size_t* length);
  int32_t (*issue_query)(void* context, const void* samples, size_t count);
  int32_t (*flush_queries)(void* context);
  int32_t (*load_samples)(void* context, const size_t* indices, size_t count);
  int32_t (*unload_samples)(void* context, const size_t* indices, size_t count);
  // The QSL's name and sizes do not change during a run. LoadGen reads them on its logging thread,
  // which must not wait, so they are values.
  const char* qsl_name;
  size_t total_sample_count;
  size_t performance_sample_count;
};

void lg_default_test_settings(lg_test_settings* out);
size_t lg_test_settings_layout(const lg_field** fields);
// The embedded mlperf.conf, from LoadGen's mlperf_conf.h.
const char* lg_mlperf_conf(void);

// TestSettings::FromConfig. Returns 0, a negative errno, or 1 after an exception (text in `error`).
int32_t lg_from_config(lg_test_settings* settings, const char* path, const char* model, const char* scenario,
                       int32_t conf_type, char* error, size_t error_size);

// The fields of mlperf::loadgen::TestSettingsInternal that decide how much LoadGen runs.
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

// LoadGen's settings for a QSL of these sizes, all above 0. Returns 0, or 1 after an exception.
int32_t lg_effective_settings(const lg_test_settings* settings, size_t performance_sample_count,
                              size_t total_sample_count, lg_effective* out, char* error, size_t error_size);
// Number of Server arrivals that LoadGen draws at `qps` until one is at `duration_ns` or later.
uint64_t lg_arrivals(double qps, uint64_t seed, uint64_t duration_ns);

// StartTest: 0 after its return, 1 after an exception. An empty `audit_config` reads none.
// `callbacks` is copied. After a callback answers LG_STOP this thread sleeps until the process
// ends, so memory on its stack stays valid for threads that still complete samples.
int32_t lg_start_test(const lg_callbacks* callbacks, const lg_test_settings* settings, const char* outdir,
                      bool enable_trace, const char* audit_config, char* error, size_t error_size);
// AbortTest: ends logs and issue threads. Call it once, never while StartTest may still return.
int32_t lg_abort_test(char* error, size_t error_size);
// RegisterIssueQueryThread: returns when the test has ended, or a callback answered LG_STOP.
int32_t lg_register_issue_query_thread(char* error, size_t error_size);
// Number of registered threads.
size_t lg_registered_threads(void);
// Releases issue threads, registered or about to register, of a test that will not begin.
void lg_end_issue_threads(void);

// QuerySamplesComplete and FirstTokenComplete. Return 0, or 1 after an exception.
int32_t lg_query_samples_complete(const void* responses, size_t count);
int32_t lg_complete(const void* responses, size_t count);
int32_t lg_first_token_complete(const void* responses, size_t count);
// Logs `room` + 1 empty entries of this thread, which outgrows its log buffer. Returns 0, or 1
// after an exception.
int32_t lg_outgrow_log(size_t room);

}  // extern "C"

#ifdef __cplusplus
#include "test_settings.h"

namespace loadgen_bridge {
mlperf::TestSettings ToLoadgen(const lg_test_settings& from);
}  // namespace loadgen_bridge
#endif

#endif  // LOADGEN_BRIDGE_SHIM_H_
