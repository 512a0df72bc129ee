//! Safe calls into the C++ shim (`cpp/shim.cpp`).

use super::error::TorchError;
use libc::{c_char, c_int, c_void, size_t};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

type HookCall = extern "C" fn(*mut c_void, *mut c_char, size_t) -> c_int;
type HookDrop = extern "C" fn(*mut c_void);
type TensorList = *const *const C_tensor;

unsafe extern "C" {
    fn gradsync_last_error() -> *const c_char;
    fn gradsync_hook_set(
        parameter: *const C_tensor,
        call: HookCall,
        drop: HookDrop,
        data: *mut c_void,
    ) -> c_int;
    fn gradsync_hook_clear(parameter: *const C_tensor) -> c_int;
    fn gradsync_grad_set(parameter: *const C_tensor, gradient: *const C_tensor) -> c_int;
    fn gradsync_fused_adamw(
        count: size_t,
        values: TensorList,
        gradients: TensorList,
        first: TensorList,
        second: TensorList,
        steps: TensorList,
        learning_rate: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
    ) -> c_int;
    fn gradsync_fused_sgd(
        count: size_t,
        values: TensorList,
        gradients: TensorList,
        momenta: TensorList,
        learning_rate: f64,
        weight_decay: f64,
        momentum: f64,
        nesterov: c_int,
    ) -> c_int;
    fn gradsync_set_threads(intra_op: c_int) -> c_int;
    fn gradsync_set_interop_threads(inter_op: c_int) -> c_int;
    fn gradsync_threads() -> c_int;
}

fn check(code: c_int, doing: &str) -> Result<(), TorchError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim returns a zero-terminated string of this thread that lives until its next call,
    // which cannot come before the text is copied.
    let text = unsafe { CStr::from_ptr(gradsync_last_error()) };
    Err(TorchError::new(text.to_string_lossy()).context(doing))
}

/// What a hook runs. Errors end the backward pass with their text.
type HookBody = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A hook on a parameter; removed when this is dropped.
#[must_use = "dropping it removes the hook"]
#[derive(Debug)]
pub struct GradientHook {
    parameter: Tensor,
}

impl Drop for GradientHook {
    fn drop(&mut self) {
        // SAFETY: the tensor is alive; removing an absent hook does nothing. Nobody could act on an error.
        let _ = unsafe { gradsync_hook_clear(self.parameter.as_ptr()) };
    }
}

/// Calls `body` each time a backward pass has accumulated into `parameter`'s `.grad`, on the thread that
/// runs the backward pass. An error or panic of `body` ends that pass: `f_backward` returns an error with
/// the text. A parameter has one hook; a second replaces the first.
///
/// # Errors
/// When `parameter` takes no part in autograd.
pub fn hook_gradient(
    parameter: &Tensor,
    body: impl Fn() -> Result<(), String> + Send + Sync + 'static,
) -> Result<GradientHook, TorchError> {
    if !parameter.requires_grad() || !parameter.is_leaf() {
        return Err(TorchError::new(
            "hook a gradient: the tensor is not a leaf that requires a gradient",
        ));
    }
    let body: Box<HookBody> = Box::new(Box::new(body));
    let data = Box::into_raw(body).cast();
    // SAFETY: `data` is a leaked box of the type that both functions expect; the shim takes it over in
    // every case and drops it once. The closure is Send and Sync, since any thread may run backward.
    let code = unsafe { gradsync_hook_set(parameter.as_ptr(), call_hook, drop_hook, data) };
    check(code, "hook a gradient")?;
    Ok(GradientHook {
        parameter: parameter.shallow_clone(),
    })
}

extern "C" fn call_hook(data: *mut c_void, message: *mut c_char, capacity: size_t) -> c_int {
    // No panic may unwind into C++.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `data` is the box of `hook_gradient`, alive until `drop_hook`, shared between threads
        // as `&` only.
        let body = unsafe { &*data.cast::<HookBody>() };
        body()
    }));
    let text = match outcome {
        Ok(Ok(())) => return 0,
        Ok(Err(text)) => text,
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            // A payload whose own drop panics must not unwind into C++ either.
            std::mem::forget(panic);
            format!("panic in a gradient hook: {text}")
        }
    };
    let length = text.len().min(capacity.saturating_sub(1));
    // SAFETY: the shim's buffer has `capacity` zeroed bytes and the last stays zero.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), message.cast(), length) };
    1
}

extern "C" fn drop_hook(data: *mut c_void) {
    // SAFETY: called once with the box of `hook_gradient`.
    let body = unsafe { Box::from_raw(data.cast::<HookBody>()) };
    // What a closure owns may panic when dropped; that must not unwind into C++.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(body)));
}

/// Makes `gradient` the `.grad` of `parameter`, or removes it. Backward accumulates into a gradient that is
/// set, in place: a view of a larger tensor stays that view.
///
/// # Errors
/// When kind, shape or device differ.
pub fn set_gradient(parameter: &Tensor, gradient: Option<&Tensor>) -> Result<(), TorchError> {
    if let Some(gradient) = gradient
        && (gradient.size() != parameter.size()
            || gradient.f_kind()? != parameter.f_kind()?
            || gradient.device() != parameter.device())
    {
        return Err(TorchError::new(
            "set a gradient: shape, kind or device differ from the parameter's",
        ));
    }
    let pointer = gradient.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: both tensors are alive during the call; the shim copies the handle.
    let code = unsafe { gradsync_grad_set(parameter.as_ptr(), pointer) };
    check(code, "set a gradient")
}

/// What an AdamW step reads and changes; entry `i` of each list belongs to one parameter.
#[derive(Clone, Copy, Debug)]
pub struct AdamWLists<'a> {
    /// Changed.
    pub values: &'a [&'a Tensor],
    /// Read.
    pub gradients: &'a [&'a Tensor],
    /// Running mean of the gradients; changed.
    pub first: &'a [&'a Tensor],
    /// Running mean of their squares; changed.
    pub second: &'a [&'a Tensor],
    /// The number of this step, from 1, for the bias correction.
    pub steps: &'a [u64],
}

/// Scalars of an AdamW step.
#[derive(Clone, Copy, Debug)]
pub struct AdamWScalars {
    /// Learning rate.
    pub learning_rate: f64,
    /// (beta1, beta2).
    pub betas: (f64, f64),
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub eps: f64,
}

/// One AdamW step (Loshchilov and Hutter 2019) by libtorch's fused kernel.
///
/// # Errors
/// When the lists do not match or libtorch refuses; nothing was changed if they do not match.
pub fn fused_adamw(lists: AdamWLists<'_>, scalars: AdamWScalars) -> Result<(), TorchError> {
    let doing = "take an AdamW step";
    let count = lists.values.len();
    for list in [lists.gradients, lists.first, lists.second] {
        same_layout(lists.values, list, doing)?;
    }
    if lists.steps.len() != count {
        return Err(TorchError::new(format!(
            "{doing}: {count} values and {} step numbers",
            lists.steps.len()
        )));
    }
    if count == 0 {
        return Ok(());
    }
    // The kernel reads the numbers as float scalars; beyond 2^24 the correction is 1 to the last bit.
    let steps = lists
        .steps
        .iter()
        .zip(lists.values)
        .map(|(step, value)| Tensor::f_full([0i64; 0], *step as f64, (Kind::Float, value.device())))
        .collect::<Result<Vec<_>, _>>()?;
    // SAFETY: every list has `count` live tensors of equal layout, checked above.
    let code = unsafe {
        gradsync_fused_adamw(
            count,
            pointers(lists.values).as_ptr(),
            pointers(lists.gradients).as_ptr(),
            pointers(lists.first).as_ptr(),
            pointers(lists.second).as_ptr(),
            pointers(&steps.iter().collect::<Vec<_>>()).as_ptr(),
            scalars.learning_rate,
            scalars.betas.0,
            scalars.betas.1,
            scalars.weight_decay,
            scalars.eps,
        )
    };
    check(code, doing)
}

/// What an SGD step reads and changes.
#[derive(Clone, Copy, Debug)]
pub struct SgdLists<'a> {
    /// Changed.
    pub values: &'a [&'a Tensor],
    /// Read.
    pub gradients: &'a [&'a Tensor],
    /// Velocities, zero before the first step; changed. Absent: momentum must be 0.
    pub momenta: Option<&'a [&'a Tensor]>,
}

/// Scalars of an SGD step.
#[derive(Clone, Copy, Debug)]
pub struct SgdScalars {
    /// Learning rate.
    pub learning_rate: f64,
    /// L2 weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Momentum.
    pub momentum: f64,
    /// Nesterov's form.
    pub nesterov: bool,
}

/// One SGD step with PyTorch's semantics (dampening 0) by libtorch's fused kernel.
///
/// # Errors
/// When the lists do not match or libtorch refuses; nothing was changed if they do not match.
pub fn fused_sgd(lists: SgdLists<'_>, scalars: SgdScalars) -> Result<(), TorchError> {
    let doing = "take an SGD step";
    same_layout(lists.values, lists.gradients, doing)?;
    if let Some(momenta) = lists.momenta {
        same_layout(lists.values, momenta, doing)?;
    }
    if lists.momenta.is_none() != (scalars.momentum == 0.0) {
        return Err(TorchError::new(format!(
            "{doing}: velocities and momentum {} contradict each other",
            scalars.momentum
        )));
    }
    let count = lists.values.len();
    if count == 0 {
        return Ok(());
    }
    let momenta = lists.momenta.map(pointers);
    // SAFETY: every list has `count` live tensors of equal layout, checked above; a null list is allowed
    // when momentum is 0.
    let code = unsafe {
        gradsync_fused_sgd(
            count,
            pointers(lists.values).as_ptr(),
            pointers(lists.gradients).as_ptr(),
            momenta.as_ref().map_or(std::ptr::null(), Vec::as_ptr),
            scalars.learning_rate,
            scalars.weight_decay,
            scalars.momentum,
            c_int::from(scalars.nesterov),
        )
    };
    check(code, doing)
}

/// Sets the threads that one operator may use, and those that run operators beside each other (1 is what
/// a training process wants: its operators come one after the other). The latter can be set once in a
/// process, before the first parallel work; asking for the same number again does nothing.
///
/// # Errors
/// When a number is 0, or the inter-op pool runs already.
pub fn set_threads(intra_op: u32, inter_op: u32) -> Result<(), TorchError> {
    static INTER_OP: std::sync::Mutex<Option<u32>> = std::sync::Mutex::new(None);
    let number = |threads: u32| {
        c_int::try_from(threads)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| TorchError::new(format!("use {threads} threads: must be 1 to {}", c_int::MAX)))
    };
    let (intra, inter) = (number(intra_op)?, number(inter_op)?);
    // SAFETY: plain numbers.
    check(unsafe { gradsync_set_threads(intra) }, "set intra-op threads")?;
    let mut set = INTER_OP.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if *set != Some(inter_op) {
        // SAFETY: plain numbers.
        let code = unsafe { gradsync_set_interop_threads(inter) };
        check(code, "set inter-op threads")?;
        *set = Some(inter_op);
    }
    Ok(())
}

/// Threads that one operator may use now.
#[must_use]
pub fn intra_op_threads() -> u32 {
    // SAFETY: takes nothing, reads a number.
    unsafe { gradsync_threads() }.max(0) as u32
}

fn pointers(tensors: &[&Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

/// The fused kernels walk raw memory, so what they assume is checked here.
fn same_layout(values: &[&Tensor], others: &[&Tensor], doing: &str) -> Result<(), TorchError> {
    if values.len() != others.len() {
        return Err(TorchError::new(format!(
            "{doing}: lists of {} and {} tensors",
            values.len(),
            others.len()
        )));
    }
    for (index, (value, other)) in values.iter().zip(others).enumerate() {
        let equal = value.numel() == other.numel()
            && value.f_kind()? == other.f_kind()?
            && matches!(value.f_kind()?, Kind::Float | Kind::Double)
            && value.device() == other.device()
            && value.device() == values[0].device()
            && value.device() != Device::Mps
            && value.is_contiguous()
            && other.is_contiguous();
        if !equal {
            return Err(TorchError::new(format!(
                "{doing}: tensor {index} of a list has another layout than its parameter"
            )));
        }
    }
    Ok(())
}
