// Measures the peak speeds of device memory and link, which step times are compared with.
#include <algorithm>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {
namespace {

constexpr size_t kBytes = size_t{1} << 30;

__global__ void ReadAll(const uint4* data, size_t count, uint32_t* out) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    const uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9) *out = sum;  // keeps the reads from being optimised away
}

// GB/s of the fastest of several runs.
template <class Work>
double Best(cudaStream_t stream, const Work& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  float best = 1e30f;
  for (int run = 0; run < 4; ++run) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    work();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    best = std::min(best, ms);
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return static_cast<double>(kBytes) / best / 1e6;
}

}  // namespace

Result<GpuCeilings> MeasureCeilings() {
  cudaStream_t stream = nullptr;
  void *device = nullptr, *host = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (cudaMalloc(&device, kBytes) != cudaSuccess || cudaHostAlloc(&host, kBytes, cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();
    if (device != nullptr) CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaStreamDestroy(stream));
    return Exhausted("no memory to measure ceilings with");
  }
  CUDA_CHECK(cudaMemsetAsync(device, 1, kBytes, stream));
  GpuCeilings ceilings;
  ceilings.device_gb_per_s = Best(stream, [&] {
    ReadAll<<<4096, 512, 0, stream>>>(static_cast<const uint4*>(device), kBytes / sizeof(uint4),
                                      static_cast<uint32_t*>(device));
    CUDA_CHECK_LAUNCH();
  });
  ceilings.to_device_gb_per_s =
      Best(stream, [&] { CUDA_CHECK(cudaMemcpyAsync(device, host, kBytes, cudaMemcpyHostToDevice, stream)); });
  ceilings.to_host_gb_per_s =
      Best(stream, [&] { CUDA_CHECK(cudaMemcpyAsync(host, device, kBytes, cudaMemcpyDeviceToHost, stream)); });
  CUDA_CHECK(cudaFree(device));
  CUDA_CHECK(cudaFreeHost(host));
  CUDA_CHECK(cudaStreamDestroy(stream));
  return ceilings;
}

}  // namespace infinigen
