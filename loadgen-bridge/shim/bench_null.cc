// A null SUT in C++, for the feature `bench`: the baseline for the Rust SUT of
// examples/null_sut.rs. It completes on another thread through a ring.
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "loadgen.h"
#include "query_sample.h"
#include "query_sample_library.h"
#include "shim.h"
#include "system_under_test.h"

namespace {

constexpr size_t kRing = 1 << 16;
constexpr size_t kBatch = 256;

class NullQsl : public mlperf::QuerySampleLibrary {
 public:
  explicit NullQsl(size_t samples) : samples_(samples) {}
  const std::string& Name() override { return name_; }
  size_t TotalSampleCount() override { return samples_; }
  size_t PerformanceSampleCount() override { return samples_; }
  void LoadSamplesToRam(const std::vector<mlperf::QuerySampleIndex>&) override {}
  void UnloadSamplesFromRam(const std::vector<mlperf::QuerySampleIndex>&) override {}

 private:
  const std::string name_ = "null QSL";
  const size_t samples_;
};

// One issue thread, one completing thread. An id is never zero, so zero marks an empty slot.
class ThreadSut : public mlperf::SystemUnderTest {
 public:
  explicit ThreadSut(size_t response_bytes)
      : data_(response_bytes), ring_(new std::atomic<uint64_t>[kRing]()), thread_([this] { Complete(); }) {}
  ~ThreadSut() override {
    done_.store(true, std::memory_order_release);
    thread_.join();
  }
  const std::string& Name() override { return name_; }
  void FlushQueries() override {}
  void IssueQuery(const std::vector<mlperf::QuerySample>& samples) override {
    for (const auto& sample : samples) {
      auto& slot = ring_[head_++ % kRing];
      while (slot.load(std::memory_order_acquire) != 0) std::this_thread::yield();
      slot.store(sample.id, std::memory_order_release);
    }
  }

 private:
  void Complete() {
    auto data = reinterpret_cast<uintptr_t>(data_.data());
    std::vector<mlperf::QuerySampleResponse> responses;
    responses.reserve(kBatch);
    size_t tail = 0;
    while (true) {
      while (responses.size() < kBatch) {
        auto& slot = ring_[tail % kRing];
        uint64_t id = slot.load(std::memory_order_acquire);
        if (id == 0) break;
        slot.store(0, std::memory_order_release);
        ++tail;
        responses.emplace_back(id, data, data_.size());
      }
      if (!responses.empty()) {
        mlperf::QuerySamplesComplete(responses.data(), responses.size());
        responses.clear();
      } else if (done_.load(std::memory_order_acquire)) {
        return;
      } else {
        std::this_thread::yield();
      }
    }
  }

  const std::string name_ = "null SUT, C++, other thread";
  const std::vector<uint8_t> data_;
  const std::unique_ptr<std::atomic<uint64_t>[]> ring_;
  std::atomic<bool> done_{false};
  size_t head_ = 0;
  std::thread thread_;
};

}  // namespace

extern "C" int32_t lg_bench_null(const lg_test_settings* settings, const lg_log_settings* log, size_t samples,
                                 size_t response_bytes, char* error, size_t error_size) {
  try {
    NullQsl qsl(samples);
    ThreadSut sut(response_bytes);
    mlperf::StartTest(&sut, &qsl, loadgen_bridge::ToLoadgen(*settings), loadgen_bridge::ToLoadgen(*log), "");
    return 0;
  } catch (const std::exception& exception) {
    std::strncpy(error, exception.what(), error_size - 1);
    error[error_size - 1] = '\0';
    return 1;
  }
}
