// A second device on host memory under torch's own CUDA key, which a build for the CPU leaves free.
//
// Its tensors are no CPU tensors to torch; its kernels are the CPU's, by the fallback below. It
// refuses what CUDA refuses and that fallback would put right: arguments on two devices, a generator
// of another device, an index out of range as an error that can be caught. Fresh memory is not zero, it can be limited, and it counts what waits for a
// device (reading a number, copying to the host).
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <set>

namespace {
using at::Generator, at::ScalarType, at::Tensor, c10::Device, c10::DeviceIndex, c10::Stream;
using c10::SymIntArrayRef;
template <class T>
using Maybe = std::optional<T>;

constexpr auto CUDA = c10::DeviceType::CUDA;
const c10::DispatchKeySet KEYS(c10::DispatchKey::CUDA);
constexpr DeviceIndex DEVICES = 2;
thread_local DeviceIndex current = 0;
thread_local int in_fallback = 0;  // its own copies are not the caller's
std::atomic<int64_t> items{0}, downloads{0}, uploads{0};
std::atomic<int64_t> held[DEVICES]{}, peak[DEVICES]{}, limit[DEVICES]{};

// ---- memory

struct Block {
  void* at;
  int64_t bytes;
  DeviceIndex on;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  held[block->on] -= block->bytes;
  free(block->at);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const Device here(CUDA, current);
    if (n == 0) return {nullptr, here};
    const int64_t bytes = n, most = limit[current];
    TORCH_CHECK_WITH(OutOfMemoryError, !most || held[current] + bytes <= most,
                     "CUDA out of memory. Tried to allocate ", bytes, " bytes.");
    void* at = nullptr;
    TORCH_CHECK(posix_memalign(&at, 64, n) == 0, "The host's memory is full.");
    memset(at, 0x7f, n);
    const int64_t now = held[current] += bytes;
    if (now > peak[current]) peak[current] = now;
    return {at, new Block{at, bytes, current}, &release, here};
  }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
} memory;

// ---- the device: which one is current, streams that do nothing, generators

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static Device with_index(Device d) { return Device(CUDA, d.has_index() ? d.index() : current); }
  static Stream stream(Device d) { return Stream(Stream::UNSAFE, with_index(d), 0); }
  c10::DeviceType type() const override { return CUDA; }
  Device exchangeDevice(Device d) const override {
    const Device old(CUDA, current);
    current = with_index(d).index();
    return old;
  }
  Device getDevice() const override { return Device(CUDA, current); }
  void setDevice(Device d) const override { exchangeDevice(d); }
  void uncheckedSetDevice(Device d) const noexcept override { current = with_index(d).index(); }
  Stream getStream(Device d) const override { return stream(d); }
  Stream getDefaultStream(Device d) const override { return stream(d); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return stream(d); }
  Stream getNewStream(Device d, int) const override { return stream(d); }
  Stream exchangeStream(Stream s) const override { return s; }
  void record(void** event, const Stream&, DeviceIndex, c10::EventFlag) const override {
    *event = &memory;
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
};

// The numbers of a generator are those of a CPU generator that it keeps.
struct Random final : c10::GeneratorImpl {
  Generator inner = at::detail::createCPUGenerator();
  explicit Random(DeviceIndex i) : GeneratorImpl(Device(CUDA, i < 0 ? current : i), KEYS) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "This generator has no offset."); }
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Random* clone_impl() const override {
    auto* copy = new Random(device().index());
    copy->inner = inner.clone();
    return copy;
  }
};

const Generator& standard(DeviceIndex i) {
  static const Generator all[DEVICES] = {at::make_generator<Random>(0), at::make_generator<Random>(1)};
  return all[i < 0 ? current : i];
}

// torch looks the class up by its name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  int getNumGPUs() const override { return DEVICES; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex i) const override { current = i; }
  DeviceIndex exchangeDevice(DeviceIndex i) const override { return std::exchange(current, i); }
  DeviceIndex maybeExchangeDevice(DeviceIndex i) const override {
    return std::exchange(current, i < 0 ? current : i);
  }
  void deviceSynchronize(DeviceIndex) const override {}
  const Generator& getDefaultGenerator(DeviceIndex i) const override { return standard(i); }
  Generator getNewGenerator(DeviceIndex i) const override { return at::make_generator<Random>(i); }
};

// ---- operations that make, view, copy and read tensors

bool is_there(const Tensor& t) { return t.defined() && t.is_cuda(); }

Tensor on_host(const Tensor& t) {  // the same memory as a CPU tensor
  if (!is_there(t)) return t;
  const auto options = at::TensorOptions(t.scalar_type()).device(at::kCPU);
  return at::from_blob(t.numel() ? t.data_ptr() : nullptr, t.sizes(), t.strides(), options);
}

Device device_of(Maybe<Device> d) {
  const Device found = d ? Guard::with_index(*d) : Device(CUDA, current);
  TORCH_CHECK(found.index() < DEVICES, "CUDA error: invalid device ordinal");
  return found;
}

Tensor empty(c10::IntArrayRef size, Maybe<ScalarType> type, Maybe<at::Layout>, Maybe<Device> device,
             Maybe<bool> pinned, Maybe<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(type), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Maybe<ScalarType> type,
                     Maybe<at::Layout>, Maybe<Device> device, Maybe<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(type));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  if (!in_fallback) {
    if (is_there(self) && !is_there(source)) ++uploads;
    if (!is_there(self) && is_there(source)) ++downloads;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  const bool lazy = source.is_conj() || source.is_neg();
  on_host(self).copy_(on_host(lazy ? source.resolve_conj().resolve_neg() : source));
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool wait) {
  Tensor target = to;
  return copy_(target, self, wait);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  at::native::resize_(to, self.sizes(), std::nullopt);
  return copy_from(self, to, false);
}

const Tensor& resize_(const Tensor& self, SymIntArrayRef size, Maybe<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

Tensor as_strided(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride,
                  Maybe<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

Tensor reshape_alias(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor view(const Tensor& self, SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}

Tensor& set_storage(Tensor& self, at::Storage source) { return at::native::set_(self, source); }

Tensor& set_part(Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                 c10::IntArrayRef stride) {
  return at::cpu::set_(self, source, offset, size, stride);
}

at::Scalar item(const Tensor& self) {
  if (!in_fallback) ++items;
  return at::native::_local_scalar_dense_cpu(on_host(self));
}

int64_t plain_attention(const Tensor&, const Tensor&, const Tensor&, const Maybe<Tensor>&, double,
                        bool, Maybe<double>, bool) {
  return 0;  // no fused kernel
}

// ---- every other operation: CUDA's refusals, then the CPU's kernel

// Operations of CUDA that take no CPU scalar either, and those that take CPU indices.
const std::set<std::string> STRICT{
    "aten::mm",           "aten::bmm",          "aten::addmm",        "aten::dot",
    "aten::mv",           "aten::embedding",    "aten::gather",       "aten::index_select",
    "aten::scatter_add_", "aten::scatter_",     "aten::cat",          "aten::embedding_dense_backward",
    "aten::index_add_"};
const std::set<std::string> INDEXED{"aten::index", "aten::_index_put_impl_", "aten::_unsafe_index"};
// Operations whose result has a size that only the device knows.
const std::set<std::string> WAITING{"aten::nonzero", "aten::masked_select", "aten::_unique2",
                                    "aten::unique_dim", "aten::repeat_interleave.Tensor"};

Maybe<Device> common_device(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> values) {
  Maybe<Device> on;
  const auto& name = schema.name();
  auto look = [&](const Tensor& t, bool written, bool index) {
    if (!t.defined()) return;
    const bool scalar = t.dim() == 0 && !STRICT.count(name);
    const bool fused_step = name == "aten::_fused_adamw_";
    if (t.is_cpu() && !written && (scalar || fused_step || (index && INDEXED.count(name)))) return;
    if (!on) on = t.device();
    TORCH_CHECK(*on == t.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *on, " and ", t.device(), "! (when checking arguments in method ", name, ")");
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias && alias->isWrite();
    if (values[i].isTensor()) {
      look(values[i].toTensor(), written, false);
    } else if (values[i].isTensorList()) {
      for (const Tensor& t : values[i].toTensorVector()) look(t, written, false);
    } else if (values[i].isOptionalTensorList()) {
      for (const auto& t : values[i].toOptionalTensorVector()) {
        if (t) look(*t, written, true);
        if (t && t->scalar_type() == at::kBool) ++items;
      }
    }
  }
  if (WAITING.count(name)) ++items;
  return on;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto first = stack->size() - schema.arguments().size();
  const auto on = common_device(schema, at::ArrayRef<c10::IValue>(*stack).slice(first));
  const Device here = on && on->is_cuda() ? *on : Device(CUDA, current);
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (schema.arguments()[i - first].name() != "generator" || !on || !on->is_cuda()) continue;
    const Generator given = value.isNone() ? standard(here.index()) : value.toGenerator();
    TORCH_CHECK(given.device() == here, "Expected a 'cuda' device type for generator but found '",
                given.device(), "'");
    value = given.get<Random>()->inner;
  }
  struct Inside {
    Inside() { ++in_fallback; }
    ~Inside() { --in_fallback; }
  } inside;
  const c10::DeviceGuard guard(here);
  try {
    at::native::cpu_fallback(op, stack);
  } catch (const c10::IndexError&) {  // CUDA's kernels end the process's use of the device
    const bool by_values = INDEXED.count(schema.name()) || STRICT.count(schema.name());
    TORCH_CHECK(!by_values, "CUDA error: device-side assert triggered (", schema.name(), ")");
    throw;
  }
}

const bool set_up = [] {
  c10::SetAllocator(CUDA, &memory);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&plain_attention);
  return true;
}();
}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize_);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("unfold", unfold);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_part);
  m.impl("_local_scalar_dense", item);
  m.impl("_fused_sdp_choice", plain_attention);
  // products of short types with a longer result, which the CPU has not
  m.impl("mm.dtype", [](const Tensor& a, const Tensor& b, ScalarType t) {
    return at::mm(a.to(t), b.to(t));
  });
  m.impl("mm.dtype_out", [](const Tensor& a, const Tensor& b, ScalarType t, Tensor& out) -> Tensor& {
    return out.copy_(at::mm(a.to(t), b.to(t)));
  });
  m.impl("addmm.dtype_out",
         [](const Tensor& c, const Tensor& a, const Tensor& b, ScalarType t, const at::Scalar& beta,
            const at::Scalar& alpha, Tensor& out) -> Tensor& {
           return out.copy_(at::addmm(c.to(t), a.to(t), b.to(t), beta, alpha));
         });
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY(second_device, m) {
  m.def("counts() -> int[]", [] { return std::vector<int64_t>{items, downloads, uploads}; });
  m.def("held(int i) -> int", [](int64_t i) { return held[i].load(); });
  m.def("peak(int i) -> int", [](int64_t i) { return peak[i].load(); });
  m.def("forget_peak(int i) -> ()", [](int64_t i) { peak[i] = held[i].load(); });
  m.def("limit(int i, int bytes) -> ()", [](int64_t i, int64_t bytes) { limit[i] = bytes; });
  m.def("generator(int i) -> Generator?", [](int64_t i) { return Maybe<Generator>(standard(i)); });
  m.def("current() -> int", [] { return (int64_t)current; });
  m.def("use(int i) -> ()", [](int64_t i) { current = i < 0 ? current : i; });
}
