// Peak speeds of the memories around a GPU, which steps are compared with, and the measurements behind the layout of
// the pool (docs/decisions). Prints tables; takes about a minute and 18 GiB of host memory.
//   build: part of the `cuda_memory` target; run: build/release/cuda_memory
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#define CHECKED(call)                                                                       \
  do {                                                                                      \
    if (const cudaError_t status_ = (call); status_ != cudaSuccess) {                       \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (false)

namespace {

constexpr size_t kGiB = size_t{1} << 30;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of the fastest of several runs on one stream.
double Time(cudaStream_t stream, const std::function<void()>& work, int runs = 5) {
  cudaEvent_t begin, end;
  CHECKED(cudaEventCreate(&begin));
  CHECKED(cudaEventCreate(&end));
  float best = 1e30f;
  for (int i = 0; i < runs; ++i) {
    CHECKED(cudaEventRecord(begin, stream));
    work();
    CHECKED(cudaEventRecord(end, stream));
    CHECKED(cudaEventSynchronize(end));
    float ms = 0;
    CHECKED(cudaEventElapsedTime(&ms, begin, end));
    best = std::min(best, ms);
  }
  return best * 1e-3;
}

__global__ void SumAll(const uint4* data, size_t count, uint32_t* out) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    const uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678) *out = sum;
}

// Copies rows of `units` 16-byte units, one after the other, to `out`; a group of lanes per row.
__global__ void Gather(const uint4* const* rows, int64_t count, int units, uint4* out) {
  const int lanes = units < 32 ? units : 32, per_warp = 32 / lanes;
  const int lane = threadIdx.x % 32, sub = lane / lanes, within = lane % lanes;
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const int64_t warps = int64_t{gridDim.x} * blockDim.x / 32;
  constexpr int kAhead = 4;
  for (int64_t first = warp * per_warp * kAhead; first < count; first += warps * per_warp * kAhead) {
    for (int u = within; u < units; u += lanes) {
      uint4 hold[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int64_t row = first + a * per_warp + sub;
        if (row < count) hold[a] = rows[row][u];
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int64_t row = first + a * per_warp + sub;
        if (row < count) out[row * units + u] = hold[a];
      }
    }
  }
}

void Pinning() {
  std::printf("\n| pinning 4 GiB | s/GiB |\n|---|--:|\n");
  constexpr size_t kBytes = 4 * kGiB;
  void* data = nullptr;
  double start = Now();
  CHECKED(cudaHostAlloc(&data, kBytes, cudaHostAllocDefault));
  std::printf("| cudaHostAlloc | %.3f |\n", (Now() - start) / 4);
  CHECKED(cudaFreeHost(data));
  for (const bool huge : {false, true}) {
    for (const int threads : {1, 8}) {
      start = Now();
      data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (huge) madvise(data, kBytes, MADV_HUGEPAGE);
      std::vector<std::thread> team;
      for (int t = 0; t < threads; ++t)
        team.emplace_back([&, t] {
          madvise(static_cast<char*>(data) + kBytes / threads * t, kBytes / threads, MADV_POPULATE_WRITE);
        });
      for (std::thread& thread : team) thread.join();
      const double populated = Now();
      CHECKED(cudaHostRegister(data, kBytes, cudaHostRegisterDefault));
      const double done = Now();
      std::printf("| mmap, %s pages, %d threads: populate %.3f + register %.3f | %.3f |\n", huge ? "huge" : "small",
                  threads, (populated - start) / 4, (done - populated) / 4, (done - start) / 4);
      CHECKED(cudaHostUnregister(data));
      munmap(data, kBytes);
    }
  }
}

struct Pool {
  char* host = nullptr;
  size_t bytes = 0;
};

Pool MakePool(size_t bytes) {
  Pool pool{static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
            bytes};
  madvise(pool.host, bytes, MADV_HUGEPAGE);
  std::vector<std::thread> team;
  for (int t = 0; t < 8; ++t)
    team.emplace_back([&, t] { madvise(pool.host + bytes / 8 * t, bytes / 8, MADV_POPULATE_WRITE); });
  for (std::thread& thread : team) thread.join();
  CHECKED(cudaHostRegister(pool.host, bytes, cudaHostRegisterDefault));
  return pool;
}

void Ceilings(const Pool& pool, cudaStream_t a, cudaStream_t b) {
  std::printf("\n| ceiling | GB/s |\n|---|--:|\n");
  char *x = nullptr, *y = nullptr;
  constexpr size_t kBytes = 4 * kGiB;
  CHECKED(cudaMalloc(&x, kBytes));
  CHECKED(cudaMalloc(&y, kBytes));
  CHECKED(cudaMemset(x, 1, kBytes));
  const double read = Time(a, [&] {
    SumAll<<<132 * 16, 512, 0, a>>>(reinterpret_cast<const uint4*>(x), kBytes / 16, reinterpret_cast<uint32_t*>(y));
  });
  std::printf("| device memory, read | %.0f |\n", kBytes / read / 1e9);
  const double copy = Time(a, [&] { CHECKED(cudaMemcpyAsync(y, x, kBytes, cudaMemcpyDeviceToDevice, a)); });
  std::printf("| device memory, copy (read + write) | %.0f |\n", 2.0 * kBytes / copy / 1e9);
  const double in = Time(a, [&] { CHECKED(cudaMemcpyAsync(x, pool.host, kBytes, cudaMemcpyHostToDevice, a)); });
  std::printf("| link, host to device | %.1f |\n", kBytes / in / 1e9);
  const double out =
      Time(a, [&] { CHECKED(cudaMemcpyAsync(pool.host + kBytes, x, kBytes, cudaMemcpyDeviceToHost, a)); });
  std::printf("| link, device to host | %.1f |\n", kBytes / out / 1e9);
  for (const size_t width : {size_t{16} << 10, size_t{64} << 10, size_t{1} << 20}) {
    const size_t pitch = 2 * width, height = kGiB / pitch;
    const double t = Time(
        a, [&] { CHECKED(cudaMemcpy2DAsync(x, pitch, pool.host, pitch, width, height, cudaMemcpyHostToDevice, a)); });
    std::printf("| link, in runs of %zu KiB at twice that stride | %.1f |\n", width >> 10,
                static_cast<double>(width * height) / t / 1e9);
  }
  for (const size_t piece : {size_t{256} << 10, size_t{1} << 20, size_t{5} << 20}) {
    const double t = Time(a, [&] {
      for (size_t at = 0; at + piece <= 2 * kGiB; at += piece)
        CHECKED(cudaMemcpyAsync(x + at, pool.host + at, piece, cudaMemcpyHostToDevice, a));
    });
    std::printf("| link, copies of %zu KiB | %.1f |\n", piece >> 10,
                static_cast<double>(2 * kGiB / piece * piece) / t / 1e9);
  }
  CHECKED(cudaStreamSynchronize(a));
  const double start = Now();
  CHECKED(cudaMemcpyAsync(x, pool.host, kBytes, cudaMemcpyHostToDevice, a));
  CHECKED(cudaMemcpyAsync(pool.host + kBytes, y, kBytes, cudaMemcpyDeviceToHost, b));
  CHECKED(cudaDeviceSynchronize());
  std::printf("| link, both ways at once, each | %.1f |\n", kBytes / (Now() - start) / 1e9);
  CHECKED(cudaFree(x));
  CHECKED(cudaFree(y));
}

// A list of row addresses: `share` of the rows of extents of `extent_bytes` each, ascending inside an extent; extents
// in the order of their addresses or scattered.
std::vector<const uint4*> Rows(const Pool& pool, size_t row_bytes, size_t extent_bytes, double share, int order,
                               size_t most) {
  std::mt19937_64 random(7);
  std::vector<size_t> extents(pool.bytes / extent_bytes);
  std::iota(extents.begin(), extents.end(), size_t{0});
  if (order >= 1) std::shuffle(extents.begin(), extents.end(), random);
  std::vector<const uint4*> rows;
  const size_t per_extent = extent_bytes / row_bytes;
  for (const size_t extent : extents) {
    for (size_t row = 0; row < per_extent; ++row)
      if (static_cast<double>(random() >> 11) * 0x1p-53 < share)
        rows.push_back(reinterpret_cast<const uint4*>(pool.host + extent * extent_bytes + row * row_bytes));
    if (rows.size() >= most) break;
  }
  if (order == 2) std::shuffle(rows.begin(), rows.end(), random);
  return rows;
}

void Gathers(const Pool& pool, cudaStream_t stream) {
  constexpr size_t kMost = size_t{1} << 19;
  const uint4** list = nullptr;
  uint4* out = nullptr;
  CHECKED(cudaMalloc(&list, 2 * kMost * sizeof(void*)));
  CHECKED(cudaMalloc(&out, 3 * kGiB));
  const auto measure = [&](size_t row_bytes, size_t extent, double share, int order, int blocks) {
    std::vector<const uint4*> rows = Rows(pool, row_bytes, extent, share, order, std::min(kMost, 2 * kGiB / row_bytes));
    rows.resize(std::min(rows.size(), 2 * kMost));
    CHECKED(cudaMemcpy(list, rows.data(), rows.size() * sizeof(void*), cudaMemcpyHostToDevice));
    const double t = Time(
        stream,
        [&] {
          Gather<<<blocks, 512, 0, stream>>>(list, static_cast<int64_t>(rows.size()), static_cast<int>(row_bytes / 16),
                                             out);
        },
        3);
    return static_cast<double>(rows.size() * row_bytes) / t / 1e9;
  };
  std::printf("\n| gather, GB/s; 5 %% of rows, 64 blocks | 256 B | 512 B | 1 KiB | 4 KiB |\n|---|--:|--:|--:|--:|\n");
  const auto line = [&](const char* name, size_t extent, int order) {
    std::printf("| %s |", name);
    for (const size_t row : {size_t{256}, size_t{512}, size_t{1024}, size_t{4096}})
      std::printf(" %.1f |", measure(row, extent, 0.05, order, 64));
    std::printf("\n");
  };
  line("ascending over the whole pool", size_t{1} << 20, 0);
  line("extents of 64 KiB, scattered", size_t{64} << 10, 1);
  line("extents of 128 KiB, scattered", size_t{128} << 10, 1);
  line("extents of 256 KiB, scattered", size_t{256} << 10, 1);
  line("extents of 1 MiB, scattered", size_t{1} << 20, 1);
  line("extents of 4 MiB, scattered", size_t{4} << 20, 1);
  line("rows in random order", size_t{1} << 20, 2);
  std::printf(
      "\n| gather of 512 B rows, GB/s by share and blocks | 8 | 16 | 32 | 64 | 132 | 264 "
      "|\n|---|--:|--:|--:|--:|--:|--:|\n");
  for (const double share : {0.01, 0.05, 0.2, 1.0}) {
    std::printf("| %.0f %% of rows, extents of 128 KiB scattered |", 100 * share);
    for (const int blocks : {8, 16, 32, 64, 132, 264})
      std::printf(" %.1f |", measure(512, size_t{128} << 10, share, 1, blocks));
    std::printf("\n");
  }
  CHECKED(cudaFree(list));
  CHECKED(cudaFree(out));
}

// A product of a decode step's shape in parallel with a gather: how much each slows the other.
void Interference(const Pool& pool, cudaStream_t compute, cudaStream_t fetch) {
  constexpr int64_t kN = 20480, kK = 5120, kM = 20;
  void *w = nullptr, *x = nullptr, *y = nullptr, *workspace = nullptr;
  CHECKED(cudaMalloc(&w, kN * kK * 2));
  CHECKED(cudaMalloc(&x, kM * kK * 2));
  CHECKED(cudaMalloc(&y, kM * kN * 2));
  CHECKED(cudaMalloc(&workspace, 64 << 20));
  CHECKED(cudaMemset(w, 0, kN * kK * 2));
  CHECKED(cudaMemset(x, 0, kM * kK * 2));
  cublasLtHandle_t lt;
  cublasLtCreate(&lt);
  cublasLtMatmulDesc_t op;
  cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  cublasLtMatrixLayout_t wl, xl, yl;
  cublasLtMatrixLayoutCreate(&wl, CUDA_R_16BF, kK, kN, kK);
  cublasLtMatrixLayoutCreate(&xl, CUDA_R_16BF, kK, kM, kK);
  cublasLtMatrixLayoutCreate(&yl, CUDA_R_16BF, kN, kM, kN);
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulPreferenceCreate(&preference);
  const size_t workspace_bytes = 64 << 20;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                       sizeof(workspace_bytes));
  cublasLtMatmulHeuristicResult_t found{};
  int results = 0;
  cublasLtMatmulAlgoGetHeuristic(lt, op, wl, xl, yl, yl, preference, 1, &found, &results);
  const float one = 1, zero = 0;
  const auto products = [&] {
    for (int i = 0; i < 200; ++i)
      cublasLtMatmul(lt, op, &one, w, wl, x, xl, &zero, y, yl, y, yl, &found.algo, workspace, workspace_bytes, compute);
  };
  const std::vector<const uint4*> rows = Rows(pool, 512, 128 << 10, 0.05, 1, 1 << 20);
  const uint4** list = nullptr;
  uint4* out = nullptr;
  CHECKED(cudaMalloc(&list, rows.size() * sizeof(void*)));
  CHECKED(cudaMalloc(&out, rows.size() * 512));
  CHECKED(cudaMemcpy(list, rows.data(), rows.size() * sizeof(void*), cudaMemcpyHostToDevice));
  std::printf(
      "\n| gather beside products (%lld x %lld, m %lld) | product µs alone | beside | gather GB/s alone | beside "
      "|\n|---|--:|--:|--:|--:|\n",
      static_cast<long long>(kN), static_cast<long long>(kK), static_cast<long long>(kM));
  for (const int blocks : {8, 16, 32, 64, 132}) {
    const auto gather = [&] { Gather<<<blocks, 512, 0, fetch>>>(list, static_cast<int64_t>(rows.size()), 32, out); };
    const double alone = Time(compute, products, 3) / 200;
    const double gather_alone = Time(fetch, gather, 3);
    for (int i = 0; i < 6; ++i) gather();  // lasts longer than the products
    const double beside = Time(compute, products, 1) / 200;
    CHECKED(cudaDeviceSynchronize());
    for (int i = 0; i < 12; ++i) products();
    const double gather_beside = Time(fetch, gather, 3);
    CHECKED(cudaDeviceSynchronize());
    const double bytes = static_cast<double>(rows.size()) * 512;
    std::printf("| %d blocks | %.1f | %.1f | %.1f | %.1f |\n", blocks, alone * 1e6, beside * 1e6,
                bytes / gather_alone / 1e9, bytes / gather_beside / 1e9);
  }
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  CHECKED(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
  cudaStream_t a, b;
  CHECKED(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  CHECKED(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  Pinning();
  const Pool pool = MakePool(16 * kGiB);
  Ceilings(pool, a, b);
  Gathers(pool, a);
  Interference(pool, a, b);
  return 0;
}
