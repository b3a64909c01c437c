/* Stands in for CUDA's header of this name where CUDA is not installed: TensorRT's headers name these types and look inside
 * none of them. `cargo xtask tensorrt` uses it unless --cuda-include names the real one. */
#ifndef QDL_STAND_IN_CUDA_RUNTIME_API_H
#define QDL_STAND_IN_CUDA_RUNTIME_API_H

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef enum cudaError { cudaSuccess = 0 } cudaError_t;

#endif
