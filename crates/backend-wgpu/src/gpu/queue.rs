//! Commands in order: collected, then handed to the adapter as one pass for each submission.

use crate::gpu::kernels::operand_of;
use crate::gpu::launch::Launch;
use crate::gpu::mark::{Mark, sign};
use crate::gpu::timing::{self, Timer};
use forerun_backend::{BackendError, Ticket};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Words in which kernels note a bad index, and the sign of a submission that ran to its end.
const FAULT_BYTES: u64 = 16;
/// The same, and when the adapter began and ended.
const REPORT_BYTES: u64 = FAULT_BYTES + timing::BYTES;
/// Bytes from the host that one submission copies at most, but for a single copy that is larger.
const COPIED: u64 = 32 << 20;

/// Something to do, in the order in which it was asked for.
enum QueuedWork {
    Launch(Launch),
    Copy { from: wgpu::Buffer, to: wgpu::Buffer, at: u64 },
}

/// What the adapter reported outside of calls.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Option<String>>>);

impl Reported {
    fn note(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }

    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where a submission leaves what the host asks of it.
struct Report {
    /// What kernels noted, and times.
    noted: wgpu::Buffer,
    timer: Option<Timer>,
}

/// Work that was handed over.
struct Submission {
    ticket: Ticket,
    index: wgpu::SubmissionIndex,
    report: Report,
    /// What it leaves there if it runs to its end.
    sign: u32,
    began: Instant,
}

/// See the module's text.
pub(crate) struct Queue {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) fault: wgpu::Buffer,
    mark: Mark,
    commands: Vec<QueuedWork>,
    /// Bytes from the host since the last submission.
    copied: u64,
    /// Bytes that buffers and weights may take, and those that they have taken.
    pub(crate) memory_limit: Option<u64>,
    taken: Cell<u64>,
    began: Option<Instant>,
    submitted: Vec<Submission>,
    spare: Vec<Report>,
    last: u64,
    done: Instant,
    errors: Reported,
    lost: Reported,
}

impl Queue {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Self {
        let (errors, lost) = (Reported::default(), Reported::default());
        let noted = errors.clone();
        device
            .on_uncaptured_error(Arc::new(move |error: wgpu::Error| noted.note(error.to_string())));
        let noted = lost.clone();
        device.set_device_lost_callback(move |reason, why| {
            noted.note(format!("{reason:?}, {why}"));
        });
        let fault = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("bad indices"),
            size: FAULT_BYTES,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Self {
            mark: Mark::new(&device, &fault),
            device,
            queue,
            fault,
            commands: Vec::new(),
            copied: 0,
            memory_limit: None,
            taken: Cell::new(0),
            began: None,
            submitted: Vec::new(),
            spare: Vec::new(),
            last: 0,
            done: Instant::now(),
            errors,
            lost,
        }
    }

    /// A buffer, or what there was no memory for.
    pub(crate) fn buffer(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, BackendError> {
        let none = || BackendError::OutOfMemory { label: label.to_owned(), bytes: bytes as usize };
        let most = self.largest_buffer();
        if bytes > most {
            return Err(BackendError::Device(format!(
                "`{label}` has {bytes} bytes, a buffer of this adapter at most {most}; ask for a smaller context or fewer sequences"
            )));
        }
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.next_multiple_of(4).max(4),
            usage,
            mapped_at_creation: false,
        });
        match pollster::block_on(memory.pop()) {
            Some(_) => Err(none()),
            None => self.check().map(|()| buffer),
        }
    }

    /// A buffer that kernels use and bytes are copied into and out of.
    pub(crate) fn storage(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let taken = self.taken.get().saturating_add(bytes);
        if self.memory_limit.is_some_and(|limit| taken > limit) {
            let (label, bytes) = (label.to_owned(), bytes as usize);
            return Err(BackendError::OutOfMemory { label, bytes });
        }
        let buffer = self.buffer(label, bytes, usage)?;
        self.taken.set(taken);
        Ok(buffer)
    }

    /// Bytes of the largest buffer that can be bound.
    pub(crate) fn largest_buffer(&self) -> u64 {
        let limits = self.device.limits();
        limits.max_buffer_size.min(limits.max_storage_buffer_binding_size)
    }

    /// Bytes that can still be taken, where there is a limit.
    pub(crate) fn free_memory(&self) -> Option<u64> {
        self.memory_limit.map(|limit| limit.saturating_sub(self.taken.get()))
    }

    /// What the adapter reported since it was last asked. What is lost stays lost.
    fn check(&self) -> Result<(), BackendError> {
        let error = self.errors.take();
        if error.is_some() {
            // Calls on a lost device fail before its loss is told.
            let _ = self.device.poll(wgpu::PollType::Poll);
        }
        match (self.lost.get(), error) {
            (Some(lost), _) => Err(BackendError::Lost(lost)),
            (None, Some(error)) => Err(BackendError::Device(error)),
            (None, None) => Ok(()),
        }
    }

    /// An error of a call, or that the device is lost, where that is why.
    fn failed(&self, why: &dyn std::fmt::Display) -> BackendError {
        let _ = self.device.poll(wgpu::PollType::Poll);
        self.check().err().unwrap_or_else(|| BackendError::Device(why.to_string()))
    }

    /// Whether there is nothing to do and nothing went wrong.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.commands.is_empty()
            && self.submitted.is_empty()
            && self.flush_writes().is_ok()
            && self.check().is_ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(crate) fn push(&mut self, launch: Launch) {
        self.began.get_or_insert_with(Instant::now);
        self.commands.push(QueuedWork::Launch(launch));
    }

    /// Bytes into a buffer; place and length are multiples of four. Many of them are handed over on the way, so that
    /// neither copies on the host nor a submission grow without bound.
    pub(crate) fn write(
        &mut self,
        to: &wgpu::Buffer,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.began.get_or_insert_with(Instant::now);
        if self.commands.is_empty() {
            self.queue.write_buffer(to, at, bytes);
        } else {
            // What is queued comes first, so these bytes wait their turn in a buffer of their own.
            let from = self.staged(bytes)?;
            self.commands.push(QueuedWork::Copy { from, to: to.clone(), at });
        }
        self.copied += bytes.len() as u64;
        if self.copied < COPIED {
            return Ok(());
        }
        let ticket = self.submit()?;
        self.wait(ticket).map(drop)
    }

    /// A buffer that holds bytes.
    pub(crate) fn staged(&self, bytes: &[u8]) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let buffer = self.buffer("bytes from the host", bytes.len() as u64, usage)?;
        self.queue.write_buffer(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// Hands over what was written so far, so that copies of it do not pile up in memory.
    pub(crate) fn flush_writes(&self) -> Result<(), BackendError> {
        self.queue.submit([]);
        self.poll(None)
    }

    fn poll(&self, index: Option<wgpu::SubmissionIndex>) -> Result<(), BackendError> {
        let wait = wgpu::PollType::Wait { submission_index: index, timeout: None };
        self.device.poll(wait).map_err(|why| self.failed(&why))?;
        self.check()
    }

    /// All commands in one command buffer, launches that follow each other in one pass. Returns how many passes there
    /// are.
    fn encode(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        ticket: u64,
        timer: Option<&Timer>,
    ) -> usize {
        let last = passes_of(&self.commands);
        let mut commands = self.commands.drain(..).peekable();
        let mut passes = 0;
        loop {
            while let Some(QueuedWork::Copy { from, to, at }) =
                commands.next_if(|c| matches!(c, QueuedWork::Copy { .. }))
            {
                encoder.copy_buffer_to_buffer(&from, 0, &to, at, from.size());
            }
            passes += 1;
            let timestamp_writes = timer.and_then(|timer| timer.of_pass(passes, last));
            let pass = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
            let mut pass = encoder.begin_compute_pass(&pass);
            while let Some(QueuedWork::Launch(launch)) =
                commands.next_if(|c| matches!(c, QueuedWork::Launch(_)))
            {
                pass.set_pipeline(&launch.pipeline);
                pass.set_bind_group(0, &launch.group, &[]);
                pass.set_immediates(0, &launch.immediates);
                let [x, y, z] = launch.grid;
                pass.dispatch_workgroups(x, y, z);
            }
            self.mark.leave(&mut pass, ticket);
            if commands.peek().is_none() {
                return passes;
            }
        }
    }

    pub(crate) fn submit(&mut self) -> Result<Ticket, BackendError> {
        let report = match self.spare.pop() {
            Some(report) => report,
            None => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                let noted = self.buffer("what a submission leaves", REPORT_BYTES, usage)?;
                Report { noted, timer: Timer::new(&self.device) }
            }
        };
        self.last += 1;
        self.copied = 0;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let passes = self.encode(&mut encoder, self.last, report.timer.as_ref());
        let sign = sign(self.last, passes);
        encoder.copy_buffer_to_buffer(&self.fault, 0, &report.noted, 0, FAULT_BYTES);
        if let Some(timer) = &report.timer {
            timer.resolve(&mut encoder, &report.noted, FAULT_BYTES);
        }
        encoder.clear_buffer(&self.fault, 0, None);
        let index = self.queue.submit([encoder.finish()]);
        report.noted.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        let ticket = Ticket(self.last);
        let began = self.began.take().unwrap_or_else(Instant::now);
        self.submitted.push(Submission { ticket, index, report, sign, began });
        self.check().map(|()| ticket)
    }

    /// The time is the adapter's own, from the first pass of each submission to the end of its last. Where it has no
    /// clock it is the host's, from the first command of a submission, or the end of the one before, to its end: at
    /// least what the device was busy. What kernels noted until then is the error, once.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        let passed = self.submitted.partition_point(|submission| submission.ticket <= ticket);
        let Some(last) = self.submitted[..passed].last() else {
            return self.check().map(|()| Duration::ZERO);
        };
        let polled = self.poll(Some(last.index.clone()));
        let (mut error, mut unread, mut began) = (None, None, None);
        let mut measured = Some(Duration::ZERO);
        for submission in self.submitted.drain(..passed) {
            began.get_or_insert(submission.began);
            if polled.is_err() {
                continue;
            }
            let Report { noted: buffer, timer } = &submission.report;
            match buffer.slice(..).get_mapped_range() {
                Ok(bytes) => {
                    let (fault, times) = bytes.split_at(FAULT_BYTES as usize);
                    error = error.or_else(|| noted(fault, submission.sign));
                    let clock = timer.as_ref().map(|_| self.queue.get_timestamp_period());
                    let took = clock.and_then(|period| timing::took(times, period));
                    measured = measured.zip(took).map(|(sum, took)| sum + took);
                }
                Err(why) => unread = Some(why.to_string()),
            }
            buffer.unmap();
            self.spare.push(submission.report);
        }
        let now = Instant::now();
        let began = began.unwrap_or(now).max(self.done);
        self.done = now;
        polled?;
        if let Some(why) = unread {
            return Err(self.failed(&why));
        }
        if let Some(BackendError::Lost(why)) = &error {
            self.lost.note(why.clone());
        }
        // A clock that says more than the host saw is none.
        let seen = now.duration_since(began);
        error.map_or(Ok(measured.filter(|&time| time <= seen).unwrap_or(seen)), Err)
    }

    /// Bytes of a buffer; place and length are multiples of four.
    pub(crate) fn read(
        &mut self,
        from: &wgpu::Buffer,
        at: u64,
        len: u64,
    ) -> Result<Vec<u8>, BackendError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let to = self.buffer("bytes for the host", len, usage)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(from, at, &to, 0, len);
        let index = self.queue.submit([encoder.finish()]);
        to.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        self.poll(Some(index))?;
        let bytes = to.slice(..len).get_mapped_range();
        let bytes = bytes.map_err(|why| self.failed(&why))?.to_vec();
        to.unmap();
        Ok(bytes)
    }
}

/// Passes of commands: launches that follow each other are one, and the last one may hold nothing but the sign.
fn passes_of(commands: &[QueuedWork]) -> usize {
    let is_launch = |command: &QueuedWork| matches!(command, QueuedWork::Launch(_));
    let runs = commands.chunk_by(|a, b| is_launch(a) == is_launch(b));
    let ends_in_copies = !commands.last().is_some_and(is_launch);
    runs.filter(|run| is_launch(&run[0])).count() + usize::from(ends_in_copies)
}

/// What kernels noted, as an error; also that they did not come to their end.
fn noted(bytes: &[u8], sign: u32) -> Option<BackendError> {
    let (words, _) = bytes.as_chunks::<4>();
    let [site, index, limit, found] = [0, 1, 2, 3].map(|i| u32::from_le_bytes(words[i]));
    if found != sign {
        let why = "the system stopped its work before the end, perhaps because it took too long; a smaller --submission-ms cuts it \
                   into shorter runs";
        return Some(BackendError::Lost(why.to_owned()));
    }
    let (op, operand) = operand_of(site);
    let (index, limit) = (index as usize, limit as usize);
    (site != 0).then_some(BackendError::Index { op, operand, index, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_run_to_its_end_counts_as_a_lost_device_whatever_else_it_left() {
        let words = |words: [u32; 4]| words.map(u32::to_le_bytes).concat();
        let sign = sign(7, 2);
        assert_eq!(noted(&words([0, 0, 0, sign]), sign), None);
        for stopped in
            [[0; 4], [1, 9, 3, 0], [0, 0, 0, super::sign(7, 1)], [0, 0, 0, super::sign(5, 2)]]
        {
            assert!(
                matches!(noted(&words(stopped), sign), Some(BackendError::Lost(_))),
                "{stopped:?}"
            );
        }
        let index = noted(&words([1, 9, 3, sign]), sign);
        assert!(matches!(index, Some(BackendError::Index { index: 9, limit: 3, .. })), "{index:?}");
    }
}
