/* For tests: a library that says it is TensorRT 8.6.1, so that a shim of another version can refuse it. */

int getInferLibVersion(void) { return 8601; }

void *createInferRuntime_INTERNAL(void *logger, int version) {
    (void)logger;
    (void)version;
    return (void *)0;
}
