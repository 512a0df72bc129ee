// What tch does not offer: gradient hooks, setting `.grad`, fused optimiser kernels, thread counts.
//
// Rules of this border: no exception leaves a function (every function returns 0, or -1 with a text in
// gradsync_last_error), tensors are borrowed for the duration of the call, and the header set stays small
// (ATen/ATen.h doubles the compile time, torch/torch.h triples it).
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// Declared here because torch/csrc/autograd/variable.h includes all of ATen. A change of signature in a
// later libtorch is an error of the linker, not silent misbehaviour.
namespace torch::autograd::impl {
TORCH_API void set_post_acc_grad_hooks(
    const at::TensorBase&, std::unique_ptr<PostAccumulateGradHook>);
}

namespace {

using at::Tensor;

thread_local std::string last_error;

template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    try {
      body();
      return 0;
    } catch (const c10::Error& error) {
      last_error = error.what_without_backtrace();
    } catch (const std::exception& error) {
      last_error = error.what();
    } catch (...) {
      last_error = "unknown C++ exception";
    }
  } catch (...) {
    // Copying the text ran out of memory.
    last_error.clear();
  }
  return -1;
}

std::vector<Tensor> list_of(Tensor* const* tensors, std::size_t count) {
  std::vector<Tensor> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) list.push_back(*tensors[i]);
  return list;
}

extern "C" {
// Returns 0, or non-zero after writing a zero-terminated text of at most `capacity` bytes.
using HookCall = int (*)(void* data, char* message, std::size_t capacity);
using HookDrop = void (*)(void* data);
}

// Owns a Rust closure. Its failure becomes a C++ exception, which ends backward with an error.
class Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(HookCall call, HookDrop drop, void* data) noexcept : call_(call), drop_(drop), data_(data) {}
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  ~Hook() override { drop_(data_); }

  void operator()(const Tensor&) override {
    char message[512] = {};
    if (call_(data_, message, sizeof message) != 0) throw std::runtime_error(message);
  }

 private:
  HookCall call_;
  HookDrop drop_;
  void* data_;
};

}  // namespace

extern "C" {

// Text of this thread's last failure; valid until the next call of this thread.
const char* gradsync_last_error() { return last_error.c_str(); }

// Takes ownership of `data` in every case: `drop` is called once, at the latest here on failure.
int gradsync_hook_set(Tensor* parameter, HookCall call, HookDrop drop, void* data) {
  return guarded([&] {
    std::unique_ptr<Hook> hook;
    try {
      hook = std::make_unique<Hook>(call, drop, data);
    } catch (...) {
      drop(data);
      throw;
    }
    torch::autograd::impl::set_post_acc_grad_hooks(*parameter, std::move(hook));
  });
}

int gradsync_hook_clear(Tensor* parameter) {
  return guarded([&] { torch::autograd::impl::set_post_acc_grad_hooks(*parameter, nullptr); });
}

// A null `gradient` removes it.
int gradsync_grad_set(Tensor* parameter, Tensor* gradient) {
  return guarded([&] { parameter->mutable_grad() = gradient ? *gradient : Tensor(); });
}

// `steps` holds one scalar tensor per parameter: the number of this step, from 1.
int gradsync_fused_adamw(
    std::size_t count, Tensor* const* values, Tensor* const* gradients, Tensor* const* first,
    Tensor* const* second, Tensor* const* steps, double learning_rate, double beta1, double beta2,
    double weight_decay, double eps) {
  return guarded([&] {
    at::_fused_adamw_(
        list_of(values, count), list_of(gradients, count), list_of(first, count),
        list_of(second, count), {}, list_of(steps, count), learning_rate, beta1, beta2, weight_decay,
        eps, /*amsgrad=*/false, /*maximize=*/false);
  });
}

// A null `momenta` with momentum 0: plain SGD.
int gradsync_fused_sgd(
    std::size_t count, Tensor* const* values, Tensor* const* gradients, Tensor* const* momenta,
    double learning_rate, double weight_decay, double momentum, int nesterov) {
  return guarded([&] {
    at::_fused_sgd_(
        list_of(values, count), list_of(gradients, count),
        momenta ? list_of(momenta, count) : std::vector<Tensor>(), weight_decay, momentum,
        learning_rate, /*dampening=*/0.0, nesterov != 0, /*maximize=*/false,
        /*is_first_step=*/false);
  });
}

int gradsync_set_threads(int intra_op) {
  return guarded([&] { at::set_num_threads(intra_op); });
}

// libtorch allows this once, before the first use of its inter-op pool.
int gradsync_set_interop_threads(int inter_op) {
  return guarded([&] { at::set_num_interop_threads(inter_op); });
}

int gradsync_threads() { return at::get_num_threads(); }

}  // extern "C"
