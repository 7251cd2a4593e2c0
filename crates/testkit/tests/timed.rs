//! The measuring device: it changes nothing and puts everything down.

use forerun_backend::conform::{self, Tolerances};
use forerun_backend::op::{Embed, Linear, Softcap};
use forerun_backend::{
    Backend, BufferRole, BufferSpec, Cost, HostData, Op, OpKind, RowClass, Timed, View,
    submit_and_wait,
};
use forerun_backend_cpu::plain;
use forerun_base::{DType, Format, Matrix};
use forerun_testkit::Recorder;

fn room(device: &mut dyn Backend, dtype: DType, len: usize) -> View {
    let spec = BufferSpec { label: "test", dtype, len, role: BufferRole::State };
    View::head(device.alloc(spec).expect("memory"), len)
}

fn numbers(device: &mut dyn Backend, len: usize) -> View {
    let view = room(device, DType::F32, len);
    device.write(view, HostData::F32(&vec![1.0; len])).expect("view fits");
    view
}

#[test]
fn a_running_meter_changes_no_result() {
    for case in conform::cases() {
        let (mut timed, meter) = Timed::new(Box::new(plain()));
        meter.start();
        let exact = Tolerances::general(0.0);
        let report = conform::check(&case, &mut timed, &mut plain(), &exact);
        assert!(report.failures.is_empty(), "{report}");
        assert!(!meter.stop().is_empty(), "{}", case.name);
    }
    let (mut timed, meter) = Timed::new(Box::new(plain()));
    meter.start();
    let report = conform::check_refusals(&mut timed);
    assert!(report.failures.is_empty(), "{report}");
}

#[test]
fn every_operation_that_multiplies_a_weight_is_told_by_its_format() {
    let products = ["linear", "linears", "gated_linear", "experts", "cluster_head", "head_sample"];
    for name in products {
        let case = conform::cases().into_iter().find(|case| case.op == name).expect("a case");
        let (mut timed, meter) = Timed::new(Box::new(plain()));
        meter.start();
        conform::check(&case, &mut timed, &mut plain(), &Tolerances::general(0.0));
        let entries = meter.stop();
        let own = entries.iter().find(|entry| entry.kind.op == name).expect("it was called");
        assert!(own.kind.product.is_some(), "{name}");
    }
}

#[test]
fn products_are_summed_by_format_and_rows_and_the_rest_by_name() {
    let (mut device, meter) = Timed::new(Box::new(plain()));
    let weight = Matrix::from_f32(6, 4, &[0.5; 24]).unwrap();
    let weight = device.upload("weight", weight).unwrap();
    let (x, out) = (numbers(&mut device, 20 * 4), numbers(&mut device, 20 * 6));
    let product = |rows: usize| -> Op {
        Linear::set(x.part(0, rows * 4), weight, out.part(0, rows * 6)).into()
    };
    let cap = Op::from(Softcap { x: out, cap: 3.0 });
    product(1).apply(&mut device).unwrap();
    meter.start();
    let ops = [product(1), product(2), product(4), product(5), product(20), product(1), cap];
    for op in ops {
        op.apply(&mut device).unwrap();
    }
    let entries = meter.stop();
    let f32 = Format::Dense(DType::F32);
    let linear = |width| OpKind { op: "linear", product: Some((f32, width)) };
    let softcap = OpKind { op: "softcap", product: None };
    let counted: Vec<(OpKind, u64)> = entries.iter().map(|e| (e.kind, e.calls)).collect();
    let expected = [
        (linear(RowClass::One), 2),
        (linear(RowClass::Few), 2),
        (linear(RowClass::Some), 1),
        (linear(RowClass::Many), 1),
        (softcap, 1),
    ];
    assert_eq!(counted, expected, "the call before the start is not among them");
    let total = entries.iter().fold(Cost::default(), |sum, entry| sum + entry.cost);
    let alone = ops.iter().fold(Cost::default(), |sum, op| sum + op.desc(&device).cost());
    assert_eq!(total, alone);
    assert!(entries.iter().all(|entry| !entry.time.is_zero()));
    product(1).apply(&mut device).unwrap();
    assert_eq!(meter.stop(), [], "nothing is put down after the stop");
}

/// The recorder queues as a GPU does: what was written before must arrive before it is looked at.
#[test]
fn indices_that_only_the_device_holds_make_costs_exact() {
    let (mut device, meter) = Timed::new(Box::new(Recorder::new(Box::new(plain()))));
    let table = Matrix::from_f32(50, 4, &[0.5; 200]).unwrap();
    let table = device.upload("table", table).unwrap();
    let (ids, out) = (room(&mut device, DType::U32, 5), room(&mut device, DType::F32, 20));
    meter.start();
    device.write(ids, HostData::U32(&[3, 9, 3, 3, 9])).unwrap();
    device.embed(Embed { ids, table, scale: 1.0, out }).unwrap();
    submit_and_wait(&mut device).unwrap();
    let entries = meter.stop();
    assert_eq!(entries[0].cost.weights, 2 * 4 * 4, "two different rows of four numbers");
}
