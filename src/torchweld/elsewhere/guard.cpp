// What a torch without CUDA needs so that fake CUDA tensors can be made and traced: a device guard
// that does nothing, hooks that say "one GPU, with cuDNN", and which attention kernel CUDA would
// choose. Loaded before torch asks for the hooks (once, when it is imported), in a process of its
// own: the registration is for good.
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

struct Guard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

Guard guard;
c10::impl::DeviceGuardImplRegistrar registered_guard(c10::DeviceType::CUDA, &guard);

struct Hooks : public at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  long versionCuDNN() const override { return 91000; }
  long versionRuntimeCuDNN() const override { return 91000; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  at::DeviceIndex current_device() const override { return 0; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
};

constexpr int64_t kMath = 0, kFlash = 1, kEfficient = 2;
constexpr int64_t kWidestFlashHead = 256;

// As CUDA's own: flash attention takes 16-bit types without a mask, the efficient one the rest.
int64_t sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const std::optional<at::Tensor>& mask, double, bool, std::optional<double>,
                   bool grouped) {
  const auto type = query.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  if (query.dim() != 4) return kMath;
  const auto head = query.sym_size(-1);
  if (half && !mask.has_value() && head <= kWidestFlashHead && head == value.sym_size(-1))
    return kFlash;
  return (half || type == at::kFloat) && !grouped ? kEfficient : kMath;
}

}  // namespace

using TorchweldHooks = Hooks;
namespace at {
static RegistererCUDAHooksRegistry torchweld_hooks(
    "CUDAHooks", CUDAHooksRegistry(),
    RegistererCUDAHooksRegistry::DefaultCreator<TorchweldHooks>, "torchweld");
}

static const bool sdp_set = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&sdp_choice);
  return true;
}();
