//! What the border promises: hooks, gradients as views, errors instead of panics, memory.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tch::{Device, Kind, Tensor};

fn leaf(values: &[f64]) -> Tensor {
    Tensor::from_slice(values).set_requires_grad(true)
}

fn loss(parameter: &Tensor) -> Tensor {
    (parameter * parameter).sum(Kind::Double)
}

#[test]
fn a_hook_runs_once_per_backward_and_not_after_it_was_dropped() {
    let parameter = leaf(&[1.0, 2.0]);
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let hook = hook_gradient(&parameter, move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    // Used three times in the graph, accumulated once.
    (&parameter * &parameter + &parameter)
        .sum(Kind::Double)
        .backward();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    loss(&parameter).backward();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    drop(hook);
    loss(&parameter).backward();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(
        Arc::strong_count(&calls),
        1,
        "the closure was not dropped with its hook"
    );
}

#[test]
fn an_error_of_a_hook_ends_backward_as_an_error_with_its_text() {
    let parameter = leaf(&[1.0]);
    let hook = hook_gradient(&parameter, || Err("bucket queue is closed".into())).unwrap();
    let error = TorchError::from(loss(&parameter).f_backward().unwrap_err());
    assert_eq!(error.to_string(), "bucket queue is closed");
    drop(hook);
    loss(&parameter).f_backward().unwrap();
}

#[test]
fn a_panic_of_a_hook_ends_backward_as_an_error_with_its_text() {
    let parameter = leaf(&[1.0]);
    let hook = hook_gradient(&parameter, || panic!("index {} is out of range", 7)).unwrap();
    let error = TorchError::from(loss(&parameter).f_backward().unwrap_err());
    assert_eq!(
        error.to_string(),
        "panic in a gradient hook: index 7 is out of range"
    );
    drop(hook);
    loss(&parameter).f_backward().unwrap();
}

#[test]
fn a_very_long_error_is_cut_and_stays_text() {
    let parameter = leaf(&[1.0]);
    let _hook = hook_gradient(&parameter, || Err("x".repeat(10_000))).unwrap();
    let error = TorchError::from(loss(&parameter).f_backward().unwrap_err());
    assert_eq!(error.to_string(), "x".repeat(511));
}

#[test]
fn only_leaves_that_require_a_gradient_can_be_hooked() {
    let parameter = leaf(&[1.0]);
    assert!(hook_gradient(&(&parameter * 2.0), || Ok(())).is_err());
    assert!(hook_gradient(&Tensor::from_slice(&[1.0]), || Ok(())).is_err());
}

#[test]
fn a_gradient_that_is_a_view_stays_one_over_many_backward_passes() {
    for kind in [Kind::Double, Kind::Float] {
        let flat = Tensor::zeros([8], (kind, Device::Cpu));
        let parameter = Tensor::ones([2, 2], (kind, Device::Cpu)).set_requires_grad(true);
        let view = flat.narrow(0, 4, 4).view([2, 2]);
        set_gradient(&parameter, Some(&view)).unwrap();
        for pass in 1..=3 {
            (&parameter * 3.0).sum(kind).backward();
            assert_eq!(parameter.grad().data_ptr(), view.data_ptr());
            assert_eq!(flat.sum(kind).double_value(&[]), 12.0 * f64::from(pass));
        }
        set_gradient(&parameter, None).unwrap();
        assert!(!parameter.grad().defined());
        let wrong = Tensor::zeros([4], (kind, Device::Cpu));
        assert!(set_gradient(&parameter, Some(&wrong)).is_err());
    }
}

#[test]
fn fused_steps_refuse_lists_that_do_not_match() {
    let of = |sizes: &[i64], kind| -> Vec<Tensor> {
        sizes
            .iter()
            .map(|n| Tensor::zeros([*n], (kind, Device::Cpu)))
            .collect()
    };
    fn refs(tensors: &[Tensor]) -> Vec<&Tensor> {
        tensors.iter().collect()
    }
    let values = of(&[4, 3], Kind::Float);
    let scalars = SgdScalars {
        learning_rate: 1.0,
        weight_decay: 0.0,
        momentum: 0.0,
        nesterov: false,
    };
    let step = |gradients: &[Tensor], momenta: Option<&[Tensor]>, scalars| {
        fused_sgd(
            SgdLists {
                values: &refs(&values),
                gradients: &refs(gradients),
                momenta: momenta.map(refs).as_deref(),
            },
            scalars,
        )
    };
    assert!(step(&of(&[4, 3], Kind::Float), None, scalars).is_ok());
    assert!(step(&of(&[4, 2], Kind::Float), None, scalars).is_err());
    assert!(step(&of(&[4], Kind::Float), None, scalars).is_err());
    assert!(step(&of(&[4, 3], Kind::Double), None, scalars).is_err());
    let gapped = [
        of(&[4], Kind::Float).remove(0),
        Tensor::zeros([3, 2], (Kind::Float, Device::Cpu)).select(1, 0),
    ];
    assert!(step(&gapped, None, scalars).is_err(), "not contiguous");
    let momenta = of(&[4, 3], Kind::Float);
    assert!(
        step(&of(&[4, 3], Kind::Float), Some(&momenta), scalars).is_err(),
        "momentum 0"
    );
    let heavy = SgdScalars {
        momentum: 0.9,
        ..scalars
    };
    assert!(step(&of(&[4, 3], Kind::Float), Some(&momenta), heavy).is_ok());
}

#[test]
fn memory_is_reached_in_place_and_only_where_it_is_plain() {
    let mut tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]);
    let sum = read_elements::<f32, f32>(&tensor, |values| values.iter().sum()).unwrap();
    assert_eq!(sum, 10.0);
    write_elements::<f32, ()>(&mut tensor, |values| values[1] = 7.0).unwrap();
    assert_eq!(tensor.double_value(&[1]), 7.0);
    assert_eq!(read_bytes(&tensor, <[u8]>::len).unwrap(), 16);
    let view = tensor.narrow(0, 1, 2);
    assert_eq!(
        read_elements::<f32, _>(&view, <[f32]>::to_vec).unwrap(),
        [7.0, 3.0]
    );
    assert!(
        read_elements::<f64, _>(&tensor, <[f64]>::len).is_err(),
        "wrong type"
    );
    assert!(
        read_bytes(&tensor.reshape([2, 2]).tr(), <[u8]>::len).is_err(),
        "transposed"
    );
    assert!(read_bytes(&Tensor::new(), <[u8]>::len).is_err(), "undefined");
    let empty = Tensor::zeros([0], (Kind::Float, Device::Cpu));
    assert_eq!(read_bytes(&empty, <[u8]>::len).unwrap(), 0);
}

#[test]
fn lent_memory_outlives_the_tensor() {
    let tensor = Tensor::from_slice(&[1.5f64, 2.5]);
    let region = lend(&tensor).unwrap();
    drop(tensor);
    let buffer =
        gradsync_collective::Buffer::new(Arc::new(region), 0..16, gradsync_collective::DType::F64).unwrap();
    assert_eq!(buffer.to_vec::<f64>().unwrap(), [1.5, 2.5]);
}

#[test]
fn thread_counts_are_set_once_and_checked() {
    set_threads(1, 1).unwrap();
    set_threads(1, 1).unwrap();
    assert_eq!(intra_op_threads(), 1);
    assert!(set_threads(0, 1).is_err());
    assert!(set_threads(1, 0).is_err());
    assert!(
        set_threads(1, 2).is_err(),
        "libtorch takes the inter-op number once"
    );
}
