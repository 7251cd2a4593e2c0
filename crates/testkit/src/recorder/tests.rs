use super::*;
use forerun_backend::op::{Activation, Embed, GatedLinear, Glu, Linear, Store};
use forerun_backend::submit_and_wait;
use forerun_backend_cpu::{Cpu, Kernels, Memory, plain};

const WIDTH: usize = 4;

fn recorder() -> Recorder {
    Recorder::new(Box::new(plain()))
}

fn buffer(device: &mut Recorder, label: &str, dtype: DType, role: BufferRole) -> View {
    let spec = BufferSpec { label, dtype, len: WIDTH, role };
    View::head(device.alloc(spec).unwrap(), WIDTH)
}

fn scratch(device: &mut Recorder, label: &str) -> View {
    buffer(device, label, DType::F32, BufferRole::Scratch)
}

fn read(device: &mut Recorder, view: View) -> Result<Vec<f32>, BackendError> {
    let mut values = vec![0.0; view.len];
    device.read(view, HostDataMut::F32(&mut values))?;
    Ok(values)
}

fn complaint<T: std::fmt::Debug>(result: Result<T, BackendError>) -> String {
    match result.unwrap_err() {
        BackendError::Protocol(text) => text,
        other => panic!("expected a broken protocol, found {other:?}"),
    }
}

/// Two written buffers and an operation over them: `gate ← silu(gate)·up`.
fn gated(device: &mut Recorder) -> Glu {
    let (gate, up) = (scratch(device, "gate"), scratch(device, "up"));
    device.write(gate, HostData::F32(&[1.0; WIDTH])).unwrap();
    device.write(up, HostData::F32(&[2.0; WIDTH])).unwrap();
    Glu::same(gate, up, Activation::Silu)
}

/// What an inner device holds, past the recorder's own rules.
fn inner_values(device: &mut Recorder, view: View) -> Vec<f32> {
    let mut values = vec![0.0; view.len];
    device.inner.read(view, HostDataMut::F32(&mut values)).unwrap();
    values
}

#[test]
fn writes_and_operations_run_at_submit_and_not_before() {
    let mut device = recorder();
    let op = gated(&mut device);
    device.glu(op).unwrap();
    assert!(inner_values(&mut device, op.gate).iter().all(|v| v.is_nan()));
    submit_and_wait(&mut device).unwrap();
    let silu = 1.0 / (1.0 + (-1.0f32).exp());
    assert_eq!(read(&mut device, op.gate).unwrap(), [silu * 2.0; WIDTH]);
}

#[test]
fn a_recorded_write_keeps_the_data_it_was_given() {
    let mut device = recorder();
    let view = scratch(&mut device, "x");
    let mut data = [1.0; WIDTH];
    device.write(view, HostData::F32(&data)).unwrap();
    data.fill(9.0);
    submit_and_wait(&mut device).unwrap();
    assert_ne!(read(&mut device, view).unwrap(), data);
}

#[test]
fn reading_while_commands_are_queued_is_refused() {
    let mut device = recorder();
    let op = gated(&mut device);
    assert!(complaint(read(&mut device, op.gate)).contains("2 commands are queued"));
}

#[test]
fn reading_before_the_wait_is_refused() {
    let mut device = recorder();
    let op = gated(&mut device);
    let first = device.submit().unwrap();
    device.glu(op).unwrap();
    let second = device.submit().unwrap();
    device.wait(first).unwrap();
    assert!(complaint(read(&mut device, op.gate)).contains("1 submissions are in flight"));
    device.wait(second).unwrap();
    read(&mut device, op.gate).unwrap();
}

#[test]
fn what_was_posted_is_read_while_more_is_in_flight_and_written_over_only_then() {
    let mut device = recorder();
    let (op, other) = (gated(&mut device), gated(&mut device));
    device.glu(op).unwrap();
    device.post(op.gate).unwrap();
    let first = device.submit().unwrap();
    assert!(complaint(device.glu(op)).contains("posted and not yet waited for"));
    device.glu(other).unwrap();
    let second = device.submit().unwrap();
    device.wait(first).unwrap();
    let silu = 1.0 / (1.0 + (-1.0f32).exp());
    assert_eq!(read(&mut device, op.gate).unwrap(), [silu * 2.0; WIDTH]);
    assert!(complaint(read(&mut device, op.gate)).contains("1 submissions are in flight"));
    device.wait(second).unwrap();
    device.write(op.gate, HostData::F32(&[3.0; WIDTH])).unwrap();
}

#[test]
fn waiting_for_a_ticket_never_given_out_is_refused() {
    let mut device = recorder();
    assert!(complaint(device.wait(Ticket(1))).contains("never given out"));
}

#[test]
fn an_operation_that_does_not_fit_its_description_is_refused_when_recorded() {
    let mut device = recorder();
    let op = gated(&mut device);
    let wrong = Glu { up: op.up.part(0, WIDTH - 1), ..op };
    assert!(matches!(device.glu(wrong), Err(BackendError::Length { operand: "up", .. })));
}

#[test]
fn new_buffers_are_poisoned_in_every_type() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut device = recorder();
        let view = buffer(&mut device, "x", dtype, BufferRole::State);
        assert!(inner_values(&mut device, view).iter().all(|v| v.is_nan()), "{dtype}");
    }
    let mut device = recorder();
    let view = buffer(&mut device, "x", DType::U32, BufferRole::State);
    let mut values = [0; WIDTH];
    device.inner.read(view, HostDataMut::U32(&mut values)).unwrap();
    assert_eq!(values, [POISON_INDEX; WIDTH]);
}

#[test]
fn scratch_is_poisoned_again_when_the_next_step_begins_and_state_is_not() {
    let mut device = recorder();
    let scratch = scratch(&mut device, "scratch");
    let state = buffer(&mut device, "state", DType::F32, BufferRole::State);
    for view in [scratch, state] {
        device.write(view, HostData::F32(&[1.0; WIDTH])).unwrap();
    }
    submit_and_wait(&mut device).unwrap();
    assert_eq!(read(&mut device, scratch).unwrap(), [1.0; WIDTH], "results outlive the wait");
    let next = Glu::same(state, scratch, Activation::Silu);
    assert!(complaint(device.glu(next)).contains("`scratch`"));
    assert!(inner_values(&mut device, scratch).iter().all(|v| v.is_nan()));
    assert_eq!(inner_values(&mut device, state), [1.0; WIDTH]);
}

#[test]
fn a_wait_in_the_middle_of_a_step_leaves_scratch_alone() {
    let mut device = recorder();
    let op = gated(&mut device);
    let ticket = device.submit().unwrap();
    device.glu(op).unwrap();
    device.wait(ticket).unwrap();
    device.glu(op).unwrap();
    submit_and_wait(&mut device).unwrap();
    assert_eq!(device.watch().stats().steps, 1);
}

#[test]
fn an_operand_that_was_only_partly_written_is_refused_by_name() {
    let mut device = recorder();
    let (gate, up) = (scratch(&mut device, "gate"), scratch(&mut device, "the up buffer"));
    device.write(gate, HostData::F32(&[1.0; WIDTH])).unwrap();
    device.write(up.part(0, WIDTH - 1), HostData::F32(&[1.0; WIDTH - 1])).unwrap();
    let text = complaint(device.glu(Glu::same(gate, up, Activation::Silu)));
    for part in ["glu", "`up`", "element 3", "`the up buffer`"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_host_may_not_read_what_nothing_wrote() {
    let mut device = recorder();
    let view = scratch(&mut device, "x");
    assert!(complaint(read(&mut device, view)).contains("`x`"));
}

#[test]
fn room_that_an_operation_leaves_unspecified_does_not_count_as_written() {
    let mut device = recorder();
    let matrix = Matrix::from_f32(WIDTH, WIDTH, &[1.0; WIDTH * WIDTH]).unwrap();
    let weight = device.upload("w", matrix).unwrap();
    let op = gated(&mut device);
    let (room, out) = (scratch(&mut device, "room"), scratch(&mut device, "out"));
    let activation = Activation::Silu;
    let (gate, up, norm) = (weight, weight, None);
    let fused = GatedLinear { x: op.up, norm, gate, up, scratch: room, out, activation };
    device.gated_linear(fused).unwrap();
    device.glu(Glu::same(out, op.up, activation)).unwrap();
    assert!(complaint(device.glu(Glu::same(out, room, activation))).contains("`room`"));
}

/// A device whose `glu` also writes to buffer 2.
struct Scribbler;

impl Kernels for Scribbler {
    fn name(&self) -> String {
        "scribbler".to_owned()
    }

    fn glu(&mut self, memory: &mut Memory, _: Glu) -> Result<(), BackendError> {
        let victim = View::head(BufferId(2), 1);
        memory.lend([victim], |_, [storage]| storage.f32_mut(victim)[0] = 7.0);
        Ok(())
    }
}

#[test]
fn paranoia_names_the_operation_that_writes_memory_it_was_not_told_about() {
    let mut device = Recorder::new(Box::new(Cpu::with_kernels(Scribbler))).paranoid();
    let op = gated(&mut device);
    let victim = scratch(&mut device, "victim");
    device.write(victim, HostData::F32(&[0.0; WIDTH])).unwrap();
    device.glu(op).unwrap();
    let text = complaint(device.submit());
    assert!(text.contains("glu") && text.contains("`victim`"), "{text}");
}

#[test]
fn paranoia_accepts_an_honest_device() {
    let mut device = recorder().paranoid();
    for _ in 0..2 {
        let op = gated(&mut device);
        device.glu(op).unwrap();
        submit_and_wait(&mut device).unwrap();
    }
}

/// One write of 16 bytes, then products of one row with a `[WIDTH, WIDTH]` matrix.
fn products(device: &mut Recorder, count: usize) -> u64 {
    let matrix = Matrix::from_f32(WIDTH, WIDTH, &[1.0; WIDTH * WIDTH]).unwrap();
    let weight = device.upload("w", matrix).unwrap();
    let (x, out) = (scratch(device, "x"), scratch(device, "out"));
    device.write(x, HostData::F32(&[1.0; WIDTH])).unwrap();
    let op = Linear { x, weight, bias: None, channels: None, out, store: Store::Set };
    for _ in 0..count {
        device.linear(op).unwrap();
    }
    Op::from(op).desc(device).cost().flops
}

#[test]
fn a_queue_is_cut_at_the_budget_and_the_counts_say_so() {
    let flops = 2 * (WIDTH * WIDTH) as u64;
    let budget = Budget { bytes: u64::MAX, flops: 2 * flops };
    let mut device = Recorder::with_budget(Box::new(plain()), budget);
    assert_eq!(products(&mut device, 5), flops);
    submit_and_wait(&mut device).unwrap();
    let stats = device.watch().stats();
    assert_eq!((stats.submissions, stats.submit_calls), (3, 1));
    assert_eq!((stats.ops, stats.writes), (5, 1));
    assert_eq!(stats.largest.flops, 2 * flops);
    assert!(stats.oversized.is_empty());
}

#[test]
fn an_operation_over_the_budget_stands_alone_and_is_counted() {
    let budget = Budget { bytes: 20, flops: u64::MAX };
    let mut device = Recorder::with_budget(Box::new(plain()), budget);
    products(&mut device, 2);
    submit_and_wait(&mut device).unwrap();
    let stats = device.watch().stats();
    assert_eq!(stats.submissions, 3);
    assert_eq!(stats.oversized, ["linear", "linear"]);
}

#[test]
fn bytes_in_flight_rise_at_submit_and_fall_at_wait() {
    let mut device = recorder();
    let view = scratch(&mut device, "x");
    let mut tickets = Vec::new();
    for _ in 0..2 {
        device.write(view, HostData::F32(&[1.0; WIDTH])).unwrap();
        tickets.push(device.submit().unwrap());
    }
    let bytes = 4 * WIDTH as u64;
    assert_eq!(device.watch().stats().bytes_in_flight, 2 * bytes);
    for ticket in tickets {
        device.wait(ticket).unwrap();
    }
    let stats = device.watch().stats();
    assert_eq!((stats.bytes_in_flight, stats.peak_bytes_in_flight), (0, 2 * bytes));
}

#[test]
fn allocations_are_counted_and_refused_after_the_seal() {
    let mut device = recorder();
    let watch = device.watch();
    products(&mut device, 1);
    let stats = watch.stats();
    assert_eq!((stats.buffers, stats.buffer_bytes), (2, 8 * WIDTH as u64));
    assert_eq!((stats.uploads, stats.weight_bytes), (1, 4 * (WIDTH * WIDTH) as u64));
    watch.seal();
    let late = BufferSpec { label: "late", dtype: DType::F32, len: 1, role: BufferRole::Scratch };
    assert!(complaint(device.alloc(late)).contains("an allocation of `late` after warm-up"));
    let matrix = Matrix::from_f32(1, 1, &[1.0]).unwrap();
    assert!(complaint(device.upload("late", matrix)).contains("an upload of `late`"));
}

#[test]
fn nothing_of_a_failed_submission_runs_later() {
    let mut device = recorder();
    let matrix = Matrix::from_f32(1, WIDTH, &[1.0; WIDTH]).unwrap();
    let table = device.upload("table", matrix).unwrap();
    let ids = buffer(&mut device, "ids", DType::U32, BufferRole::State).part(0, 1);
    let out = scratch(&mut device, "out");
    device.write(ids, HostData::U32(&[5])).unwrap();
    device.embed(Embed { ids, table, scale: 1.0, out }).unwrap();
    assert!(matches!(device.submit(), Err(BackendError::Index { .. })));
    submit_and_wait(&mut device).unwrap();
    assert_eq!(device.watch().stats().ops, 0);
}

#[test]
fn stashes_are_made_at_submit_counted_and_lost_with_a_failed_submission() {
    let mut device = recorder();
    let watch = device.watch();
    let view = buffer(&mut device, "x", DType::F32, BufferRole::State);
    assert!(complaint(device.stash(&[view])).contains("nothing was written"));
    device.write(view, HostData::F32(&[1.0; WIDTH])).unwrap();
    let stash = device.stash(&[view]).unwrap();
    assert!(complaint(device.read_stash(stash)).contains("not submitted"));
    let ticket = device.submit().unwrap();
    let bytes = device.read_stash(stash).unwrap();
    assert_eq!(bytes[..4], 1f32.to_le_bytes());
    let stats = watch.stats();
    assert_eq!((stats.waits, stats.stash_reads, stats.stashes), (1, 1, 1), "it was in flight");
    device.wait(ticket).unwrap();
    device.read_stash(stash).unwrap();
    assert_eq!(watch.stats().waits, 2, "what has passed is not waited for");
    device.unstash(stash, &[view]).unwrap();
    device.release_stash(stash).unwrap();
    assert_eq!((watch.stats().stashes_held, watch.stats().stash_bytes), (0, 0));
    assert_eq!(device.inner.stash_bytes(), 4 * WIDTH as u64, "the queue still needs it");
    submit_and_wait(&mut device).unwrap();
    assert_eq!(device.inner.stash_bytes(), 0);
    assert_eq!(watch.stats().peak_stash_bytes, 4 * WIDTH as u64);
}

#[test]
fn a_stash_of_a_submission_that_failed_is_never_there_and_leaves_nothing() {
    let limit = Budget { bytes: 100, flops: 100 };
    let mut device = Recorder::with_watchdog(Box::new(plain()), limit);
    let view = buffer(&mut device, "x", DType::F32, BufferRole::State);
    device.write(view, HostData::F32(&[1.0; WIDTH])).unwrap();
    submit_and_wait(&mut device).unwrap();
    let kept = device.stash(&[view]).unwrap();
    submit_and_wait(&mut device).unwrap();
    let lost: Vec<_> = (0..9).map(|_| device.stash(&[view]).unwrap()).collect();
    device.unstash(kept, &[view]).unwrap();
    device.release_stash(kept).unwrap();
    assert!(complaint(device.submit()).contains("the watchdog killed"));
    assert_eq!(device.inner.stash_bytes(), 0, "what was released is gone all the same");
    assert!(complaint(device.read_stash(lost[0])).contains("not submitted"));
    device.unstash(lost[0], &[view]).unwrap();
    assert!(complaint(device.submit()).contains("never made"));
    lost.into_iter().for_each(|stash| device.release_stash(stash).unwrap());
    assert_eq!(device.stash_bytes(), 0);
}

#[test]
fn copies_and_stashes_conform_behind_the_recorder() {
    for recorder in [recorder(), recorder().paranoid()] {
        let report = forerun_backend::conform::check_copies(&mut { recorder });
        assert!(report.checks > 0 && report.failures.is_empty(), "{report}");
    }
}
