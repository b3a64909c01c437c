// shim.h over TensorRT's C++ interface: one source for 8.5 to 11. What differs between versions stands behind NV_TENSORRT_MAJOR
// and _MINOR here, and nowhere else.
//
// Nothing is linked: the three functions that TensorRT exports under C names are looked up in the library that the caller
// names, and everything else goes through virtual tables. These are why the headers have to match the library.

#include "shim.h"

#include <NvInfer.h>
#include <NvOnnxParser.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>

#if NV_TENSORRT_MAJOR < 8 || (NV_TENSORRT_MAJOR == 8 && NV_TENSORRT_MINOR < 5)
#error "TensorRT 8.5 or later is needed: earlier ones know tensors by number and not by name"
#endif

#define EXPORT __attribute__((visibility("default")))

namespace trt = nvinfer1;

namespace {

void say(char *why, size_t room, const std::string &text) {
    if (room == 0) {
        return;
    }
    // One line, whatever a library has to say.
    size_t n = 0;
    for (char c : text) {
        if (n + 1 >= room) {
            break;
        }
        why[n++] = c == '\n' || c == '\r' || c == '\t' ? ' ' : c;
    }
    why[n] = 0;
}

// Passes lines on, and keeps the first error until it is asked for: what follows it is mostly its consequence.
class Log : public trt::ILogger {
public:
    qdl_trt_log to = nullptr;

    void log(Severity severity, const char *text) noexcept override {
        if (severity <= Severity::kERROR) {
            std::lock_guard<std::mutex> turn(lock_);
            if (first_.empty()) {
                first_ = text;
            }
        }
        if (to != nullptr) {
            to(static_cast<int32_t>(severity), text);
        }
    }

    std::string take(const char *otherwise) {
        std::lock_guard<std::mutex> turn(lock_);
        std::string text = first_.empty() ? otherwise : first_;
        first_.clear();
        return text;
    }

    void forget() {
        std::lock_guard<std::mutex> turn(lock_);
        first_.clear();
    }

private:
    std::mutex lock_;
    std::string first_;
};

// 8 and 9 count versions in thousands, 10 and later in ten thousands.
int32_t in_one_way(int32_t version) {
    if (version >= 100000) {
        return version;
    }
    return version / 1000 * 10000 + version / 100 % 10 * 100 + version % 100;
}

constexpr int32_t HEADERS = NV_TENSORRT_MAJOR * 10000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH;
// What the library compares with its own.
#if defined(NV_TENSORRT_VERSION)
constexpr int32_t TOLD = NV_TENSORRT_VERSION;
#else
constexpr int32_t TOLD = NV_TENSORRT_MAJOR * 1000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH;
#endif

std::string dotted(int32_t version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

using Make = void *(*)(void *logger, int32_t version);
using MakeParser = void *(*)(void *network, void *logger, int version);

// Without a usable driver some versions log an error and give an address that is none.
bool usable(const void *made) { return reinterpret_cast<uintptr_t>(made) >= 4096; }

template <class F> F function(void *library, const char *name) { return reinterpret_cast<F>(dlsym(library, name)); }

int32_t type_of(trt::DataType type) {
    switch (type) {
    case trt::DataType::kUINT8: return QDL_TRT_U8;
    case trt::DataType::kINT8: return QDL_TRT_I8;
    case trt::DataType::kINT32: return QDL_TRT_I32;
    case trt::DataType::kHALF: return QDL_TRT_F16;
    case trt::DataType::kFLOAT: return QDL_TRT_F32;
#if NV_TENSORRT_MAJOR >= 10
    case trt::DataType::kINT64: return QDL_TRT_I64;
    case trt::DataType::kBF16: return QDL_TRT_BF16;
#endif
    default: return QDL_TRT_OTHER;
    }
}

void set_precision(trt::IBuilderConfig &config, int32_t precision) {
#if NV_TENSORRT_MAJOR < 11
    // TF32 is on by default, and is no fp32.
    if (precision == QDL_TRT_FP32) {
        config.clearFlag(trt::BuilderFlag::kTF32);
    } else {
        config.setFlag(trt::BuilderFlag::kFP16);
    }
    // With QuantizeLinear and DequantizeLinear in the graph these say what runs in int8; the rest is half precision.
    if (precision == QDL_TRT_INT8) {
        config.setFlag(trt::BuilderFlag::kINT8);
    }
#else
    // From 11 on the graph's own types are the precision.
    if (precision == QDL_TRT_FP32) {
        config.clearFlag(trt::BuilderFlag::kTF32);
    }
#endif
}

void set_level(trt::IBuilderConfig &config, int32_t level) {
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
    if (level >= 0) {
        config.setBuilderOptimizationLevel(level);
    }
#else
    (void)config;
    (void)level;
#endif
}

// Kernels of TensorRT's own: a plan then needs neither cuBLAS nor cuDNN beside it. From 10 on that is the default.
void set_sources(trt::IBuilderConfig &config) {
#if NV_TENSORRT_MAJOR < 10
    uint32_t sources = 1u << static_cast<uint32_t>(trt::TacticSource::kEDGE_MASK_CONVOLUTIONS);
    sources |= 1u << static_cast<uint32_t>(trt::TacticSource::kJIT_CONVOLUTIONS);
    config.setTacticSources(sources);
#else
    (void)config;
#endif
}

} // namespace

struct qdl_trt_library {
    Log log;
    void *handle = nullptr;
    int32_t version = 0;
    Make runtime = nullptr;
    Make builder = nullptr;
};

struct qdl_trt_engine {
    qdl_trt_library *library;
    std::unique_ptr<trt::IRuntime> runtime;
    std::unique_ptr<trt::ICudaEngine> engine;
};

struct qdl_trt_context {
    qdl_trt_engine *engine;
    std::unique_ptr<trt::IExecutionContext> context;
};

extern "C" {

EXPORT int32_t qdl_trt_abi(void) { return QDL_TRT_ABI; }

EXPORT int32_t qdl_trt_headers(void) { return HEADERS; }

EXPORT int32_t qdl_trt_open(const char *path, qdl_trt_log log, qdl_trt_library **out, char *why, size_t room) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char *said = dlerror();
        say(why, room, said != nullptr ? said : "cannot be opened");
        return QDL_TRT_LIBRARY;
    }
    auto version = function<int32_t (*)()>(handle, "getInferLibVersion");
    auto runtime = function<Make>(handle, "createInferRuntime_INTERNAL");
    if (version == nullptr || runtime == nullptr) {
        say(why, room, "is no TensorRT: it lacks getInferLibVersion or createInferRuntime_INTERNAL");
        return QDL_TRT_LIBRARY;
    }
    int32_t found = in_one_way(version());
    if (found / 100 != HEADERS / 100) {
        say(why, room, "is TensorRT " + dotted(found) + ", and libqdl_tensorrt.so was compiled for " + dotted(HEADERS));
        return QDL_TRT_VERSION;
    }
    auto *library = new qdl_trt_library;
    library->log.to = log;
    library->handle = handle;
    library->version = found;
    library->runtime = runtime;
    library->builder = function<Make>(handle, "createInferBuilder_INTERNAL");
    *out = library;
    return QDL_TRT_OK;
}

EXPORT int32_t qdl_trt_version(const qdl_trt_library *library) { return library->version; }

EXPORT int32_t qdl_trt_build_plan(qdl_trt_library *library, const char *parser_path, const qdl_trt_build *how, char *why,
                                  size_t room) {
    Log &log = library->log;
    auto refused = [&](const char *otherwise) {
        say(why, room, log.take(otherwise));
        return QDL_TRT_REFUSED;
    };
    if (library->builder == nullptr) {
        say(why, room, "has no builder: it runs plans and makes none");
        return QDL_TRT_NO_BUILDER;
    }
    void *handle = dlopen(parser_path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char *said = dlerror();
        say(why, room, said != nullptr ? said : "the ONNX parser cannot be opened");
        return QDL_TRT_LIBRARY;
    }
    auto make_parser = function<MakeParser>(handle, "createNvOnnxParser_INTERNAL");
    if (make_parser == nullptr) {
        say(why, room, std::string(parser_path) + ": is no ONNX parser of TensorRT's");
        return QDL_TRT_LIBRARY;
    }
    log.forget();
    void *made = library->builder(&log, TOLD);
    if (!usable(made)) {
        return refused("the builder cannot be made");
    }
    // Nothing that is made from here on is ever taken down: the process that builds ends with the plan, and some versions
    // fault on the way, be it after success or after an error.
    auto *builder = static_cast<trt::IBuilder *>(made);
    uint32_t flags = 0;
#if NV_TENSORRT_MAJOR < 10
    flags |= 1u << static_cast<uint32_t>(trt::NetworkDefinitionCreationFlag::kEXPLICIT_BATCH);
#endif
    trt::INetworkDefinition *network = builder->createNetworkV2(flags);
    if (network == nullptr) {
        return refused("the network cannot be made");
    }
    auto *parser = static_cast<nvonnxparser::IParser *>(make_parser(network, &log, NV_ONNX_PARSER_VERSION));
    if (parser == nullptr) {
        return refused("the ONNX parser cannot be made");
    }
    if (!parser->parseFromFile(how->onnx, static_cast<int>(trt::ILogger::Severity::kWARNING))) {
        std::string text = log.take("is no ONNX model");
        if (parser->getNbErrors() > 0) {
            const nvonnxparser::IParserError *first = parser->getError(0);
            text = std::string(first->desc()) + " (node " + std::to_string(first->node()) + ")";
        }
        say(why, room, text);
        return QDL_TRT_MODEL;
    }
    // 8.6 takes bytes that are no model for a model of nothing.
    if (network->getNbInputs() == 0 || network->getNbOutputs() == 0) {
        say(why, room, log.take("is no ONNX model: it has no inputs or no outputs"));
        return QDL_TRT_MODEL;
    }
    trt::IBuilderConfig *config = builder->createBuilderConfig();
    if (config == nullptr) {
        return refused("the builder's settings cannot be made");
    }
    config->setMemoryPoolLimit(trt::MemoryPoolType::kWORKSPACE, how->workspace);
    set_precision(*config, how->precision);
    set_level(*config, how->level);
    set_sources(*config);

    // Everybody reads and writes tensors as ONNX lays them out.
    const trt::TensorFormats linear = 1u << static_cast<uint32_t>(trt::TensorFormat::kLINEAR);
    for (int32_t i = 0; i < network->getNbInputs(); ++i) {
        network->getInput(i)->setAllowedFormats(linear);
    }
    for (int32_t i = 0; i < network->getNbOutputs(); ++i) {
        network->getOutput(i)->setAllowedFormats(linear);
    }
    int32_t least = 1;
    for (int32_t p = 0; p < how->profiles; ++p) {
        trt::IOptimizationProfile *profile = builder->createOptimizationProfile();
        if (profile == nullptr) {
            return refused("a profile cannot be made");
        }
        const int32_t most = how->batches[p];
        for (int32_t i = 0; i < network->getNbInputs(); ++i) {
            trt::ITensor *input = network->getInput(i);
            trt::Dims low = input->getDimensions();
            trt::Dims high = low;
            for (int32_t d = 0; d < low.nbDims; ++d) {
                if (low.d[d] >= 0) {
                    continue;
                }
                if (d != 0) {
                    say(why, room,
                        std::string("input ") + input->getName() + ": a dimension besides the batch is open, and has no length");
                    return QDL_TRT_MODEL;
                }
                low.d[d] = least;
                high.d[d] = most;
            }
            if (!profile->setDimensions(input->getName(), trt::OptProfileSelector::kMIN, low) ||
                !profile->setDimensions(input->getName(), trt::OptProfileSelector::kOPT, high) ||
                !profile->setDimensions(input->getName(), trt::OptProfileSelector::kMAX, high)) {
                return refused("a profile is refused");
            }
        }
        if (config->addOptimizationProfile(profile) < 0) {
            return refused("a profile is refused");
        }
        least = most + 1;
    }
    trt::IHostMemory *plan = builder->buildSerializedNetwork(*network, *config);
    if (plan == nullptr || plan->size() == 0) {
        return refused("no plan came of it");
    }
    FILE *file = std::fopen(how->plan, "wb");
    if (file == nullptr) {
        say(why, room, std::string(how->plan) + ": cannot be written");
        return QDL_TRT_MODEL;
    }
    const bool whole = std::fwrite(plan->data(), 1, plan->size(), file) == plan->size();
    const bool closed = std::fclose(file) == 0;
    if (!whole || !closed) {
        say(why, room, std::string(how->plan) + ": cannot be written whole");
        return QDL_TRT_MODEL;
    }
    return QDL_TRT_OK;
}

EXPORT int32_t qdl_trt_load(qdl_trt_library *library, const void *plan, size_t bytes, qdl_trt_engine **out, char *why,
                            size_t room) {
    Log &log = library->log;
    log.forget();
    std::unique_ptr<qdl_trt_engine> engine(new qdl_trt_engine);
    engine->library = library;
    void *made = library->runtime(&log, TOLD);
    if (!usable(made)) {
        say(why, room, log.take("the runtime cannot be made"));
        return QDL_TRT_REFUSED;
    }
    engine->runtime.reset(static_cast<trt::IRuntime *>(made));
    engine->engine.reset(engine->runtime->deserializeCudaEngine(plan, bytes));
    if (!engine->engine) {
        say(why, room, log.take("is no plan of this TensorRT"));
        return QDL_TRT_MODEL;
    }
    *out = engine.release();
    return QDL_TRT_OK;
}

EXPORT void qdl_trt_unload(qdl_trt_engine *engine) {
    if (engine != nullptr) {
        engine->engine.reset();
        engine->runtime.reset();
        delete engine;
    }
}

EXPORT int32_t qdl_trt_tensors(const qdl_trt_engine *engine) { return engine->engine->getNbIOTensors(); }

EXPORT int32_t qdl_trt_tensor_at(const qdl_trt_engine *engine, int32_t index, qdl_trt_tensor *out) {
    const char *name = engine->engine->getIOTensorName(index);
    if (name == nullptr || std::strlen(name) >= sizeof out->name) {
        return QDL_TRT_MODEL;
    }
    std::memset(out, 0, sizeof *out);
    std::memcpy(out->name, name, std::strlen(name));
    out->is_output = engine->engine->getTensorIOMode(name) == trt::TensorIOMode::kOUTPUT;
    out->type = type_of(engine->engine->getTensorDataType(name));
    out->linear = engine->engine->getTensorFormat(name) == trt::TensorFormat::kLINEAR;
    const trt::Dims dims = engine->engine->getTensorShape(name);
    if (dims.nbDims < 0 || dims.nbDims > QDL_TRT_MAX_RANK) {
        return QDL_TRT_MODEL;
    }
    out->rank = dims.nbDims;
    for (int32_t d = 0; d < dims.nbDims; ++d) {
        out->dims[d] = dims.d[d];
    }
    return QDL_TRT_OK;
}

EXPORT int32_t qdl_trt_profiles(const qdl_trt_engine *engine) { return engine->engine->getNbOptimizationProfiles(); }

EXPORT int32_t qdl_trt_batches(const qdl_trt_engine *engine, int32_t tensor, int32_t profile, int64_t *least, int64_t *most) {
    const char *name = engine->engine->getIOTensorName(tensor);
    if (name == nullptr) {
        return QDL_TRT_MODEL;
    }
    const trt::Dims low = engine->engine->getProfileShape(name, profile, trt::OptProfileSelector::kMIN);
    const trt::Dims high = engine->engine->getProfileShape(name, profile, trt::OptProfileSelector::kMAX);
    if (low.nbDims < 1 || high.nbDims < 1) {
        return QDL_TRT_MODEL;
    }
    *least = low.d[0];
    *most = high.d[0];
    return QDL_TRT_OK;
}

EXPORT int32_t qdl_trt_context_new(qdl_trt_engine *engine, int32_t profile, void *stream, qdl_trt_context **out, char *why,
                                   size_t room) {
    Log &log = engine->library->log;
    log.forget();
    std::unique_ptr<qdl_trt_context> context(new qdl_trt_context);
    context->engine = engine;
    context->context.reset(engine->engine->createExecutionContext());
    if (!context->context) {
        say(why, room, log.take("no context can be made"));
        return QDL_TRT_REFUSED;
    }
    // The first context of an engine has the first profile already.
    if (context->context->getOptimizationProfile() != profile &&
        !context->context->setOptimizationProfileAsync(profile, static_cast<cudaStream_t>(stream))) {
        say(why, room, log.take("the profile cannot be taken"));
        return QDL_TRT_REFUSED;
    }
    *out = context.release();
    return QDL_TRT_OK;
}

EXPORT void qdl_trt_context_free(qdl_trt_context *context) { delete context; }

EXPORT int32_t qdl_trt_bind(qdl_trt_context *context, int32_t tensor, void *address, char *why, size_t room) {
    const char *name = context->engine->engine->getIOTensorName(tensor);
    if (name == nullptr || !context->context->setTensorAddress(name, address)) {
        say(why, room, context->engine->library->log.take("an address is refused"));
        return QDL_TRT_REFUSED;
    }
    return QDL_TRT_OK;
}

EXPORT int32_t qdl_trt_set_batch(qdl_trt_context *context, int64_t batch, char *why, size_t room) {
    const trt::ICudaEngine &engine = *context->engine->engine;
    for (int32_t i = 0; i < engine.getNbIOTensors(); ++i) {
        const char *name = engine.getIOTensorName(i);
        if (engine.getTensorIOMode(name) != trt::TensorIOMode::kINPUT) {
            continue;
        }
        trt::Dims dims = engine.getTensorShape(name);
        if (dims.nbDims < 1 || dims.d[0] >= 0) {
            continue;
        }
        dims.d[0] = static_cast<decltype(dims.d[0] + 0)>(batch);
        if (!context->context->setInputShape(name, dims)) {
            say(why, room, context->engine->library->log.take("a batch of this size is refused"));
            return QDL_TRT_REFUSED;
        }
    }
    return QDL_TRT_OK;
}

EXPORT int32_t qdl_trt_enqueue(qdl_trt_context *context, void *stream, char *why, size_t room) {
    if (!context->context->enqueueV3(static_cast<cudaStream_t>(stream))) {
        say(why, room, context->engine->library->log.take("the kernels cannot be put on the stream"));
        return QDL_TRT_REFUSED;
    }
    return QDL_TRT_OK;
}

} // extern "C"
