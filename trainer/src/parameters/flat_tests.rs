//! Layout by a plan: same objects, same bits, gradients in place.

use super::*;
use crate::parameters::{Init, ModelBuilder};
use crate::torch::read_elements;
use gradsync_collective::bucket_plan::Caps;

const SHAPES: [&[i64]; 4] = [&[3, 5], &[3], &[2, 3], &[]];
const INIT: Init = Init::Normal { mean: 0.0, std: 1.0 };

/// The model's own handles and the registered parameters.
fn model(kind: Kind) -> (Vec<Tensor>, Vec<Parameter>) {
    let root = ModelBuilder::new(1, kind, Device::Cpu);
    let handles = SHAPES
        .iter()
        .enumerate()
        .map(|(index, shape)| root.parameter(&format!("p{index}"), shape, INIT).unwrap())
        .collect();
    (handles, root.finish().parameters)
}

fn plan(parameters: &[Parameter], order: &[usize], cap: usize) -> BucketPlan {
    let caps = Caps {
        first: cap,
        rest: cap,
    };
    BucketPlan::new(&parameter_specs(parameters).unwrap(), order, caps).unwrap()
}

fn loss(model: &[Tensor]) -> Tensor {
    let first = model[0].tr().matmul(&model[1]).sum(model[0].kind());
    (first * &model[3] + model[2].square().sum(model[0].kind())).tanh()
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u64>> {
    let of = |tensor: &Tensor| {
        let doubles = tensor.detach().to_kind(Kind::Double).contiguous();
        read_elements::<f64, _>(&doubles, |v| v.iter().map(|x| x.to_bits()).collect()).unwrap()
    };
    tensors.iter().map(of).collect()
}

#[test]
fn adopting_a_plan_changes_no_bit_of_values_or_gradients_and_keeps_the_objects() {
    for kind in [Kind::Double, Kind::Float] {
        let (plain, _) = model(kind);
        loss(&plain).backward();
        let expected: Vec<_> = plain.iter().map(Tensor::grad).collect();

        let (handles, parameters) = model(kind);
        let plan = plan(&parameters, &[3, 1, 2, 0], 100);
        assert!(plan.buckets.len() > 1, "the test needs several buckets");
        let mut flat = FlatParameters::adopt(parameters, plan).unwrap();
        assert_eq!(bits(&handles), bits(&plain));
        flat.zero_gradients().unwrap();
        loss(&handles).backward();
        flat.check_gradients().unwrap();
        let gradients: Vec<_> = handles.iter().map(Tensor::grad).collect();
        assert_eq!(bits(&gradients), bits(&expected));
        for (index, handle) in handles.iter().enumerate() {
            assert!(handle.requires_grad() && handle.is_leaf());
            assert_eq!(handle.data_ptr(), flat.values(index).data_ptr());
            assert_eq!(handle.grad().data_ptr(), flat.gradient(index).data_ptr());
        }
    }
}

#[test]
fn the_model_sees_changes_of_the_flat_values() {
    let (handles, parameters) = model(Kind::Double);
    let plan = plan(&parameters, &[0, 1, 2, 3], 1 << 20);
    let mut flat = FlatParameters::adopt(parameters, plan).unwrap();
    let _ = flat.values(1).shallow_clone().fill_(7.0);
    assert_eq!(handles[1].double_value(&[2]), 7.0);
    flat.load(3, &Tensor::from(2.5)).unwrap();
    assert_eq!(handles[3].double_value(&[]), 2.5);
    let error = flat.load(2, &Tensor::from(2.5)).unwrap_err();
    assert_eq!(error.to_string(), "load parameter p2: [] does not fit [2, 3]");
}

#[test]
fn gradients_stay_in_their_buckets_over_many_backward_passes_and_padding_stays_zero() {
    for kind in [Kind::Double, Kind::Float] {
        let (handles, parameters) = model(kind);
        let plan = plan(&parameters, &[2, 0, 3, 1], 100);
        let used: usize = SHAPES.iter().map(|s| s.iter().product::<i64>() as usize).sum();
        let mut flat = FlatParameters::adopt(parameters, plan).unwrap();
        flat.zero_gradients().unwrap();
        for pass in 1..=5 {
            loss(&handles).backward();
            flat.check_gradients().unwrap();
            if pass == 3 {
                flat.zero_gradients().unwrap();
            }
        }
        flat.scale_gradients(3.0).unwrap();
        let non_zero = |t: &Tensor| t.count_nonzero_dim_intlist([0i64].as_slice()).int64_value(&[]) as usize;
        assert_eq!(non_zero(&flat.flat.gradients), used);
        assert_eq!(non_zero(&flat.flat.values), used);
        assert!(flat.flat.values.numel() > used, "the test needs padding");
    }
}

#[test]
fn laying_out_anew_keeps_every_bit_and_what_was_lent() {
    for kind in [Kind::Double, Kind::Float] {
        let (handles, parameters) = model(kind);
        let first = plan(&parameters, &[0, 1, 2, 3], 1 << 20);
        let second = plan(&parameters, &[3, 2, 1, 0], 1);
        let mut flat = FlatParameters::adopt(parameters, first.clone()).unwrap();
        flat.zero_gradients().unwrap();
        loss(&handles).backward();
        let gradients = || handles.iter().map(Tensor::grad).collect::<Vec<_>>();
        let (values_before, gradients_before) = (bits(&handles), bits(&gradients()));
        let lent = flat.bucket(0).unwrap();
        for plan in [second, first] {
            flat.readopt(plan.clone()).unwrap();
            assert_eq!(flat.plan(), &plan);
            assert_eq!(bits(&handles), values_before);
            assert_eq!(bits(&gradients()), gradients_before);
            flat.check_gradients().unwrap();
        }
        assert_eq!(lent.elements(), flat.plan().buckets[0].elements);
        let wrong = BucketPlan { buckets: vec![] };
        assert!(matches!(flat.readopt(wrong), Err(FlatError::Plan(_))));
        assert_eq!(bits(&handles), values_before);
    }
}

#[test]
fn a_bucket_is_lent_in_place() {
    let (handles, parameters) = model(Kind::Float);
    let plan = plan(&parameters, &[3, 1, 2, 0], 1);
    let mut flat = FlatParameters::adopt(parameters, plan).unwrap();
    flat.zero_gradients().unwrap();
    loss(&handles).backward();
    let buffer = flat.bucket(1).unwrap();
    let sent: Vec<f32> = buffer.to_vec().unwrap();
    let gradient = Vec::<f32>::try_from(handles[1].grad()).unwrap();
    assert_eq!(sent[..gradient.len()], gradient);
    let received: Vec<f32> = sent.iter().map(|x| x * 2.0 + 1.0).collect();
    buffer.copy_from_slice(&received).unwrap();
    assert_eq!(
        Vec::<f32>::try_from(handles[1].grad()).unwrap(),
        received[..gradient.len()]
    );
    assert!(matches!(
        flat.bucket(4),
        Err(FlatError::Bucket {
            bucket: 4,
            buckets: 4
        })
    ));
    for bucket in 0..4 {
        let buffer = flat.bucket(bucket).unwrap();
        assert_eq!(
            (buffer.region().as_ptr() as usize + buffer.byte_range().start) % 64,
            0
        );
    }
}

#[test]
fn a_gradient_that_was_replaced_is_found_and_named() {
    let (handles, parameters) = model(Kind::Double);
    let plan = plan(&parameters, &[0, 1, 2, 3], 1);
    let mut flat = FlatParameters::adopt(parameters, plan).unwrap();
    flat.zero_gradients().unwrap();
    set_gradient(&handles[2], None).unwrap();
    loss(&handles).backward();
    let error = flat.check_gradients().unwrap_err();
    assert_eq!(error, FlatError::Detached { name: "p2".into() });
    flat.zero_gradients().unwrap();
    flat.check_gradients().unwrap();
}

#[test]
fn mixed_types_and_a_strangers_sizes_are_refused() {
    let mixed = ModelBuilder::new(1, Kind::Double, Device::Cpu);
    let _ = mixed.parameter("a", &[1], INIT).unwrap();
    let mut parameters = mixed.finish().parameters;
    parameters.push(model(Kind::Float).1.remove(0));
    assert!(matches!(parameter_specs(&parameters), Err(FlatError::Kind { name, .. }) if name == "p0"));

    let (_, parameters) = model(Kind::Double);
    let mut huge = plan(&parameters, &[0, 1, 2, 3], 1);
    huge.buckets[0].elements = usize::MAX;
    assert!(FlatParameters::adopt(parameters, huge).is_err());
}
